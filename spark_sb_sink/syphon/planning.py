"""What to do with deliveries, and how many to ask for, as pure functions of what is known of their destinations.

Knows neither links nor time. `Halving` plans the receives by sequence number that fail as a whole.
"""

import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from spark_sb_sink.failover import Health

PROBE = 10
"""Messages that a destination is tried with which has taken a ping, but no message yet; or refused our claim."""
LANE_SHARE = 500
"""Messages that may wait for a destination that fails before it counts as down: enough to try again with."""


class Can(Enum):
    """Whether a destination takes messages just now."""

    MOVE = "move"
    PROBE = "probe"  # it took a ping, or refused us some time ago; a few messages will tell
    HOLD = "hold"  # it throttles us, fails since a moment ago, or is being probed with what is in hand: fetch no more
    NOT = "not"  # it is down


class Do(Enum):
    """What becomes of a delivery for a destination."""

    SEND = "send"
    DEFER = "defer"  # put aside in the backlog queue, so that others can pass
    RELEASE = "release"  # back into the backlog queue: nobody can pass anyway


def ability(health: Health, waiting: int, *, refused: bool = False, doubtful: bool = False, busy: bool = False) -> Can:
    """Of one destination, given what is believed of it and how many messages wait for it here.

    `doubtful`: it refused our claim some time ago, and may do so still. `busy`: it has asked us to wait.
    """
    if refused or health is Health.FAILED_OVER:
        return Can.NOT
    if busy:
        return Can.HOLD
    if health is Health.PROBATION or doubtful:
        return Can.HOLD if waiting else Can.PROBE
    if health is Health.SUSPECT and waiting:
        return Can.NOT if waiting >= LANE_SHARE else Can.HOLD
    return Can.MOVE


def decide(can: Can, others: Iterable[Can]) -> Do:
    """For a delivery whose destination is `can`, among all destinations that its queue has shown."""
    if can is not Can.NOT:
        return Do.SEND
    return Do.DEFER if any(other in (Can.MOVE, Can.PROBE) for other in others) else Do.RELEASE


def appetite(shown: Iterable[Can], room: int) -> int:
    """How many messages to ask a queue for: none while nothing that it has shown can move."""
    known = tuple(shown)
    if not known or Can.MOVE in known:
        return max(0, room)
    return min(PROBE, max(0, room)) if Can.PROBE in known else 0


def fitting(room: int, bytes_left: int, average: float) -> int:
    """How many messages of this size fit, at least one: a message larger than all room must move as well."""
    return max(1, min(room, int(bytes_left / max(1.0, average)))) if room > 0 else 0


@dataclass
class Halving:
    """Which sequence numbers to ask for next, when a request fails as a whole for one that is locked or gone.

    `patience` failures in a row without a success end it: another syphon has them, and a later look finds what is left.
    """

    numbers: Sequence[int]
    patience: int = 16
    _left: deque[tuple[int, ...]] = field(default_factory=deque)
    _failures: int = 0
    skipped: int = 0

    def __post_init__(self) -> None:
        # A request must stay within one partition, which is the upper 16 bits.
        groups = itertools.groupby(sorted(self.numbers), key=lambda number: number >> 48)
        self._left.extend(tuple(group) for _, group in groups)

    def next(self) -> tuple[int, ...]:
        """The numbers of the next request; nothing once it is over."""
        if self._failures >= self.patience:
            self.skipped += sum(map(len, self._left))
            self._left.clear()
        return self._left[0] if self._left else ()

    def succeeded(self) -> None:
        self._left.popleft()
        self._failures = 0

    def failed(self) -> None:
        asked = self._left.popleft()
        self._failures += 1
        if len(asked) == 1:
            self.skipped += 1
            return
        middle = len(asked) // 2
        self._left.extendleft((asked[middle:], asked[:middle]))
