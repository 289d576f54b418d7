"""Time as the sending side sees it: a clock and a way to wait, passed in so that tests need neither."""

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol


class Clock(Protocol):
    """Monotonic seconds, and waiting for some of them to pass."""

    def now(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


class MonotonicClock:
    """The machine's own. The same in all processes of a machine, so that the board can hold its times."""

    def now(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@dataclass
class Backoff:
    """Growing waits with jitter, so that senders that failed together do not come back together."""

    first: float = 0.1
    longest: float = 5.0
    uniform: Callable[[float, float], float] = field(default=random.uniform)
    _next: float = 0.0

    def next(self) -> float:
        self._next = min(self.longest, self._next * 2 or self.first)
        return self.uniform(self._next / 2, self._next)
