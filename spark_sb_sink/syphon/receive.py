"""The first step: deliveries of one backlog queue, over a receiver that is opened again whenever it went.

A long poll goes on over an idle detach, and over the end of a run if the next one follows soon. An outage is waited out
here; a credential that is refused is told. Knows nothing of what the messages are.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from spark_sb_sink.errors import ClosedError, redact
from spark_sb_sink.faults import Fault, Kind, Phase, sort, symptom_of
from spark_sb_sink.syphon.shared import Shared
from spark_sb_sink.timing import Backoff
from spark_sb_sink.transport import Side
from spark_sb_sink.wire import IdleDetachedError, RawDelivery, RawReceiver

LONGEST_PAUSE = 30.0
"""Seconds between tries at a backlog queue that is out."""
LIVES = 1.0
"""Seconds that a link lives at least which the service detaches for being idle."""

_LOG = logging.getLogger(__name__)
T = TypeVar("T")


class RefusedRequestError(Exception):
    """The queue has answered, on a link that lives: not like this. Carries what it said."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault))
        self.fault = fault


class Intake:
    """The receiver of one backlog queue."""

    def __init__(self, queue: str, shared: Shared) -> None:
        self.queue = queue
        self.polls = 0
        """Long polls that were begun."""
        self._shared = shared
        self._receiver: RawReceiver | None = None
        self._opening = asyncio.Lock()
        self._pausing = asyncio.Lock()
        self._opened_at = 0.0
        self._poll_until: float | None = None
        self._backoff = Backoff(longest=LONGEST_PAUSE)

    @property
    def buffered(self) -> bool:
        """Whether messages came that nobody has received yet."""
        return self._receiver is not None and bool(self._receiver.buffered)

    @property
    def owed(self) -> bool:
        """Whether there are such, or credit for more."""
        return self._receiver is not None and self._receiver.owed

    @property
    def receiver(self) -> RawReceiver | None:
        return self._receiver

    async def receive(self, most: int, room: int) -> list[RawDelivery]:
        """What there is, up to so many, and not much more than so many bytes; nothing at the end of a long poll, or
        when the queue is out."""
        clock = asyncio.get_running_loop().time
        if self._poll_until is None:
            self._poll_until = clock() + self._shared.options.long_poll
            self.polls += 1
        while (left := self._poll_until - clock()) > 0:
            receiver: RawReceiver | None = None
            try:
                receiver = await self._open()
                found = await receiver.receive(most, left, room)
            except IdleDetachedError as error:
                # As the service does with idle links: the poll goes on over the next one, if that is let in and stays.
                if receiver is None or clock() - self._opened_at < LIVES:
                    await self._failed(error)
                continue
            except ClosedError:
                if self._shared.ended:
                    raise
                await self._shared.pair.clock.sleep(self._backoff.next())  # others have their turn, whatever closed it
                continue
            except Exception as error:  # noqa: BLE001 - every failure is sorted, none is lost
                await self._failed(error)
                continue
            self._backoff = Backoff(longest=LONGEST_PAUSE)
            if found:
                self._poll_until = None
                return found
        self._poll_until = None
        return []

    async def ask(self, request: Callable[[RawReceiver], Awaitable[T]]) -> T:
        """A request to the queue's management node. Raises `RefusedRequestError` where it answers that it will not.

        Where the link goes instead, the request is made again on the next one, and then the failure is raised.
        """
        for last in (False, True):
            receiver = await self._open()
            try:
                return await request(receiver)
            except IdleDetachedError:
                if last:
                    raise
            except ClosedError:
                if last or self._shared.ended:
                    raise
            except Exception as error:
                if not receiver.broken:
                    raise RefusedRequestError(sort(symptom_of(error, during=Phase.OPEN))) from error
                if last:
                    raise
        raise AssertionError  # one of the two turns returned or raised

    async def _open(self) -> RawReceiver:
        async with self._opening:
            if self._receiver is not None and self._receiver.broken:
                old, self._receiver = self._receiver, None
                await old.close()
            if self._receiver is None:
                receiver = self._shared.factory.receiver(self.queue)
                try:
                    await receiver.open()
                except BaseException:
                    await receiver.close()
                    raise
                self._receiver = receiver
                self._opened_at = asyncio.get_running_loop().time()
            return self._receiver

    async def _failed(self, error: Exception) -> None:
        fault = sort(symptom_of(error, during=Phase.OPEN))
        if fault.kind is Kind.MISCONFIGURED:
            await self._shared.fault(Side.SECONDARY, self.queue, fault)
            raise ClosedError(f"The receiver of {self.queue}") from error
        wait = max(fault.wait, self._backoff.next())
        _LOG.warning("backlog queue %s cannot be received from, next try in %.1f s: %s", self.queue, wait, fault)
        await self._shared.pair.clock.sleep(wait)

    async def pause(self) -> None:
        """Take the credit back for a time without receiving, and give back what nobody has received."""
        self._poll_until = None
        async with self._pausing:
            receiver = self._receiver
            if receiver is None or not receiver.owed:
                return
            try:
                await receiver.pause()
            except Exception as error:  # noqa: BLE001 - then it is thrown away, and its credit with it
                _LOG.debug("pausing %s: %s", self.queue, redact(repr(error)))
                if self._receiver is receiver:
                    self._receiver = None
                await receiver.close()

    async def close(self) -> None:
        self._poll_until = None
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            await receiver.close()
