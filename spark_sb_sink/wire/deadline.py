"""A deadline that holds: what runs in it is cancelled until it ends.

`asyncio.timeout` cancels once, and up to Python 3.11 `asyncio.wait_for`, which the SDK calls for every frame, loses
that one cancellation when a frame comes at the same moment. Then nothing would ever end the wait. And a process that
stood still must not blame the other side: what came meanwhile is read before the time is up.
"""

import asyncio
from types import TracebackType
from typing import Self

_AGAIN = 0.1
"""Seconds between cancellations."""
_LATE = 0.1
"""A timer that fires so many seconds late was held up by its own loop, or by a machine that stood still."""
_GRACE = 0.5
"""Seconds that an answer has which came meanwhile and was not read yet."""


class Deadline:
    """An async context manager; raises `TimeoutError` when its time is up, as `asyncio.timeout` does."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._fired = 0
        self._graced = False

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a deadline needs a task to cancel")
        self._task = task
        self._before = task.cancelling()
        loop = asyncio.get_running_loop()
        self._due = loop.time() + self._seconds
        self._timer = loop.call_at(self._due, self._fire)
        return self

    def _fire(self) -> None:
        loop = asyncio.get_running_loop()
        if not self._graced and loop.time() - self._due > _LATE:
            self._graced = True
            self._timer = loop.call_later(min(_GRACE, self._seconds), self._fire)
            return
        self._fired += 1
        self._task.cancel()
        self._graced = True
        self._timer = loop.call_later(_AGAIN, self._fire)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        for _ in range(self._fired):
            self._task.uncancel()
        # Cancelled from outside as well: that goes first.
        if self._fired and kind is asyncio.CancelledError and self._task.cancelling() <= self._before:
            raise TimeoutError from error
