"""The paired factory of a worker process: both namespaces, their links, the board and pings, in a loop of its own.

What `MessagingFactory.PairNamespaceAsync` gave, for the process that asks. Made after the fork and kept from
micro-batch to micro-batch; a process that was forked from one that had it makes its own.
"""

import asyncio
import contextlib
import logging
import os
import random
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from os import PathLike
from typing import Any, TypeVar

from spark_sb_sink.amqp_transport import AmqpTransport
from spark_sb_sink.board import Board
from spark_sb_sink.errors import ClosedError, FaultedError, redact
from spark_sb_sink.failover import StateChange
from spark_sb_sink.links import Links
from spark_sb_sink.loop_thread import LoopThread
from spark_sb_sink.options import Options
from spark_sb_sink.pings import Pinger
from spark_sb_sink.reports import EntityReport
from spark_sb_sink.sender import Pair, PairedSender
from spark_sb_sink.timing import Clock, MonotonicClock
from spark_sb_sink.transport import Side, Transport
from spark_sb_sink.wire import RawReceiver

WHAT = "The paired factory"
CLOSE_WITHIN = 4.0
"""Seconds for each step of closing; links and sides bound theirs tighter, so this is for what nobody thought of."""
CANCEL_AGAIN = 1.0
"""Seconds after which what was cancelled and goes on is cancelled again: see `wire.deadline`."""
CLOSE_ENDED_AFTER = 60.0
"""Seconds that a factory with a side at its end is kept after it was replaced: who works with it hears how it ended."""
RECYCLE_EVERY = 15.0
WATCH_EVERY = 1.0

_LOG = logging.getLogger(__name__)
T = TypeVar("T")


