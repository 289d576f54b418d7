"""What calls of the aio SDK come to, in words: for tests of faults, on links that are open and on new ones."""

import asyncio
import re
import uuid
from collections.abc import Awaitable
from dataclasses import astuple, dataclass
from typing import Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from spark_sb_sink.broker import NamespaceHandle
from spark_sb_sink.wire.deadline import Deadline
from tests.broker.sdk import HastyAioClient

PATIENCE = 1.0
"""Seconds after which a call that is expected to hang counts as one that does."""


class QuickClient(HastyAioClient):
    """Closes its links side by side: each takes the SDK up to a second, in which its keep-alive task wakes up."""

    async def close(self) -> None:
        await asyncio.gather(*(handler.close() for handler in list(self._handlers)))
        await super().close()


def quick(namespace: NamespaceHandle, **more: Any) -> ServiceBusClient:
    return QuickClient.from_connection_string(namespace.connection_string, retry_total=0, **more)


def message(message_id: str | None = None, size: int = 4) -> ServiceBusMessage:
    return ServiceBusMessage(b"x" * size, message_id=message_id or uuid.uuid4().hex)


def words(error: BaseException) -> str:
    """The class of the error, with the status that `$cbs` answered or the AMQP condition where there is one."""
    name = type(error).__name__
    status = getattr(getattr(error, "inner_exception", None), "status_code", None)
    if status is not None:
        return f"{name} {int(status)}"
    condition = re.search(r"Error condition: ([^ ]+)\.( |$)", str(error))
    return f"{name} {condition[1]}" if condition else name


async def outcome(call: Awaitable[str], within: float = 30.0) -> str:
    """What a call came to: its own word, or the error that it raised."""
    try:
        async with Deadline(within):  # a plain wait_for can lose its one cancellation in the SDK, and hang
            return await call
    except Exception as error:  # noqa: BLE001 - which one it is, is what the tests are about
        return words(error)


@dataclass(frozen=True)
class Came:
    """What the four calls on an entity came to."""

    open_send: str = "sent"
    new_send: str = "sent"
    open_receive: str = "received"
    new_receive: str = "received"


class Links:
    """A sender and a receiver on a queue that are open, and others that are opened for one call."""

    def __init__(self, client: ServiceBusClient, queue: str) -> None:
        self.client = client
        self.queue = queue
        self.sender = client.get_queue_sender(queue)
        self.receiver = client.get_queue_receiver(queue)

    async def open(self) -> "Links":
        """Open both for certain, and leave enough behind for what is received later."""
        await self.sender.send_messages([message() for _ in range(9)])
        assert await self.receiver.receive_messages(1, max_wait_time=20)
        return self

    async def send(self) -> str:
        await self.sender.send_messages(message())
        return "sent"

    async def send_anew(self) -> str:
        async with self.client.get_queue_sender(self.queue) as sender:
            await sender.send_messages(message())
        return "sent"

    async def receive(self) -> str:
        return "received" if await self.receiver.receive_messages(1, max_wait_time=20) else "nothing"

    async def receive_anew(self) -> str:
        async with self.client.get_queue_receiver(self.queue) as receiver:
            return "received" if await receiver.receive_messages(1, max_wait_time=20) else "nothing"

    async def try_all(self, expected: Came) -> Came:
        """What the calls come to, at once. Only a call that is expected to hang is given little time."""
        calls = (self.send(), self.send_anew(), self.receive(), self.receive_anew())
        times = (PATIENCE if word == "TimeoutError" else 30.0 for word in astuple(expected))
        return Came(*await asyncio.gather(*map(outcome, calls, times)))


async def two_open(client: ServiceBusClient, namespace: NamespaceHandle, name: str) -> tuple[Links, Links]:
    """Open links on two new queues."""
    for queue in (name, f"{name}-other"):
        namespace.create_queue(queue)
    return await asyncio.gather(Links(client, name).open(), Links(client, f"{name}-other").open())
