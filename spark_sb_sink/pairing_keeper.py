"""Pairing as the option `pairing` has it: required, best-effort, or assumed.

With best-effort a secondary that is out is a warning, and pairing is tried again each minute until it works, so that a
sick backup does not stop a healthy pipeline from starting. How pairing is done is in `pairing`.
"""

import asyncio
import logging
from collections.abc import Callable

from spark_sb_sink.durations import format_duration
from spark_sb_sink.errors import ClosedError, PairingError, SecondaryUnreachableError
from spark_sb_sink.options import Options, Pairing
from spark_sb_sink.pairing import Paired, pair_async
from spark_sb_sink.timing import Clock, MonotonicClock

TRY_AGAIN = 60.0
"""Seconds from the start of one try to that of the next."""
_LOG = logging.getLogger(__name__)

MAY_PASS = (SecondaryUnreachableError,)
"""What passes without anybody doing anything about it."""


class PairingKeeper:
    """Pairs once, or until it works. Belongs to one event loop."""

    def __init__(
        self, options: Options, *, clock: Clock | None = None, on_paired: Callable[[Paired], None] | None = None
    ) -> None:
        self._options = options
        self._clock = clock or MonotonicClock()
        self._on_paired = on_paired
        self._task: asyncio.Task[Paired] | None = None
        self._stopped = False
        self.paired: Paired | None = None
        """The outcome, once there is one."""
        self.last_error: PairingError | None = None
        """Why there is none, while there is none."""

    async def start(self) -> Paired | None:
        """Pair. None only with best-effort, when the secondary is out; then tries go on in the background."""
        started = self._clock.now()
        if await self._try():
            return self.paired
        self._task = asyncio.create_task(self._keep_trying(started), name="spark-sb-sink-pairing")
        self._task.add_done_callback(self._ended)
        return None

    async def wait(self) -> Paired:
        """The outcome, whenever it comes; raises what ended the tries, and `ClosedError` after `stop`."""
        if self.paired is not None:
            return self.paired
        if self._task is None or self._stopped:
            raise ClosedError(f"Pairing with {self._options.secondary.host}")
        await asyncio.wait([self._task])
        if self._task.cancelled():
            raise ClosedError(f"Pairing with {self._options.secondary.host}")
        return self._task.result()

    def check(self) -> None:
        """Raises the error that ended the tries in the background, if one did."""
        if self._task is not None and self._task.done() and not self._task.cancelled():
            self._task.result()

    async def stop(self) -> None:
        """Try no more."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _keep_trying(self, started: float) -> Paired:
        while self.paired is None:
            await self._clock.sleep(max(0.0, started + TRY_AGAIN - self._clock.now()))
            started = self._clock.now()
            await self._try()
        return self.paired

    async def _try(self) -> bool:
        try:
            self.paired = await pair_async(self._options)
        except PairingError as error:
            self.last_error = error
            if self._options.pairing is not Pairing.BEST_EFFORT or not isinstance(error, MAY_PASS):
                raise
            _LOG.warning(
                "NO BACKLOG YET: with pairing = best-effort the pipeline runs without its backlog queues in %s, and "
                "what fails over has nowhere to go. Pairing is tried again every %s. Why it failed: %s",
                self._options.secondary.host,
                format_duration(TRY_AGAIN),
                error,
            )
            return False
        self.last_error = None
        if self._on_paired is not None:
            self._on_paired(self.paired)
        return True

    def _ended(self, task: asyncio.Task[Paired]) -> None:
        if task.cancelled():
            return
        error = task.exception()  # asked for here, as nobody may ever call check or wait
        if error is not None:
            _LOG.error("Pairing is not tried again: %s", error)
        else:
            _LOG.warning("Paired with %s at last; the backlog can be used.", self._options.secondary.host)