class PairedFactory:
    """Senders to a pair of namespaces. Safe for threads: all work is done in the factory's own loop."""

    def __init__(
        self,
        options: Options,
        board: Board,
        *,
        clock: Clock | None = None,
        transport: Callable[[], Transport] | None = None,
        rng: random.Random | None = None,
        on_change: Callable[[StateChange], None] = lambda change: None,
    ) -> None:
        self.options = options
        self.board = board
        self._clock = clock or MonotonicClock()
        self._make_transport = transport or (lambda: AmqpTransport(options, self._clock.now))
        self._rng = rng or random.Random()
        self._on_change = on_change
        self._closed = False
        self._gate = threading.Lock()
        self._pid = os.getpid()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._thread = LoopThread("spark-sb-sink", WHAT)
        try:
            self._pair = self.run(self._set_up())
        except BaseException:
            self._end_loop()
            raise

    async def _set_up(self) -> Pair:
        self._transport = self._make_transport()
        self._links = Links(self._transport, self.options.max_links, self._clock.now)
        pinger = Pinger(
            self._links,
            self._transport,
            self.board,
            self.options.ping,
            self._clock,
            self._on_change,
            deadline=self.options.send_timeout,
        )
        for work in (pinger.run(), self._recycle(), self._watch()):
            task = asyncio.create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._ended)
        return Pair(
            links=self._links,
            board=self.board,
            pinger=pinger,
            clock=self._clock,
            rng=self._rng,
            failover_interval=self.options.failover_interval,
            backlog_path=self.options.backlog_path,
            primary=self.options.primary.host,
            secondary=self.options.secondary.host,
        )

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _LOG.error("a background task of the paired factory ended: %s", redact(repr(task.exception())))

    async def _recycle(self) -> None:
        while True:
            await self._clock.sleep(RECYCLE_EVERY)
            await self._links.recycle()

    async def _watch(self) -> None:
        """A side that came to its end takes the other with it."""
        while isinstance(self._transport, AmqpTransport):
            await self._clock.sleep(WATCH_EVERY)
            overdue = self._transport.life.overdue(self._clock.now())
            if overdue is not None:
                await self._end(overdue, "the other side came to its end", fault=True)

    async def _end(self, side: Side, reason: str, *, fault: bool) -> None:
        if isinstance(self._transport, AmqpTransport):
            # First, so that nobody opens a link while the old ones are closed.
            self._transport.life.end(side, self._clock.now(), reason, fault=fault)
            await self._links.drop(side)
            await self._transport.end(side, reason, fault=fault)

    def end(self, side: Side, reason: str, *, fault: bool) -> None:
        """One side has come to its end for good; never for an outage. The other follows five seconds later."""
        self.run(self._end(side, reason, fault=fault))

    async def fault(self, side: Side, reason: str) -> None:
        """As `end`, for those who are in the factory's loop: a side faulted for good, its credential refused say."""
        await self._end(side, reason, fault=True)

    @property
    def pair(self) -> Pair:
        """What senders share; for use in the factory's loop."""
        return self._pair

    def receiver(self, queue: str) -> RawReceiver:
        """A receiver of a queue in the secondary, not open yet; for use in the factory's loop."""
        return self._amqp().receiver(Side.SECONDARY, queue)

    def faulted(self) -> FaultedError | None:
        """What to end with once both sides have ended by a fault: which went first, and why."""
        return self._amqp().life.error()

    def _amqp(self) -> AmqpTransport:
        if not isinstance(self._transport, AmqpTransport):
            raise TypeError("only a factory over AMQP receives")
        return self._transport

    @property
    def closed(self) -> bool:
        """Whether it can be used no more: closed, or its loop is dead (as in a child that was forked)."""
        return self._closed or os.getpid() != self._pid or not self._thread.alive

    @property
    def ended(self) -> bool:
        """Whether a side has come to its end, so that the other ends too, or has."""
        return isinstance(self._transport, AmqpTransport) and bool(self._transport.life.ends)

    def submit(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Run a coroutine in the factory's loop. If the factory is closed meanwhile, it ends with a `ClosedError`."""
        if os.getpid() == self._pid:  # in a forked child the gate may be shut for ever
            with self._gate:
                if not self.closed:
                    with contextlib.suppress(ClosedError):  # its loop died just now
                        return self._thread.submit(self._at_work(work))
        work.close()
        raise ClosedError(WHAT)

    async def _at_work(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        try:
            return await work
        except asyncio.CancelledError:
            if self._closed:
                raise ClosedError(WHAT) from None
            raise

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the factory's loop and wait for its result."""
        return self.submit(work).result()

    def sender(
        self, entity: str, *, left: Callable[[int], None] = lambda size: None, missing_is_down: bool = False
    ) -> PairedSender:
        """A sender for one entity; its coroutines run in the factory's loop."""
        partitioned = entity in self.options.partitioned
        return PairedSender(entity, self._pair, partitioned=partitioned, left=left, missing_is_down=missing_is_down)

    def send(self, messages: Mapping[str, Sequence[bytes]]) -> dict[str, EntityReport]:
        """Send encoded messages to their entities, side by side, and wait for what becomes of them."""

        async def one(entity: str, stream: Sequence[bytes]) -> EntityReport:
            sender = self.sender(entity)
            await sender.send(stream)
            return sender.report()

        async def all_of() -> list[EntityReport | BaseException]:
            lanes = (one(entity, stream) for entity, stream in messages.items())
            return await asyncio.gather(*lanes, return_exceptions=True)

        reports = {}
        for report in self.run(all_of()):
            if isinstance(report, BaseException):  # not for the outcome of a send: closed, or the board is lost
                raise report
            reports[report.entity] = report
        return reports

    def close(self) -> None:
        """Close both sides, in bounded time, whatever they do. May be called more than once."""
        if os.getpid() != self._pid:
            return
        with self._gate:
            if self._closed:
                return
            alive, self._closed = not self.closed, True
        if alive:
            try:
                self._thread.submit(self._shut_down()).result(4 * CLOSE_WITHIN)
            except ClosedError:
                pass  # its loop died just now
            except TimeoutError:
                _LOG.warning("the paired factory did not close in time; its sockets end with the process")
        self._end_loop()

    async def _shut_down(self) -> None:
        await _cancel(self._tasks)
        for closing in (self._links.close(), self._transport.close()):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_WITHIN):
                    await closing
        await _cancel(asyncio.all_tasks())

    def _end_loop(self) -> None:
        self._closed = True
        self._thread.close(CLOSE_WITHIN)


async def _cancel(tasks: set[asyncio.Task[Any]]) -> None:
    """Cancel all but the one that asks, in bounded time."""
    left = tasks - {asyncio.current_task()}
    try:
        async with asyncio.timeout(CLOSE_WITHIN):
            while left:
                for task in left:
                    task.cancel()
                _, left = await asyncio.wait(left, timeout=CANCEL_AGAIN)
    except TimeoutError:
        _LOG.warning("%d tasks of the paired factory do not end", len(left))


_FACTORIES: dict[tuple[int, str, str, str], PairedFactory] = {}
_LOCK = threading.Lock()


def _after_fork() -> None:
    """A child has the parent's factories in memory, but neither their threads nor, for sure, a free lock."""
    global _LOCK
    _LOCK = threading.Lock()
    _FACTORIES.clear()


os.register_at_fork(after_in_child=_after_fork)


def factory_for(options: Options, folder: str | PathLike[str], role: str = "sink") -> PairedFactory:
    """The factory of this process for these options and this role, with the board in the executor's folder.

    Roles share what is known of entities, and nothing that may end: a syphon's fault is none of the sink's.
    """
    key = (os.getpid(), options.digest(), os.fspath(folder), role)
    with _LOCK:
        found = _FACTORIES.get(key)
        if found is not None and found.ended and not found.closed:
            _close_later(found)
        if found is None or found.closed or found.ended:
            found = _FACTORIES[key] = PairedFactory(options, Board.for_executor(folder, options))
        return found


def _close_later(factory: PairedFactory) -> None:
    def close() -> None:
        factory.close()
        factory.board.close()

    timer = threading.Timer(CLOSE_ENDED_AFTER, close)
    timer.daemon = True
    timer.start()
