"""A deadline that holds: what runs in it is cancelled until it ends.

`asyncio.timeout` cancels once, and up to Python 3.11 `asyncio.wait_for`, which the SDK calls for every frame, loses
that one cancellation when a frame comes at the same moment. Then nothing would ever end the wait.
"""

import asyncio
from types import TracebackType
from typing import Self

_AGAIN = 0.1
"""Seconds between cancellations."""


class Deadline:
    """An async context manager; raises `TimeoutError` when its time is up, as `asyncio.timeout` does."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._fired = 0

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a deadline needs a task to cancel")
        self._task = task
        self._before = task.cancelling()
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._fire)
        return self

    def _fire(self) -> None:
        self._fired += 1
        self._task.cancel()
        self._timer = asyncio.get_running_loop().call_later(_AGAIN, self._fire)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        for _ in range(self._fired):
            self._task.uncancel()
        # Cancelled from outside as well: that goes first.
        if self._fired and kind is asyncio.CancelledError and self._task.cancelling() <= self._before:
            raise TimeoutError from error
