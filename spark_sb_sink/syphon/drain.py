"""Empties backlog queues into the primary, run by run; kept in the process between runs, with its links.

    drain_for(options, folder, queues=[0, 1, 2]).run(for_seconds=10) → Report

A run ends with nothing in hand: what was received is sent and settled, or given back. Only idle long polls go on, and
those not for long: Spark may ask another process next time, and credit left behind would keep messages from it.
"""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent import futures
from os import PathLike

from spark_sb_sink.errors import ClosedError, redact
from spark_sb_sink.factory import PairedFactory, factory_for
from spark_sb_sink.options import Options
from spark_sb_sink.pair_life import GRACE
from spark_sb_sink.syphon.queue_drain import LINGER, QueueDrain
from spark_sb_sink.syphon.rate import Bucket
from spark_sb_sink.syphon.receipts import Report
from spark_sb_sink.syphon.shared import Shared

FINISH_WITHIN = 3.0
"""Seconds for what a run has in hand at its end to be sent; the rest is given back."""
LEAST_ROOM = 1024 * 1024
_LOOK = 0.02
_LOG = logging.getLogger(__name__)


async def _wait(condition: Callable[[], bool], seconds: float | None) -> None:
    """Until the condition holds or the time is up. Polled: what it asks after lives in many places."""
    loop = asyncio.get_running_loop()
    end = None if seconds is None else loop.time() + seconds
    while not condition() and (end is None or loop.time() < end):  # noqa: ASYNC110
        await asyncio.sleep(_LOOK if end is None else max(0.0, min(_LOOK, end - loop.time())))


