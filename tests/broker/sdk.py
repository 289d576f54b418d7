"""Lets one test text drive both SDKs: the aio one behind a proxy that runs each coroutine to its end."""

import asyncio
import inspect
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from azure.servicebus import ServiceBusClient
from azure.servicebus.aio import ServiceBusClient as AioClient

QUICK = {"retry_total": 0, "timeout": 20}


class _Hasty:
    """Senders without a keep-alive, for the end of which each close waits up to a second."""

    def get_queue_sender(self, queue_name: str, **more: Any) -> Any:
        return super().get_queue_sender(queue_name, **{"keep_alive": 0, **more})  # type: ignore[misc]

    def get_topic_sender(self, topic_name: str, **more: Any) -> Any:
        return super().get_topic_sender(topic_name, **{"keep_alive": 0, **more})  # type: ignore[misc]


class HastyClient(_Hasty, ServiceBusClient):
    """The sync client of the SDK."""


class HastyAioClient(_Hasty, AioClient):
    """The aio client of the SDK."""


class Blocking:
    """An object of `azure.servicebus.aio` with the calls of its sync twin."""

    def __init__(self, inner: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._inner = inner
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if name == "session" and value is not None:
            return Blocking(value, self._loop)
        if not inspect.ismethod(value):
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            result = value(*args, **kwargs)
            if inspect.isawaitable(result):
                result = self._loop.run_until_complete(result)
            return Blocking(result, self._loop) if name.startswith("get_") and hasattr(result, "close") else result

        return call

    def __enter__(self) -> "Blocking":
        self._loop.run_until_complete(self._inner.__aenter__())
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.run_until_complete(self._inner.__aexit__(*error))


def opener(kind: str, stack: ExitStack) -> Callable[..., Any]:
    """A function that opens a client on a connection string, closed with the stack."""
    if kind == "sync":
        return lambda text, **more: stack.enter_context(HastyClient.from_connection_string(text, **{**QUICK, **more}))
    loop = asyncio.new_event_loop()
    stack.callback(loop.close)
    return lambda text, **more: stack.enter_context(
        Blocking(HastyAioClient.from_connection_string(text, **{**QUICK, **more}), loop)
    )
