"""Latency and bandwidth of one direction of a connection: bytes go in now and come out when they are due."""

import asyncio
from collections import deque
from collections.abc import Callable


def _drop(data: bytes) -> None: ...


class Shaper:
    """Hands bytes on in order, each `delay` seconds late and no faster than `bandwidth` bytes a second."""

    def __init__(self, loop: asyncio.AbstractEventLoop, hand_on: Callable[[bytes], None]) -> None:
        self._loop = loop
        self._hand_on = hand_on
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._free_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def put(self, data: bytes, delay: float, bandwidth: float | None) -> None:
        if not self._waiting and not delay and bandwidth is None:
            self._hand_on(data)
            return
        now = self._loop.time()
        due = now + delay
        if bandwidth is not None:
            self._free_at = max(now, self._free_at) + len(data) / bandwidth
            due = max(due, self._free_at + delay)
        if self._waiting:
            due = max(due, self._waiting[-1][0])
        self._waiting.append((due, data))
        self._arm()

    def _arm(self) -> None:
        if self._timer is None and self._waiting:
            self._timer = self._loop.call_at(self._waiting[0][0], self._run)

    def _run(self) -> None:
        self._timer = None
        now = self._loop.time()
        ready: list[bytes] = []
        while self._waiting and self._waiting[0][0] <= now + 0.0005:
            ready.append(self._waiting.popleft()[1])
        if ready:
            self._hand_on(b"".join(ready))
        self._arm()

    def release(self) -> None:
        """Hand on at once all that waits: what held it back is over."""
        self._free_at = 0.0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        ready = [data for _, data in self._waiting]
        self._waiting.clear()
        if ready:
            self._hand_on(b"".join(ready))

    def close(self) -> None:
        # The connection that it hands on to holds it: without this, each closed one would wait for the garbage
        # collector, which does not see how much memory the AMQP engine has behind it.
        self._hand_on = _drop
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
