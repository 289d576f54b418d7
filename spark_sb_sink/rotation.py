"""Which backlog queue takes the messages of a diverted entity.

One queue is picked at random for each entity and kept, so that what belongs together tends to stay together. A queue
with an entity fault leaves the rotation for all for a while; a throttled one is only passed over. Pure: time and
randomness come in as arguments, and a rotation is made of rows that any database holds.
"""

import random
from collections.abc import Set
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class QueueState:
    """What is known of one backlog queue, by its number."""

    queue: int
    out_until: float | None = None
    last_error: str = ""

    def is_out(self, now: float) -> bool:
        """Whether it is out of the rotation; at `out_until` it is back."""
        return self.out_until is not None and now < self.out_until

    def to_row(self) -> tuple[int, float | None, str]:
        """The state as simple values, in the order of the fields."""
        return self.queue, self.out_until, self.last_error


@dataclass(frozen=True, slots=True)
class Keep:
    """The queue that an entity keeps."""

    entity: str
    queue: int


@dataclass(frozen=True, slots=True)
class Chosen:
    """Send to this queue. `busy`: all that are left are throttled, so wait first."""

    queue: int
    busy: bool = False


@dataclass(frozen=True, slots=True)
class AllOut:
    """No queue takes messages now: the last error of each."""

    errors: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class Rotation:
    """All backlog queues, and which entity keeps which."""

    queues: tuple[QueueState, ...]
    kept: tuple[Keep, ...] = field(default=())

    @classmethod
    def of(cls, count: int) -> "Rotation":
        """A fresh rotation of queues 0 to count-1."""
        return cls(tuple(QueueState(number) for number in range(count)))


def choose(
    rotation: Rotation,
    entity: str,
    now: float,
    rng: random.Random,
    *,
    tried: Set[int] = frozenset(),
    busy: Set[int] = frozenset(),
) -> tuple[Rotation, Chosen | AllOut]:
    """The queue for an entity: the one it keeps while that is in the rotation, else another, which it keeps then.

    `tried` are queues that failed with a fault for the batch in hand: they are not tried again for it, even if their
    cool-down ends meanwhile, or a batch could go round for ever among queues that each take a deadline to fail. `busy`
    are those that throttled it: they are taken only if no other is left.
    """
    usable = [q.queue for q in rotation.queues if not q.is_out(now) and q.queue not in tried]
    if not usable:
        return rotation, AllOut(tuple((q.queue, q.last_error) for q in rotation.queues))
    free = [queue for queue in usable if queue not in busy]
    keeps = next((keep.queue for keep in rotation.kept if keep.entity == entity), None)
    candidates = free or usable
    if keeps in candidates and keeps is not None:
        return rotation, Chosen(keeps, busy=not free)
    queue = rng.choice(candidates)
    others = tuple(keep for keep in rotation.kept if keep.entity != entity)
    return replace(rotation, kept=(*others, Keep(entity, queue))), Chosen(queue, busy=not free)


def take_out(rotation: Rotation, queue: int, error: str, now: float, cooldown: float) -> Rotation:
    """After an entity fault on a backlog queue: out of the rotation for all, for one cool-down.

    Faults that come in while it is out, from sends that were under way, do not make the cool-down longer.
    """

    def after(state: QueueState) -> QueueState:
        until = state.out_until if state.is_out(now) else now + cooldown
        return QueueState(queue, until, error)

    return replace(rotation, queues=tuple(after(q) if q.queue == queue else q for q in rotation.queues))
