"""An event loop in a daemon thread of its own. Nobody waits for ever: not for a loop that died, not for its threads."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from spark_sb_sink.errors import ClosedError

CANCEL_WITHIN = 2.0
"""Seconds that the tasks of a loop that died have to let go of what they hold."""

_LOG = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")


class LoopThread:
    """Runs coroutines. `what` it belongs to is named in errors and logs."""

    def __init__(self, name: str, what: str) -> None:
        self._what = what
        self._gate = threading.Lock()
        self._promised: set[Future[Any]] = set()
        self._over = self._stopping = False
        self.loop = asyncio.new_event_loop()
        self.loop.set_default_executor(_ThreadEach())
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether it runs what it is given."""
        return not self._over and self._thread.is_alive()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            with self._gate:
                self._over = True
                promised = list(self._promised)
            for future in promised:
                with contextlib.suppress(InvalidStateError):
                    future.set_exception(ClosedError(self._what, reason="its event loop ended"))
            if not self._stopping:
                _LOG.error("the event loop of %s died; what it had in hand ends with an error", self._what)
                self._cancel_all()

    def _cancel_all(self) -> None:
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            with contextlib.suppress(BaseException):  # nobody can do anything about it
                self.loop.run_until_complete(asyncio.wait(tasks, timeout=CANCEL_WITHIN))

    def submit(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Run a coroutine. Its future has an outcome also if the loop ends before it has one: a `ClosedError`."""
        with self._gate:
            if not self._over:
                future = asyncio.run_coroutine_threadsafe(work, self.loop)
                self._promised.add(future)
                future.add_done_callback(self._promised.discard)
                return future
        work.close()
        raise ClosedError(self._what, reason="its event loop ended")

    def close(self, within: float) -> None:
        """End the loop and its thread; one that does not end in time is left to the process."""
        self._stopping = True
        if self.loop.is_closed():
            return
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(within)
        if not self._thread.is_alive():
            self.loop.close()


class _ThreadEach(ThreadPoolExecutor):
    """A daemon thread for each call, in practice for the lookup of a name. (A loop takes no other kind of executor.)

    A lookup that hangs keeps its thread long after its deadline. Among a bounded number of them, those of one namespace
    would keep the other's waiting; and for the threads of a pool, a process waits when it ends.
    """

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - handed to whoever waits, whatever it is
                future.set_exception(error)
            else:
                future.set_result(result)

        threading.Thread(target=run, name="spark-sb-sink-blocking", daemon=True).start()
        return future