class Drain:
    """Serves several backlog queues at once. For one caller at a time."""

    def __init__(
        self,
        factory: PairedFactory,
        queues: Sequence[str],
        *,
        bucket: Bucket | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`queues` are paths in the secondary."""
        self.factory = factory
        self._turn = threading.Lock()
        self._bucket = bucket or Bucket(factory.options.max_rate)
        self._wall_clock = wall_clock
        self._lingering: asyncio.Task[None] | None = None
        self._giving_up = False
        self._shared, self.queues = factory.run(self._set_up(tuple(queues)))

    async def _set_up(self, queues: tuple[str, ...]) -> tuple[Shared, tuple[QueueDrain, ...]]:
        shared = Shared(self.factory, self._bucket, self._wall_clock)
        room = max(LEAST_ROOM, self.factory.options.max_in_flight // max(1, len(queues)))
        return shared, tuple(QueueDrain(queue, shared, room) for queue in queues)

    @property
    def closed(self) -> bool:
        return self._shared.ended

    @property
    def has_news(self) -> bool:
        """Whether the run has receipts by now."""
        return self._shared.ledger.has_some

    @property
    def refusing(self) -> tuple[str, ...]:
        """Entities that refuse our claim."""
        return tuple(self._shared.refused)

    @property
    def polls(self) -> int:
        """Long polls begun so far, over all queues."""
        return sum(queue.intake.polls for queue in self.queues)

    def run(self, for_seconds: float | None = None, until: Callable[[], bool] | None = None) -> Report:
        """Move messages for some time, or until the condition holds, and say what became of them.

        The condition is looked at often, by the thread that calls. Raises `FaultedError` once a credential was refused,
        never for an outage. Entities that refuse our claim stand in the report, and are
        tried again with a few messages once a ping interval. What a run that raises had moved is in `untold`.
        """
        if for_seconds is None and until is None:
            raise ValueError("a run needs an end: for_seconds, or until")
        stop = threading.Event()
        with self._turn:
            running = self.factory.submit(self._run(for_seconds, stop.is_set))
            try:
                while until is not None and not running.done() and not until():
                    futures.wait((running,), _LOOK)
            finally:
                if until is not None:
                    stop.set()
            return running.result()

    async def _run(self, for_seconds: float | None, until: Callable[[], bool]) -> Report:
        shared = self._shared
        await self._resume()
        if shared.ended:
            await self._end_by_fault()
        for queue in self.queues:
            queue.start()
        shared.sending.set()
        shared.receiving.set()
        try:
            await _wait(lambda: until() or shared.ended, for_seconds)
        finally:
            shared.receiving.clear()
            await self._come_to_rest()
            self._linger()
        if shared.ended:
            await self._end_by_fault()
        return shared.ledger.take(shared.refusals())

    async def _come_to_rest(self) -> None:
        if not self._shared.ended:
            await _wait(lambda: self.at_rest, FINISH_WITHIN)
        # Idle polls go on; those of queues with something to give back end.
        await asyncio.gather(*(queue.stop_receiving() for queue in self.queues if not queue.at_rest))
        self._shared.sending.clear()
        # An attempt ends by the send timeout, and so does a settlement.
        bound = 0.0 if self._shared.ended else 3 * self.factory.options.send_timeout
        await _wait(lambda: self.at_rest, bound)

    def _linger(self) -> None:
        if not self._shared.ended and self._lingering is None:
            self._lingering = asyncio.get_running_loop().create_task(self._give_up())

    async def _give_up(self) -> None:
        """Where no run follows, take the polls back with their links."""
        await self._shared.pair.clock.sleep(LINGER)
        await _wait(lambda: self.at_rest, None)
        if not self._shared.sending.is_set():
            self._giving_up = True
            try:
                await asyncio.gather(*(queue.give_up() for queue in self.queues))
            finally:
                self._giving_up = False

    async def _resume(self) -> None:
        """The polls are wanted after all; what is being given up is given up whole."""
        lingering, self._lingering = self._lingering, None
        if lingering is not None:
            if not self._giving_up:
                lingering.cancel()
            await asyncio.gather(lingering, return_exceptions=True)

    async def _end_by_fault(self) -> None:
        """The other side follows five seconds later; only then is it known how both ended."""
        bound = 2 * GRACE + 4 * self.factory.options.send_timeout
        await _wait(lambda: self.factory.faulted() is not None, bound)
        await self._close()
        raise self.factory.faulted() or ClosedError("The drain", reason="a side of the pair came to its end")

    def untold(self) -> Report:
        """Receipts of a run that raised, once."""
        return self._shared.ledger.take()

    def limit(self, rate: float | None) -> None:
        """From now on no more messages a second than that."""
        self._bucket.rate = rate

    def look(self, most: int) -> dict[str, int | None]:
        """How many messages each queue holds, active, deferred or locked; counted up to so many.

        None for a queue that could not be looked at: an outage of the secondary is waited out, here as well.
        """
        return self.factory.run(self._look(most))

    async def _look(self, most: int) -> dict[str, int | None]:
        await self._resume()
        try:
            counts = await asyncio.gather(*(self._count(queue, most) for queue in self.queues))
        finally:
            if not self._shared.sending.is_set():
                self._linger()
        return {queue.queue: count for queue, count in zip(self.queues, counts, strict=True)}

    @staticmethod
    async def _count(queue: QueueDrain, most: int) -> int | None:
        start = count = 0
        try:
            while count < most and (page := await queue.intake.ask(lambda receiver: receiver.peek(start, 250))):  # noqa: B023
                start = page[-1].sequence_number + 1
                count += len(page)
                queue.deferred.notice(page)
        except ClosedError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody may take this queue for empty
            _LOG.warning("backlog queue %s cannot be looked at: %s", queue.queue, redact(repr(error)))
            return None
        return count

    @property
    def at_rest(self) -> bool:
        """Nothing is in hand."""
        return all(queue.at_rest for queue in self.queues)

    def close(self) -> None:
        """Give back what is not settled and close the receivers. The factory stays: it is not ours."""
        if not self.factory.closed:
            self.factory.run(self._close())

    async def _close(self) -> None:
        await self._resume()
        self._shared.receiving.clear()
        self._shared.sending.clear()
        await asyncio.gather(*(queue.close() for queue in self.queues))


_DRAINS: dict[tuple[int, str, str, tuple[str, ...]], Drain] = {}
_BUCKETS: dict[tuple[int, str], Bucket] = {}
_LOCK = threading.Lock()


def _after_fork() -> None:
    """A child has the parent's drains in memory, but not the loop that they live in."""
    global _LOCK
    _LOCK = threading.Lock()
    _DRAINS.clear()
    _BUCKETS.clear()


os.register_at_fork(after_in_child=_after_fork)


def drain_for(options: Options, folder: str | PathLike[str], queues: Sequence[int]) -> Drain:
    """The drain of this process for backlog queues of these numbers, with the board in the executor's folder."""
    paths = tuple(f"{options.backlog_path}{number}" for number in queues)
    key = (os.getpid(), options.digest(), os.fspath(folder), paths)
    with _LOCK:
        found = _DRAINS.get(key)
        if found is None or found.closed:
            bucket = _BUCKETS.setdefault(key[:2], Bucket(options.max_rate))
            found = _DRAINS[key] = Drain(factory_for(options, folder, "syphon"), paths, bucket=bucket)
        return found
