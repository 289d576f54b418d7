"""How the two sides of a pair end: a side that ended takes the other with it, five seconds later at the latest.

Ended is final: closed, its loop dead, its credential refused. A network outage is none of these. Pure: time comes in.
"""

from dataclasses import dataclass, field

from spark_sb_sink.errors import ClosedError, FaultedError
from spark_sb_sink.transport import Side

GRACE = 5.0
"""Seconds that one side may outlive the other."""


@dataclass(frozen=True, slots=True)
class End:
    """When and why a side ended. `fault`: not because somebody closed it."""

    at: float
    reason: str
    fault: bool


@dataclass
class PairLife:
    """Which sides have ended, in what order."""

    ends: dict[Side, End] = field(default_factory=dict)

    def end(self, side: Side, now: float, reason: str, *, fault: bool) -> None:
        """A side came to its end; the first reason stays."""
        self.ends.setdefault(side, End(now, reason, fault))

    def overdue(self, now: float) -> Side | None:
        """The side that has outlived the other by the grace, and is to be faulted now."""
        if len(self.ends) != 1:
            return None
        [(ended, end)] = self.ends.items()
        if now - end.at < GRACE:
            return None
        return Side.SECONDARY if ended is Side.PRIMARY else Side.PRIMARY

    def check(self, side: Side) -> None:
        """Raise if the side has ended."""
        if side not in self.ends:
            return
        error = self.error()
        raise error if error is not None else ClosedError(f"The {side.value} side of the pair")

    def error(self) -> FaultedError | None:
        """What to end with once both have ended: who first, and why. None while one lives or if both were closed."""
        if len(self.ends) < 2 or not any(end.fault for end in self.ends.values()):
            return None
        (first, end), (other, _) = sorted(self.ends.items(), key=lambda item: item[1].at)
        return FaultedError(first=first.value, other=other.value, reason=end.reason)
