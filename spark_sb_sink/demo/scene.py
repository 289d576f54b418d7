"""What there is to see at any moment. Told by the sink's events, the board and the broker; looked at by the display.

Safe for threads. Knows neither how it is shown nor what comes next.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from spark_sb_sink.demo.reckoning import Acknowledged
from spark_sb_sink.events import BatchSent, EntityChanged, Event, RouteCounts, SyphonTurn, Warned
from spark_sb_sink.failover import Health
from spark_sb_sink.knowledge import added

RATE_OVER = 5.0
"""Seconds over which the rate is taken."""


@dataclass(frozen=True, slots=True)
class Target:
    """One entity of the demo."""

    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class EntityLine:
    """One entity as it stands now."""

    target: Target
    health: Health
    counts: RouteCounts
    drained: int


@dataclass(frozen=True, slots=True)
class Line:
    """One sentence of the story."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class View:
    """Everything at one moment. `rate` is messages a second."""

    at: float
    doing: str
    entities: tuple[EntityLine, ...]
    acknowledged: Acknowledged
    rate: float
    depth: int
    deepest: int


@dataclass
class _Facts:
    doing: str = ""
    health: dict[str, Health] = field(default_factory=dict)
    counts: dict[str, RouteCounts] = field(default_factory=dict)
    drained: dict[str, int] = field(default_factory=dict)
    acknowledged: Acknowledged = field(default_factory=Acknowledged)
    depth: int = 0
    deepest: int = 0


class Scene:
    """The present moment, and the story so far."""

    def __init__(self, targets: Sequence[Target], clock: Callable[[], float] = time.monotonic) -> None:
        self.targets = tuple(targets)
        self._clock = clock
        self._began = clock()
        self._lock = threading.Lock()
        self._facts = _Facts()
        self._lines: deque[Line] = deque()
        self._sent: deque[tuple[float, int]] = deque()
        self._changes: set[tuple[str, Health, float]] = set()
        self._warned: set[str] = set()

    # Those who know something

    def tell(self, text: str, doing: str | None = None) -> None:
        """One more sentence of the story; `doing` is what the display says meanwhile."""
        with self._lock:
            self._lines.append(Line(self._clock() - self._began, text))
            if doing is not None:
                self._facts.doing = doing

    def hear(self, event: Event) -> None:
        """A listener for the sink and the syphon."""
        with self._lock:
            facts = self._facts
            match event:
                case BatchSent(rows=rows, entities=entities):
                    facts.acknowledged = facts.acknowledged.plus(rows, entities)
                    for counts in entities:
                        before = facts.counts.get(counts.entity, RouteCounts(counts.entity))
                        facts.counts[counts.entity] = added(before, counts)
                    self._sent.append((self._clock(), rows))
                case EntityChanged(entity=entity, after=after, wall_time=at):
                    self._changes.add((entity, after, at))
                case SyphonTurn(moved=moved):
                    for each in moved:
                        facts.drained[each.entity] = facts.drained.get(each.entity, 0) + each.moved
                case Warned(text) if text not in self._warned:
                    self._warned.add(text)
                    self._lines.append(Line(self._clock() - self._began, f"Warning: {text}"))
                case _:
                    pass

    def believe(self, entity: str, health: Health) -> None:
        """What the board says of an entity."""
        with self._lock:
            self._facts.health[entity] = health

    def change(self, entity: str, after: Health, wall_time: float) -> None:
        """The same as the sink tells at the end of a micro-batch, when the board has it already."""
        with self._lock:
            self._changes.add((entity, after, wall_time))

    def measure(self, depth: int) -> None:
        """How many messages are in the backlog queues."""
        with self._lock:
            self._facts.depth = depth
            self._facts.deepest = max(self._facts.deepest, depth)

    # Those who look

    def lines(self) -> list[Line]:
        """The sentences that were not taken yet."""
        with self._lock:
            taken = list(self._lines)
            self._lines.clear()
            return taken

    def view(self) -> View:
        with self._lock:
            facts, now = self._facts, self._clock()
            while self._sent and self._sent[0][0] < now - RATE_OVER:
                self._sent.popleft()
            entities = tuple(
                EntityLine(
                    target,
                    facts.health.get(target.name, Health.HEALTHY),
                    facts.counts.get(target.name, RouteCounts(target.name)),
                    facts.drained.get(target.name, 0),
                )
                for target in self.targets
            )
            rate = sum(rows for _, rows in self._sent) / RATE_OVER
            return View(now - self._began, facts.doing, entities, facts.acknowledged, rate, facts.depth, facts.deepest)

    def first_change(self, entity: str, after: Health, since: float) -> float | None:
        """When that change was, in seconds since 1970; none before `since` counts."""
        with self._lock:
            times = [at for name, health, at in self._changes if (name, health) == (entity, after) and at >= since]
        return min(times, default=None)


def names(entities: Sequence[str]) -> str:
    """`orders`, or `orders, invoices and events`."""
    return " and ".join(part for part in (", ".join(entities[:-1]), entities[-1]) if part)
