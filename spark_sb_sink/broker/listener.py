"""The socket of one namespace: takes connections, looks at their first bytes, and hands them to AMQP or HTTP.

A TLS hello starts with 0x16, plain AMQP with `AMQP`; inside TLS it is `AMQP` or an HTTP method. So one port serves all.
"""

import asyncio
import contextlib
import select
import socket
import ssl
import struct
import time
from collections.abc import Callable
from typing import cast

from spark_sb_sink.broker.connection import AmqpConnection
from spark_sb_sink.broker.faults import Refuse
from spark_sb_sink.broker.namespace import Namespace
from spark_sb_sink.broker.outgoing_link import OutgoingLink
from spark_sb_sink.broker.queue import MessageQueue, RefusedError

TICK = 0.02
OPEN_WITHIN = 30.0
"""A connection that has not come to its AMQP open or first HTTP request for so long is cut, so that none pile up."""
MAX_CONNECTIONS = 5000
"""As the service: 5,000 connections per namespace."""


class Pumps:
    """Which links wait for which store; one that has something new gets its links run, once per turn of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._links: dict[MessageQueue, list[OutgoingLink]] = {}
        self._woken: set[MessageQueue] = set()

    def add(self, store: MessageQueue, link: OutgoingLink) -> None:
        links = self._links.setdefault(store, [])
        if link not in links:
            links.append(link)
        store.wake = lambda: self.wake(store)
        self.wake(store)

    def remove(self, store: MessageQueue, link: OutgoingLink) -> None:
        links = self._links.get(store)
        if links is not None and link in links:
            links.remove(link)
            if not links:
                del self._links[store]
                store.wake = lambda: None

    def wake(self, store: MessageQueue) -> None:
        if store not in self._woken:
            self._woken.add(store)
            self._loop.call_soon(self._run, store)

    def _run(self, store: MessageQueue) -> None:
        self._woken.discard(store)
        links = self._links.get(store)
        if not links:
            return
        # Competing receivers take turns in small helpings, so that one with much credit does not starve the others.
        waiting = list(links)
        touched: set[AmqpConnection] = set()
        while waiting:
            for link in list(waiting):
                if link.pump(100 if len(waiting) > 1 else 1_000_000):
                    touched.add(link.connection)
                else:
                    waiting.remove(link)
        links.append(links.pop(0)) if len(links) > 1 else None
        for connection in touched:
            connection.flush()


class _Sniffer(asyncio.Protocol):
    """Waits for the first bytes and becomes what they call for."""

    def __init__(self, listener: "Listener") -> None:
        self._listener = listener
        self._transport: asyncio.Transport | None = None
        self.silent = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._listener.sniffers.add(self)
        self._timer = self._listener.loop.call_later(self._listener.open_within, self._overdue)
        # What was hung during a TLS handshake found no connection to strike.
        faults = self._listener.namespace.faults
        self.silent = faults.black_hole(None, "accept")
        if faults.find(Refuse, None) is not None:
            self.abort()

    def _overdue(self) -> None:
        if self._transport is not None and not self.silent:
            self._listener.unasked.pop(self._transport, None)
            self._transport.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        transport = self._transport
        if transport is None or self.silent:
            return
        self._listener.sniffers.discard(self)
        chosen = self._listener.choose(data)
        if isinstance(chosen, AmqpConnection):
            self._timer.cancel()  # it has a deadline of its own
        elif chosen is not None:
            self._listener.unasked[transport] = self._timer
        else:
            transport.abort()
            return
        transport.set_protocol(chosen)
        chosen.connection_made(transport)
        chosen.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._listener.sniffers.discard(self)
        self._timer.cancel()


def _resolve(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)


class Listener:
    """One namespace on one address and port."""

    def __init__(
        self,
        namespace: Namespace,
        host: str,
        port: int,
        http: Callable[[], asyncio.Protocol],
        *,
        idle_detach: float = 600.0,
        open_within: float = OPEN_WITHIN,
    ) -> None:
        self.namespace = namespace
        self.host = host
        self.port = port
        self.idle_detach = idle_detach
        self.open_within = open_within
        self.unasked: dict[asyncio.BaseTransport, asyncio.TimerHandle] = {}
        """HTTP connections that have not made a request yet, with the timer that ends them."""
        self.connections: set[AmqpConnection] = set()
        self.sniffers: set[_Sniffer] = set()
        self.loop = asyncio.get_running_loop()
        self.pumps = Pumps(self.loop)
        self._tls: ssl.SSLContext | None = None
        self._http = http
        self._socket: socket.socket | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._raw: set[socket.socket] = set()
        self._ticker: asyncio.TimerHandle | None = None
        namespace.on_change = self._changed

    @property
    def running(self) -> bool:
        return self._socket is not None

    def bind(self) -> None:
        """Take the port, so that it is known before the first client comes."""
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.setblocking(False)
            listening.bind((self.host, self.port))
            listening.listen(512)
        except OSError:
            listening.close()
            raise
        self._socket = listening
        self.port = listening.getsockname()[1]

    def use_tls(self, context: ssl.SSLContext) -> None:
        self._tls = context

    def start(self) -> None:
        if self._socket is None:
            self.bind()
        self._spawn(self._accept_all())
        if self._ticker is None:
            self._tick()

    def stop(self) -> None:
        """Stop serving and cut all connections; entities and messages stay."""
        if self._socket is not None:
            self.loop.remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None
        self.cut_all()
        for task in list(self._tasks):
            task.cancel()

    def close(self) -> None:
        self.stop()
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None

    def _spawn(self, work: "asyncio._CoroutineLike[None]") -> None:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept_all(self) -> None:
        while self._socket is not None:
            try:
                client, _ = await self.loop.sock_accept(self._socket)
            except OSError:
                if self._socket is None:
                    return
                await asyncio.sleep(0.05)  # out of file descriptors, most likely: let some be closed
                continue
            if self._refused(client):
                continue
            self._spawn(self._greet(client))

    def _refused(self, client: socket.socket) -> bool:
        faults = self.namespace.faults
        crowded = len(self.connections) + len(self._raw) + len(self.sniffers) >= MAX_CONNECTIONS
        if crowded or faults.find(Refuse, None) is not None:
            # A reset, which is what a client of a dead machine behind a live load balancer sees.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
            return True
        return False

    async def _greet(self, client: socket.socket) -> None:
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._raw.add(client)
        handed_over = False
        try:
            first = await asyncio.wait_for(self._peek(client), self.open_within)
            if self.namespace.faults.black_hole(None, "accept"):
                await self._swallow(client)
                return
            if not first:
                return
            secure = first[0] == 0x16
            await self.loop.connect_accepted_socket(
                lambda: _Sniffer(self),
                client,
                ssl=self._tls if secure else None,
                ssl_handshake_timeout=self.open_within if secure else None,
            )
            handed_over = True
        except (OSError, TimeoutError, asyncio.CancelledError):
            return
        finally:
            self._raw.discard(client)
            if not handed_over:
                client.close()

    async def _swallow(self, client: socket.socket) -> None:
        """Hold a connection until the black hole is undone or the client gives up, whichever comes first."""
        gone = select.poll()
        gone.register(client, select.POLLRDHUP)
        # Two conditions, neither of which is an event: so it looks now and then.
        while self.namespace.faults.black_hole(None, "accept") and not gone.poll(0):  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    async def _peek(self, client: socket.socket) -> bytes:
        """The first byte, left in place for whoever takes the connection over."""
        while True:
            with contextlib.suppress(BlockingIOError, InterruptedError):
                return client.recv(1, socket.MSG_PEEK)
            ready: asyncio.Future[None] = self.loop.create_future()
            self.loop.add_reader(client.fileno(), _resolve, ready)
            try:
                await ready
            finally:
                self.loop.remove_reader(client.fileno())

    def choose(self, first: bytes) -> asyncio.Protocol | None:
        if first.startswith(b"AMQP"[: len(first)]):
            return AmqpConnection(self)
        return self._http() if first[:1].isalpha() else None

    def asked(self, transport: asyncio.BaseTransport | None) -> None:
        """An HTTP connection has made its first request; from here on its server's own timeouts hold."""
        timer = self.unasked.pop(transport, None) if transport is not None else None
        if timer is not None:
            timer.cancel()

    # Time and change

    def _tick(self) -> None:
        self.namespace.tick()
        self._detach_idle()
        now = self.namespace.clock.now()
        for connection in list(self.connections):
            connection.end_expired(now)
        self._ticker = self.loop.call_later(TICK, self._tick)

    def _detach_idle(self) -> None:
        """Links unused for ten minutes are detached, also during a receive (amqp:link:detach-forced)."""
        now = time.monotonic()
        for connection in list(self.connections):
            for link in list(connection.links.values()):
                if link.entity_name is not None and now - link.used_at >= self.idle_detach and not connection.silent:
                    link.suspend()
                    link.detach(
                        RefusedError(
                            "amqp:link:detach-forced",
                            "The link is force detached by the broker because it was idle for too long.",
                        )
                    )

    def _changed(self, name: str) -> None:
        """An entity was deleted, disabled or made anew: links that can no longer stand are detached."""
        entity = self.namespace.entities.get(name.lower())
        for connection in list(self.connections):
            for link in list(connection.links.values()):
                if link.entity_name is None or link.entity_name.lower() != name.lower():
                    continue
                own = getattr(link, "entity", None)
                store = getattr(link, "store", None)
                if entity is None or (own is not None and own is not entity) or (store is not None and store.removed):
                    link.detach(self.namespace.not_found(name))
                elif own is not None and not (
                    entity.settings.can_receive() and (store is None or store.settings.can_receive())
                    if isinstance(link, OutgoingLink)
                    else entity.settings.can_send()
                ):
                    link.detach(self.namespace.disabled(name))

    def cut_all(self, entity: str | None = None) -> int:
        """Cut the open connections: all, or those with a link to the entity."""
        hit = [connection for connection in self.connections if entity is None or connection.uses(entity)]
        for connection in hit:
            connection.cut()
        if entity is None:
            for client in list(self._raw):
                with contextlib.suppress(OSError):
                    client.shutdown(socket.SHUT_RDWR)
            for sniffer in list(self.sniffers):
                sniffer.abort()
        return len(hit)

    def silence(self, entity: str | None = None) -> int:
        """Make open connections fall silent: all, or those with a link to the entity."""
        hit = [connection for connection in self.connections if entity is None or connection.uses(entity)]
        for connection in hit:
            connection.fall_silent()
        if entity is None:
            for sniffer in self.sniffers:
                sniffer.silent = True
        return len(hit)

    def end_silent(self) -> None:
        """Cut what was silenced, except where a hole is still there for it: after an undo it could only confuse."""
        holes = self.namespace.faults.black_holes()
        if (None, "accept") in holes:
            return
        for connection in [c for c in self.connections if c.silent]:
            if not any(connection.attached(entity) for entity, _ in holes):
                connection.cut()
        for sniffer in [s for s in self.sniffers if s.silent]:
            sniffer.abort()
