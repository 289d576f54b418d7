"""A client with the SDK's retries off, and senders and receivers that are closed at the end of a test."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from azure.servicebus.aio import ServiceBusClient

from spark_sb_sink.broker import NamespaceHandle
from spark_sb_sink.wire import RawReceiver, RawSender

Open = Callable[..., Awaitable[Any]]


@pytest.fixture
async def client(namespace: NamespaceHandle) -> AsyncIterator[ServiceBusClient]:
    async with ServiceBusClient.from_connection_string(namespace.connection_string, retry_total=0) as client:
        yield client


@pytest.fixture
async def stack() -> AsyncIterator[contextlib.AsyncExitStack]:
    async with contextlib.AsyncExitStack() as stack:
        yield stack


@pytest.fixture
def sender(client: ServiceBusClient, stack: contextlib.AsyncExitStack) -> Open:
    """Opens a sender to an entity."""

    async def open_sender(entity: str, **settings: Any) -> RawSender:
        made = RawSender(client, entity, **settings)
        stack.push_async_callback(made.close)
        await made.open()
        return made

    return open_sender


@pytest.fixture
def receiver(client: ServiceBusClient, stack: contextlib.AsyncExitStack) -> Open:
    """Opens a receiver from a queue."""

    async def open_receiver(queue: str, **settings: Any) -> RawReceiver:
        made = RawReceiver(client, queue, **settings)
        stack.push_async_callback(made.close)
        await made.open()
        return made

    return open_receiver
