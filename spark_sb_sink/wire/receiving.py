"""Deliveries from one queue in peek-lock, as the bytes that they are, and their settlement in ranges.

Credit is given for a receive and taken back at its end, so nothing waits locked in a buffer that nobody empties. The
local clock has no say in whether a lock still holds: the broker has.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusError

from spark_sb_sink.wire import sdk
from spark_sb_sink.wire.line import Line
from spark_sb_sink.wire.management import ManagementNode, RawDeferred, RawPeeked
from spark_sb_sink.wire.settling import (
    RELEASE,
    UNKNOWN,
    Outcome,
    SettleResult,
    delivery_state,
    ranges,
    result_of,
)
from spark_sb_sink.wire.transfer import SERIAL, named_ids, receive_raw, signed

GATHER = 0.25
"""Seconds that a receive which has something waits for the broker to say that there is no more."""
STEP = 300
"""Messages that are asked for at once: their sizes are not known before."""
_PAUSE = 0.02
"""Seconds without a delivery after which a receive with prefetch has all that there is just now."""
_LOOK = 15.0
"""Seconds after which a long receive looks after its token."""
_DETACH_FORCED = "amqp:link:detach-forced"


class IdleDetachedError(Exception):
    """The service detached the link, as it does with links idle for ten minutes. No fault: open another and go on."""


@dataclass(frozen=True, slots=True)
class RawDelivery:
    """A locked message; the id is good for the receiver that brought it, the tag is its lock token."""

    delivery_id: int
    tag: bytes
    payload: bytes

    @property
    def lock_token(self) -> UUID:
        """What the management node knows the lock by."""
        return UUID(bytes_le=self.tag)


class _Settlement:
    """One call to `settle`: what is still to be answered, and who waits for it."""

    def __init__(self, outcome: Outcome, ids: set[int], results: dict[int, SettleResult], done: Any) -> None:
        self.outcome, self.left, self.results, self.done = outcome, ids, results, done

    def answer(self, delivery_id: int, state: Any) -> None:
        self.results[delivery_id] = result_of(state, self.outcome.action)
        self.left.discard(delivery_id)
        if not self.left and not self.done.done():
            self.done.set_result(None)


class RawReceiver:
    """A receiver link to one queue. One coroutine may receive while others settle or ask the management node.

    `timeout` bounds each call but `receive`, which ends with its own `max_wait`. With `prefetch` the broker may send so
    many deliveries ahead of the calls to `receive`; their locks run from then on.
    """

    def __init__(
        self,
        client: ServiceBusClient,
        queue: str,
        *,
        timeout: float = 10.0,
        prefetch: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # To the SDK a prefetch of 0 means a keep-alive task that reads, and gives back what it finds.
        self._line = Line(client.get_queue_receiver(queue, prefetch_count=1, keep_alive=0), queue, timeout)
        self._management = ManagementNode(self._line)
        self._prefetch = prefetch
        self._clock = clock
        self._buffer: deque[RawDelivery] = deque()
        self._unsettled: set[int] = set()
        self._settling: dict[int, _Settlement] = {}
        self._arrival: asyncio.Future[Any] | None = None
        self._drained: asyncio.Future[Any] | None = None
        self.queue = queue
        self.last_used = clock()

    @property
    def broken(self) -> bool:
        return self._line.broken

    @property
    def unsettled(self) -> int:
        """How many deliveries came and were not settled, those not yet received among them."""
        return len(self._unsettled)

    @property
    def buffered(self) -> int:
        """How many of them were not yet received."""
        return len(self._buffer)

    @property
    def owed(self) -> bool:
        """Whether there are such, or credit for more."""
        return bool(self._buffer) or (self._line.live and self._line.link.current_link_credit > 0)

    async def open(self) -> None:
        with _reopenable(self.queue):
            await self._line.open(self._prepare)
        self.last_used = self._clock()

    def _prepare(self, link: Any) -> None:
        receive_raw(link, self._on_transfer)
        link._incoming_disposition = self._on_disposition
        link._incoming_flow = self._on_flow

    async def receive(self, max_count: int, max_wait: float, max_bytes: int | None = None) -> list[RawDelivery]:
        """What there is, up to `max_count`, as soon as there is something; nothing after `max_wait` seconds.

        No more is asked for once `max_bytes` are there; what was asked for before comes all the same, `STEP` at most.
        Raises `IdleDetachedError` when the service has detached the link for being idle.
        """
        with _reopenable(self.queue):
            self._line.check()
            until = asyncio.get_running_loop().time() + max_wait
            if self._prefetch:
                await self._wait(1, until, max(max_count, self._prefetch))
                if self._buffer:
                    await self._wait(max_count, asyncio.get_running_loop().time() + _PAUSE, self._prefetch)
            else:
                await self._take(max_count, until, max_bytes)
        self.last_used = self._clock()
        return [self._buffer.popleft() for _ in range(min(max_count, len(self._buffer)))]

    async def _take(self, max_count: int, until: float, max_bytes: int | None) -> None:
        """Fill the buffer step by step, as nobody knows how large messages are before they came."""
        wanted = min(max_count, STEP)
        await self._wait(1, until, wanted)
        if self._line.link.current_link_credit > 0:
            await self._drain()
        while len(self._buffer) >= wanted and wanted < max_count:
            if max_bytes is not None and sum(len(delivery.payload) for delivery in self._buffer) >= max_bytes:
                return
            wanted = min(max_count, wanted + STEP)
            async with self._line.deadline("credit could not be given"):
                await self._line.authorise()
            await self._drain(credit=wanted - len(self._buffer))

    async def _wait(self, count: int, until: float, credit: int) -> None:
        """Wait for so many deliveries in the buffer, with credit given, not beyond a time of the loop's clock."""
        loop = asyncio.get_running_loop()
        while True:
            await self._give_credit(credit - len(self._buffer))
            left = until - loop.time()
            if len(self._buffer) >= count or left <= 0:
                return
            self._arrival = self._line.expect()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left, _LOOK)):
                    await self._arrival

    async def _give_credit(self, credit: int) -> None:
        link = self._line.link
        async with self._line.deadline("credit could not be given"):
            await self._line.authorise()
            if credit > link.current_link_credit:
                await link.flow(link_credit=credit)

    async def _drain(self, within: float = GATHER, credit: int | None = None) -> None:
        """Let the broker use the credit for what it has just now, and give back the rest."""
        link = self._line.link
        self._drained = self._line.expect()
        async with self._line.deadline("credit could not be taken back"):
            await link.flow(link_credit=link.current_link_credit if credit is None else credit, drain=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._drained

    async def pause(self) -> None:
        """Take the credit back and give back what was not received yet, for a time without receiving."""
        with _reopenable(self.queue):
            self._line.check()
            if self._line.link.current_link_credit > 0:
                await self._drain(self._line.timeout)
                if self._line.link.current_link_credit > 0:
                    self._line.broken = True  # more may come at any time, and nobody would look after it
                    raise TimeoutError(f"{self.queue}: credit was not given back within {self._line.timeout:g} s")
            waiting = list(self._buffer)
            self._buffer.clear()
            await self.settle(waiting, RELEASE)

    async def settle(self, deliveries: Iterable[RawDelivery], outcome: Outcome) -> dict[int, SettleResult]:
        """Settle deliveries of this receiver, in as few frames as their ids allow; each gets its own answer.

        What was not answered, because the time was up or the link went, is unknown; this does not raise for it.
        """
        results = {delivery.delivery_id: UNKNOWN for delivery in deliveries}
        ids = self._unsettled.intersection(results)
        self._unsettled -= ids
        if not ids or self._line.broken:
            return results
        settlement = _Settlement(outcome, set(ids), results, self._line.expect())
        self._settling.update(dict.fromkeys(ids, settlement))
        try:
            async with self._line.deadline("settlements were not confirmed"):
                await self._line.authorise()
                await self._dispose(ids, outcome, settled=False)
                await settlement.done
        except (ServiceBusError, TimeoutError):
            pass  # the line is broken now, and the results say what is known
        finally:
            for delivery_id in settlement.left:
                self._settling.pop(delivery_id, None)
        self.last_used = self._clock()
        return results

    async def _dispose(self, ids: Iterable[int], outcome: Outcome, *, settled: bool) -> None:
        state = delivery_state(outcome)
        for first, last in ranges(ids):
            frame = sdk.DispositionFrame(
                role=sdk.Role.Receiver, first=first, last=last, settled=settled, state=state, batchable=None
            )
            await self._line.session._outgoing_disposition(frame)

    async def peek(self, from_sequence: int, count: int) -> list[RawPeeked]:
        """Messages from a sequence number on, at most 250, whatever their state; nothing is locked."""
        with _reopenable(self.queue):
            return await self._management.peek(from_sequence, count)

    async def receive_deferred(self, sequence_numbers: Sequence[int]) -> list[RawDeferred]:
        """Lock deferred messages. Fails as a whole if one of them is locked or gone."""
        with _reopenable(self.queue):
            return await self._management.receive_deferred(sequence_numbers)

    async def settle_deferred(self, lock_tokens: Sequence[UUID], outcome: Outcome) -> None:
        """Settle by lock token, also what another link had received. Fails as a whole if one lock is lost."""
        with _reopenable(self.queue):
            await self._management.settle(lock_tokens, outcome)

    async def renew_locks(self, lock_tokens: Sequence[UUID]) -> list[float]:
        """Until when each is locked now, in seconds since 1970 by the service's clock. Fails as a whole."""
        with _reopenable(self.queue):
            return await self._management.renew_locks(lock_tokens)

    async def close(self) -> None:
        """Give back what was not settled, and close, in two seconds at most; never raises."""
        await self._line.close(before=self._give_back)
        for settlement in set(self._settling.values()):
            self._wake(settlement.done)  # no answer comes any more
        self._buffer.clear()
        self._unsettled.clear()

    async def _give_back(self) -> None:
        if self._line.link.current_link_credit > 0:
            await self._drain()
        await self._dispose(self._unsettled, RELEASE, settled=True)

    def _on_transfer(self, delivery_id: int, tag: bytes, payload: bytes) -> None:
        self._buffer.append(RawDelivery(delivery_id, tag, payload))
        self._unsettled.add(delivery_id)
        self._wake(self._arrival)
        if self._line.link.current_link_credit <= 0:
            self._wake(self._drained)

    @staticmethod
    def _wake(future: "asyncio.Future[Any] | None") -> None:
        if future is not None and not future.done():
            future.set_result(None)

    async def _on_flow(self, frame: Any) -> None:
        # The sender's count is ahead of ours by the credit that it gave back.
        link, count = self._line.link, frame[5]
        if frame[4] is None or count is None:
            return
        given_back = signed((count - link.delivery_count) & SERIAL)
        if given_back > 0:
            link.delivery_count = count & SERIAL
            link.current_link_credit -= given_back
        if link.current_link_credit <= 0:
            self._wake(self._drained)
            self._wake(self._arrival)

    async def _on_disposition(self, frame: Any) -> None:
        role, first, last, settled, state = frame[:5]
        if role != sdk.Role.Sender or not settled or not self._settling:
            return
        for number in named_ids(first, last, self._settling):
            self._settling.pop(number).answer(number, state)


@contextlib.contextmanager
def _reopenable(queue: str) -> Iterator[None]:
    try:
        yield
    except ServiceBusError as error:
        if error._condition == _DETACH_FORCED:
            raise IdleDetachedError(f"the service has detached the idle link to {queue}") from error
        raise
