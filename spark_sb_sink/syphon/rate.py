"""How many messages may go out now: a token bucket. Pure: the time comes in, and who waits is not known here."""

from dataclasses import dataclass

BURST = 1.0
"""Seconds of the rate that may go out at once after a pause."""

OVERFLOW_SHARE = 0.5
"""Of the rate, while both the backlog and the overflow are drained."""


def task_share(rate: float | None, tasks: int, *, overflow: bool) -> float | None:
    """What one task may send a second, beside the other tasks and, while that is drained, the overflow."""
    return None if rate is None else rate * (1 - OVERFLOW_SHARE if overflow else 1.0) / tasks


@dataclass
class Bucket:
    """At most `rate` messages a second, over all who ask; no limit without a rate."""

    rate: float | None
    _tokens: float = 0.0
    _at: float | None = None

    @property
    def burst(self) -> float:
        return max(1.0, (self.rate or 0.0) * BURST)

    def take(self, now: float, wanted: int) -> int:
        """How many of those may go now; they are taken, so give back what was not sent after all."""
        if self.rate is None:
            return wanted
        self._fill(now)
        granted = min(wanted, int(self._tokens))
        self._tokens -= granted
        return granted

    def give_back(self, unused: int) -> None:
        if self.rate is not None:
            self._tokens = min(self.burst, self._tokens + unused)

    def wait(self, now: float) -> float:
        """Seconds until one more may go."""
        if self.rate is None:
            return 0.0
        self._fill(now)
        return max(0.0, (1.0 - self._tokens) / self.rate)

    def _fill(self, now: float) -> None:
        if self.rate is None:
            return
        if self._at is None:  # the first second is none to make up for
            self._tokens, self._at = 1.0, now
        elif now > self._at:
            self._tokens = min(self.burst, self._tokens + (now - self._at) * self.rate)
            self._at = now
