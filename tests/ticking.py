"""Time as an event loop sees it: counted in its own ticks, so that a machine that stalls does not count against it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

STEP = 0.02


class TickingClock:
    """A clock that a task moves on by one step after each sleep of one step.

    While the machine gives the process no time, no tick comes either: what is bounded by so many ticks was bounded by a
    timer of the same loop, and a stall of the whole process is hardly counted.
    """

    def __init__(self) -> None:
        self.ticks = 0
        self._ticked = asyncio.Event()

    def now(self) -> float:
        return 1000.0 + self.ticks * STEP

    async def sleep(self, seconds: float) -> None:
        due = self.now() + seconds
        while self.now() < due:
            await self._ticked.wait()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(STEP)
            self.ticks += 1
            self._ticked.set()
            self._ticked = asyncio.Event()


@contextlib.asynccontextmanager
async def ticking() -> AsyncIterator[TickingClock]:
    """A clock that runs while this is open."""
    clock = TickingClock()
    running = asyncio.create_task(clock._run())
    try:
        yield clock
    finally:
        running.cancel()
