"""Links over AMQP to both namespaces: the SDK's clients, with our own wire underneath. One event loop, one process."""

import asyncio
import contextlib
from collections.abc import Callable

from azure.servicebus.aio import ServiceBusClient

from spark_sb_sink.credentials import Access
from spark_sb_sink.options import Options
from spark_sb_sink.pair_life import PairLife
from spark_sb_sink.transport import Side
from spark_sb_sink.wire import RawReceiver, RawSender, check_sdk, ping_by_link

CLOSE_WITHIN = 3.0
"""Seconds that closing one side may take."""


class AmqpTransport:
    """Opens sender links within the send timeout. Senders are closed by who asked for them."""

    def __init__(self, options: Options, clock: Callable[[], float]) -> None:
        """Raises `IncompatibleSdkError`: later, in the middle of a send, it would be one more thing that failed."""
        check_sdk()
        self._timeout = options.send_timeout
        self._clock = clock
        self.life = PairLife()
        self._access = {Side.PRIMARY: Access(options.primary), Side.SECONDARY: Access(options.secondary)}
        self._clients: dict[Side, ServiceBusClient] = {}

    def _client(self, side: Side) -> ServiceBusClient:
        self.life.check(side)
        if side not in self._clients:
            self._clients[side] = self._access[side].service_bus_client()
        return self._clients[side]

    async def open(self, side: Side, path: str) -> RawSender:
        """Connect, authorise and attach, within the send timeout."""
        sender = RawSender(self._client(side), path, send_timeout=self._timeout, clock=self._clock)
        try:
            await sender.open()
        except BaseException:
            await sender.close()
            raise
        return sender

    def receiver(self, side: Side, queue: str) -> RawReceiver:
        """A receiver that is not open yet; opened and closed by who asked for it."""
        return RawReceiver(self._client(side), queue, timeout=self._timeout, clock=self._clock)

    async def ping_by_link(self, side: Side, path: str) -> None:
        """Attach and detach, send nothing."""
        await ping_by_link(self._client(side), path, timeout=self._timeout)

    async def end(self, side: Side, reason: str, *, fault: bool) -> None:
        """Close one side for good, in bounded time; never raises."""
        self.life.end(side, self._clock(), reason, fault=fault)
        client = self._clients.pop(side, None)
        if client is not None:
            # Whatever the other end does about it, this one is closed.
            with contextlib.suppress(Exception):
                async with asyncio.timeout(CLOSE_WITHIN):
                    await client.close()
        await self._access[side].close()

    async def close(self) -> None:
        """Close both sides, side by side."""
        await asyncio.gather(*(self.end(side, "it was closed", fault=False) for side in Side))
