"""Micro-batches of one sink take turns, until a pause; then they wait, until they are sent away.

A stream's `stop` waits for the function that Spark has called, so whoever waits here must be sent away before it.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from spark_sb_sink.errors import ClosedError


class Turns:
    """One at a time. For any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._taken = self._paused = self._refused = self._waiting = False

    @property
    def waiting(self) -> bool:
        """Whether one has come since the pause and waits, with none under way."""
        return self._waiting

    @contextmanager
    def one(self) -> Iterator[None]:
        """A turn. Raises a `ClosedError` once all are refused, also for those that wait."""
        with self._changed:
            while self._taken or self._paused or self._refused:
                if self._refused:
                    raise ClosedError("The sink", reason="it was told to begin no further micro-batch")
                self._waiting |= self._paused and not self._taken
                self._changed.wait()
            self._taken = True
        try:
            yield
        finally:
            with self._changed:
                self._taken = False
                self._changed.notify_all()

    def pause(self, within: float | None) -> bool:
        """Begin none; whether the one under way ended in time. If not, those that wait are refused."""
        with self._changed:
            self._paused = True
            ended = self._changed.wait_for(lambda: not self._taken, within)
            if not ended:
                self._refuse()
            return ended

    def refuse(self) -> None:
        """Begin none ever again. The one under way goes on."""
        with self._changed:
            self._refuse()

    def _refuse(self) -> None:
        self._refused = True
        self._changed.notify_all()
