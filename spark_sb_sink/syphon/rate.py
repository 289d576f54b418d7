"""How many messages may go out now: a token bucket, and the shares of those who send. Knows nothing of messages."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass

BURST = 1.0
"""Seconds of the rate that may go out at once after a pause."""

AHEAD = 2.0
"""Seconds of the rate that are in hand; no longer than the end of a run waits for them."""

OVERFLOW_SHARE = 0.5
"""Of the rate, while both the backlog and the overflow are drained."""
_LOOK = 0.2
"""Seconds between looks whether to stop."""


def task_share(rate: float | None, tasks: int, *, overflow: bool) -> float | None:
    """What one task may send a second, beside the other tasks and, while that is drained, the overflow."""
    return None if rate is None else rate * (1 - OVERFLOW_SHARE if overflow else 1.0) / tasks


class Shares:
    """Who may send how much of the rate, on the driver. What changes for a task does so with its next turn."""

    def __init__(self, rate: float | None, tasks: int) -> None:
        self._rate = rate
        self._tasks = tasks
        self._changed = threading.Condition()
        self._wanted = self._left = False
        """Whether the overflow wants its share, and whether the turn under way leaves it that."""

    def for_turn(self) -> float | None:
        """What each task of the turn that begins now may send a second."""
        with self._changed:
            self._left = self._wanted
            self._changed.notify_all()
            return task_share(self._rate, self._tasks, overflow=self._left)

    @contextlib.contextmanager
    def for_overflow(self, stop: threading.Event) -> Iterator[bool]:
        """Waits for a turn that leaves the overflow its share; whether there is one, rather than the stop."""
        try:
            with self._changed:
                self._wanted = True
                while self._rate is not None and not self._left and not stop.is_set():
                    self._changed.wait(_LOOK)
            yield not stop.is_set()
        finally:
            self._wanted = False


def in_hand(rate: float | None, mine: int, all_queues: int, queues: int) -> int | None:
    """How many more messages a queue may have in hand, of those that only wait for the rate; None without one.

    Each queue has its share, and one may have more while others need less.
    """
    if rate is None:
        return None
    whole = max(1, int(rate * AHEAD))
    share = max(1, whole // queues)
    free = max(share - mine, whole - all_queues)
    return free if 4 * free >= share else 0  # not one by one


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
