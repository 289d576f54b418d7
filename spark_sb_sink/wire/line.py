"""One link on a connection of its own: opened by the SDK, then read by one task of ours until it ends.

The SDK reads only while somebody waits, polls while it opens, and holds one lock over reading and writing. Here a task
reads all the time: an answer is seen when it comes, a detach when it happens, and no caller waits on the SDK itself but
for writing. Every wait is under a deadline. Knows nothing of messages.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from azure.servicebus.exceptions import ServiceBusError

from spark_sb_sink.errors import ClosedError, redact
from spark_sb_sink.wire import sdk
from spark_sb_sink.wire.check import check_sdk
from spark_sb_sink.wire.deadline import Deadline

CLOSE_WITHIN = 2.0
"""Seconds that a close may take before the socket is simply cut."""
KEEP_ALIVE = 15.0
"""Seconds between looks at whether the other side wants a sign of life."""

_log = logging.getLogger(__name__)
# The SDK logs what the service said, as it came, to the logger that it is given; we pass it on redacted, or not at all.
UNHEARD = logging.Logger("unheard", logging.CRITICAL + 1)


class _NoLock:
    """Stands in for the transport's lock, which the reader would hold all the time; a frame is written whole anyway."""

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *_: object) -> None: ...


def translated(error: BaseException) -> BaseException:
    """What the SDK would raise for an error of its lower layers, with that error as its cause."""
    if isinstance(error, ServiceBusError):
        return error
    if isinstance(error, sdk.AMQPException):
        made: ServiceBusError = sdk.Transport.create_servicebus_exception(UNHEARD, error)
    else:
        made = ServiceBusError(f"Handler failed: {error}.", error=error)
    made.__cause__ = error
    return made


class Line:
    """The link of one SDK sender or receiver. `broken` once it must be thrown away, `error` what ended it if known."""

    def __init__(self, owner: Any, entity: str, timeout: float) -> None:
        self.owner = owner
        self.entity = entity
        self.timeout = timeout
        self.broken = False
        self.error: BaseException | None = None
        self._handler: Any = None
        self._waiting: set[asyncio.Future[Any]] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False

    @property
    def handler(self) -> Any:
        return self._handler

    @property
    def link(self) -> Any:
        """The SDK's link. A client that was closed takes it away, before the reader hears of that."""
        link = None if self._handler is None else self._handler._link
        if link is None:
            raise ClosedError(f"The link to {self.entity}")
        return link

    @property
    def live(self) -> bool:
        """Whether it is open, and has its link."""
        return bool(self._tasks) and not (self._closed or self.broken) and self._handler._link is not None

    @property
    def session(self) -> Any:
        return self._handler._session

    async def open(self, prepare: Callable[[Any], None]) -> None:
        """Connect, authorise, attach, and hand the attached link to `prepare` before anything can arrive on it."""
        if self._closed:
            raise ClosedError(f"The link to {self.entity}")
        check_sdk()
        try:
            async with self.deadline("the link did not open"):
                await self._attach()
            prepare(self.link)
        except BaseException:
            await self.close()
            raise
        self._handler._connection._transport.socket_lock = _NoLock()
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._keep_alive())]

    async def _attach(self) -> None:
        # What the SDK's own `_open` does, without sleeping 50 ms after each frame that comes in.
        auth = await sdk.create_authentication(self.owner)
        self.owner._create_handler(auth)
        handler = self._handler = self.owner._handler
        await handler.open_async(connection=None)
        while not await handler.client_ready_async():
            pass
        if handler._link is None or handler._link.get_state() is not sdk.LinkState.ATTACHED:
            raise sdk.AMQPLinkError(sdk.ErrorCondition.UnknownError, description="The link did not attach.")

    @contextlib.asynccontextmanager
    async def deadline(self, what: str, *, spent: float = 0.0) -> AsyncIterator[None]:
        """Bounds what stands in it; what it raises is what the SDK would raise, or `TimeoutError`.

        `spent` is taken off the time, but for a tenth, which a frame and its answer have on a link that was slow to
        open. Whatever goes wrong in it leaves the link in a state that nobody knows, so it marks the line as broken.
        """
        try:
            async with Deadline(max(self.timeout - spent, self.timeout / 10)):
                try:
                    yield
                except Exception as error:  # noqa: BLE001 - translated and raised again
                    found = translated(self.error or error)
                    raise found from found.__cause__
        except TimeoutError:
            self.broken = True
            raise TimeoutError(f"{self.entity}: {what} within {self.timeout:g} s") from None
        except BaseException:
            self.broken = True
            raise

    def check(self) -> None:
        """Raise if the link cannot be used any more."""
        if self.error is not None:
            raise self.error
        if self._closed or self.broken or not self._tasks:
            raise ClosedError(f"The link to {self.entity}", reason="a call on it was cut off" if self.broken else "")

    def expect(self) -> "asyncio.Future[Any]":
        """A future for something that the reader will see. It fails when the line ends."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.error is not None:
            future.set_exception(self.error)
        else:
            self._waiting.add(future)
            future.add_done_callback(self._waiting.discard)
        return future

    async def authorise(self) -> None:
        """Put a new token where the old one runs out; call it under a deadline, before each use."""
        authenticator = self._handler._cbs_authenticator
        while authenticator is not None and not await authenticator.handle_token():
            self.check()
            await asyncio.sleep(0.005)  # only while a token is renewed; the reader brings the answer

    async def _read(self) -> None:
        connection, link = self._handler._connection, self._handler._link
        attached = sdk.LinkState.ATTACHED
        try:
            while link.state is attached and connection._error is None:
                await connection.listen(wait=True)
            # The connection knows better than the link why both are gone, and is told last.
            reason = connection._error or link._error
        except Exception as error:  # noqa: BLE001 - kept for whoever uses the line
            reason = error
        self._end(reason or sdk.AMQPLinkError(sdk.ErrorCondition.UnknownError, description="The session was ended."))

    async def _keep_alive(self) -> None:
        with contextlib.suppress(Exception):
            while True:
                await asyncio.sleep(KEEP_ALIVE)
                await self._handler._connection._get_remote_timeout(time.time())

    def _end(self, error: BaseException) -> None:
        self.broken = True
        self.error = translated(error)
        for future in list(self._waiting):
            if not future.done():
                future.set_exception(self.error)

    async def close(self, before: Callable[[], Any] | None = None) -> None:
        """Detach and close; cut the socket if that takes long or the line is broken. `before` runs on a live line."""
        self._closed = True
        try:
            async with Deadline(CLOSE_WITHIN):
                if self._handler is not None and self._tasks and not self.broken:
                    if before is not None:
                        await before()
                    await self._stop()
                    await self._handler.close_async()
        except Exception as error:  # noqa: BLE001 - nobody can do anything about it
            _log.debug("closing the link to %s: %s", self.entity, redact(repr(error)))
        finally:
            await self._cut()

    async def _stop(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_WITHIN)

    async def _cut(self) -> None:
        for task in self._tasks:
            task.cancel()
        handler, self._handler = self._handler or self.owner._handler, None
        self.owner._handler = None
        connection = getattr(handler, "_connection", None)
        transport = getattr(connection, "_transport", None)
        writer = getattr(transport, "writer", None)
        if writer is not None:
            writer.transport.abort()
        elif transport is not None and getattr(transport, "sock", None) is not None:  # over a web socket
            with contextlib.suppress(Exception):
                async with Deadline(CLOSE_WITHIN):
                    await transport.close()
        await self._stop()
        await asyncio.sleep(0)
