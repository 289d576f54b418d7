"""An event loop in a thread of its own, for what the driver does beside its micro-batches."""

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class DriverLoop:
    """Runs coroutines; ends with the process, or with `close`."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it in the loop, and wait for its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self, within: float = 5.0) -> None:
        """Cancel what runs, let it close what it has open, and end the loop. May be called more than once."""
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(lambda: self._loop.create_task(self._end(within)))
        self._thread.join(within + 1)
        if not self._thread.is_alive():
            self._loop.close()

    async def _end(self, within: float) -> None:
        running = asyncio.all_tasks() - {asyncio.current_task()}
        try:
            for task in running:
                task.cancel()
            done, _ = await asyncio.wait(running, timeout=within) if running else (set(), set())
            for task in done:  # what it has to say about being cancelled helps nobody
                if not task.cancelled():
                    task.exception()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within):
                    await self._loop.shutdown_asyncgens()
        finally:
            self._loop.stop()
