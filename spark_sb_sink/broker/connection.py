"""One AMQP connection: bytes to and from proton's engine, and its events to the links. Knows nothing of messages.

The engine does no I/O of its own, so every byte passes through here, and with it every fault of the network.
"""

import asyncio
import time
from typing import TYPE_CHECKING, Any, cast

from proton import Collector, Condition, Event, ProtonException, Terminus, Transport, symbol
from proton import Connection as Engine

from spark_sb_sink.broker.faults import CutMidBatch, Refuse, Shape
from spark_sb_sink.broker.frames import FrameWatcher
from spark_sb_sink.broker.queue import RefusedError
from spark_sb_sink.broker.security import Grant
from spark_sb_sink.broker.shaping import Shaper

if TYPE_CHECKING:
    from spark_sb_sink.broker.listener import Listener

MAX_FRAME = 65536
IDLE_TIMEOUT = 240.0
"""As the service: an open connection without a frame for four minutes is closed."""
CLOSE_WITHIN = 5.0
"""A peer that does not take part in a close is cut off after so long."""
MAX_LINKS = 5000
"""Links that a peer may have open on one connection, refused ones included until it has detached them."""


def condition_of(error: RefusedError) -> Condition:
    """The AMQP error, with the `info` map that the SDK's callbacks rely on unless a fault says to leave it out."""
    if getattr(error, "info", True):
        return Condition(error.condition, error.text, {symbol("com.microsoft:tracking-id"): "embedded-broker"})
    return Condition(error.condition, error.text)


def refuse(link: Any, error: RefusedError) -> None:
    """Refuse an attach as AMQP has it (2.6.3) and as the service does: it is answered with no terminus, and a detach
    with the error follows. With a terminus the SDK would take the link for open and lose the error."""
    link.source.type = link.target.type = Terminus.UNSPECIFIED
    link.open()
    link.condition = condition_of(error)
    link.close()


class AmqpConnection(asyncio.Protocol):
    """Made once the first bytes have shown that the peer speaks AMQP."""

    def __init__(self, listener: "Listener") -> None:
        self.listener = listener
        self.namespace = listener.namespace
        self.loop = asyncio.get_running_loop()
        self.frames = FrameWatcher()
        self.grants: dict[str, Grant] = {}
        """By audience path: what the tokens put on `$cbs` allow on this connection."""
        self.links: dict[Any, Any] = {}
        self.silent = False
        self._silenced_at: str | None = None
        """The entity at whose attach it fell silent: there is no link to tell by."""
        self._socket: asyncio.Transport | None = None
        self._paused = False
        self._flushing = False
        self._tick: asyncio.TimerHandle | None = None
        self._deadline: asyncio.TimerHandle | None = None
        """Until the peer has opened the connection, and again once we have closed it."""
        self._attached = 0
        self._in = Shaper(self.loop, self._push)
        self._out = Shaper(self.loop, self._write)
        self._engine = Engine()
        self._engine.container = "spark-sb-sink-broker"
        self._transport = Transport(Transport.SERVER)
        self._transport.max_frame_size = MAX_FRAME
        self._transport.channel_max = 4999
        self._transport.idle_timeout = IDLE_TIMEOUT
        sasl = self._transport.sasl()
        sasl.allowed_mechs("ANONYMOUS")
        self._transport.require_auth(False)
        self._collector = Collector()
        self._engine.collect(self._collector)
        self._transport.bind(self._engine)

    # The socket's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = cast(asyncio.Transport, transport)
        self.listener.connections.add(self)
        self._deadline = self.loop.call_later(self.listener.open_within, self._overdue)

    def _overdue(self) -> None:
        """Half a handshake and then nothing, or a close that is not answered: such connections would pile up."""
        if not self.silent:
            self.cut()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._socket is None:
            return
        self._socket = None
        self.listener.connections.discard(self)
        self._in.close()
        self._out.close()
        for timer in (self._tick, self._deadline):
            if timer is not None:
                timer.cancel()
        for link in list(self.links.values()):
            link.gone()
        self.links.clear()
        self._transport.unbind()
        self._collector.release()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.flush()
        for link in list(self.links.values()):
            link.resume()

    @property
    def congested(self) -> bool:
        return self._paused or self._socket is None or self.silent

    def data_received(self, data: bytes) -> None:
        if self.silent:
            return
        shape = self.shape()
        if shape is None:
            self._in.put(data, 0.0, None)
        else:
            self._in.put(data, shape.latency / 2, shape.bandwidth)

    def cut(self) -> None:
        """End the connection as a network does: no close frame, nothing more sent, nothing more taken in."""
        self.silent = True
        if self._socket is not None:
            self._socket.abort()

    def fall_silent(self, entity: str | None = None) -> None:
        """Take what comes and never answer again; the socket stays open until the peer or an undo ends it."""
        self.silent = True
        self._silenced_at = entity

    def close(self, condition: str, text: str) -> None:
        self._engine.condition = Condition(condition, text)
        self._engine.close()
        self.flush()
        self._close_soon()

    def end_expired(self, now: float) -> None:
        """Forget tokens that have run out, and detach the links that lived by them."""
        if any(grant.expires_at <= now for grant in self.grants.values()):
            self.grants = {path: grant for path, grant in self.grants.items() if grant.expires_at > now}
            for link in list(self.links.values()):
                link.check_token()

    # The engine's side

    def _push(self, data: bytes) -> None:
        if self._socket is None or self.silent:
            return
        self.frames.feed(data)
        transport = self._transport
        view = memoryview(data)
        while view:
            capacity = transport.capacity()
            if capacity < 0:
                self.flush()
                self._end()
                return
            if capacity == 0:
                self._dispatch()
                if transport.capacity() == 0:
                    self._end()
                    return
                continue
            if not self._take(bytes(view[:capacity])):
                return
            view = view[capacity:]
        self._dispatch()
        self.flush()

    def _take(self, data: bytes) -> bool:
        try:
            self._transport.push(data)
        except ProtonException:
            self.flush()
            self._end()
            return False
        return True

    def _dispatch(self) -> None:
        collector = self._collector
        while self._socket is not None and not self.silent:
            event = collector.peek()
            if event is None:
                return
            try:
                self._on_event(event)
            except (ProtonException, RecursionError, UnicodeError) as error:
                # Values that frame well and cannot be read: nested without end, text that is no UTF-8.
                self.close("amqp:decode-error", f"The connection sent what cannot be decoded ({type(error).__name__}).")
            collector.pop()

    def _on_event(self, event: Any) -> None:
        kind = event.type
        if kind is Event.DELIVERY:
            link = self.links.get(event.link)
            if link is not None:
                link.on_delivery(event.delivery)
            elif event.link.is_receiver:
                self._discard(event.link, event.delivery)
        elif kind is Event.LINK_FLOW:
            link = self.links.get(event.link)
            if link is not None:
                link.on_flow()
        elif kind is Event.LINK_REMOTE_OPEN:
            self._attach(event.link)
        elif kind in (Event.LINK_REMOTE_CLOSE, Event.LINK_REMOTE_DETACH):
            link = self.links.pop(event.link, None)
            if link is not None:
                link.gone()
            self.frames.forget(event.link.name)
            self._attached -= 1
            event.link.close()
            event.link.free()
        elif kind is Event.SESSION_REMOTE_OPEN:
            event.session.open()
        elif kind is Event.SESSION_REMOTE_CLOSE:
            event.session.close()
        elif kind is Event.CONNECTION_REMOTE_OPEN:
            self._engine.open()
            if self._deadline is not None:
                self._deadline.cancel()
            if self._tick is None:  # a peer can send an open more than once
                self._arm_tick()
        elif kind is Event.CONNECTION_REMOTE_CLOSE:
            self._engine.close()
        elif kind is Event.TRANSPORT_ERROR:
            self._transport.close_head()

    def _discard(self, link: Any, delivery: Any) -> None:
        """Transfers on a link that was refused or detached: on their way, or from a peer that does not care."""
        while delivery.pending and link.recv(delivery.pending):
            pass
        self.frames.forget(link.name)
        if not delivery.partial:
            delivery.settle()

    def _attach(self, link: Any) -> None:
        from spark_sb_sink.broker import links  # here, since links know connections

        self._attached += 1
        if self._attached > MAX_LINKS:
            self.close("amqp:resource-limit-exceeded", f"A connection has at most {MAX_LINKS} links.")
            return
        try:
            handler = links.attach(self, link)
        except RefusedError as error:
            refuse(link, error)
            return
        if handler is not None:
            self.links[link] = handler

    def flush(self) -> None:
        """Hand on what the engine has to say."""
        if self._socket is None or self.silent or self._flushing:
            return
        self._flushing = True
        try:
            transport = self._transport
            shape = self.shape()
            while True:
                pending = transport.pending()
                if pending <= 0:
                    if pending < 0:
                        self._end()
                    return
                data = transport.peek(pending)
                if not data:
                    return
                transport.pop(len(data))
                if shape is None:
                    self._out.put(bytes(data), 0.0, None)
                else:
                    self._out.put(bytes(data), shape.latency / 2, shape.bandwidth)
        finally:
            self._flushing = False

    def _write(self, data: bytes) -> None:
        if self._socket is not None and not self.silent:
            self._socket.write(data)

    def _end(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._close_soon()

    def _close_soon(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        if self._socket is not None:
            self._deadline = self.loop.call_later(CLOSE_WITHIN, self._overdue)

    def _arm_tick(self) -> None:
        if self._socket is None:
            return
        deadline = self._transport.tick(time.monotonic())
        self.flush()
        wait = max(0.05, deadline - time.monotonic()) if deadline else IDLE_TIMEOUT / 2
        self._tick = self.loop.call_later(wait, self._arm_tick)

    # What the faults ask

    def shape(self) -> Shape | None:
        """Latency and bandwidth of this connection: of all that hold for the namespace, and for entities it uses."""
        faults = self.namespace.faults
        return faults.shape(self._entities()) if faults else None

    def release(self) -> None:
        """Hand on at once what latency and bandwidth have kept back: they are not what they were."""
        self._in.release()
        self._out.release()

    def _entities(self) -> set[str]:
        """Those that it has a link to, in small letters, and the one at whose attach it fell silent."""
        used = {link.entity_name.lower() for link in self.links.values() if link.entity_name is not None}
        return used if self._silenced_at is None else used | {self._silenced_at.lower()}

    def uses(self, entity: str) -> bool:
        return entity.lower() in self._entities()

    def attached(self, entity: str | None) -> bool:
        """Whether it has a link to the entity, or to any."""
        if entity is not None:
            return self.uses(entity)
        return bool(self._entities())

    def check_attach(self, entity: str | None) -> bool:
        """Whether the attach may go on; cuts or silences the connection where a fault for the entity says so."""
        faults = self.namespace.faults
        if entity is not None and faults.find(Refuse, entity, exact=True) is not None:
            self.cut()
            return False
        if entity is not None and faults.black_hole(entity, "accept"):
            self.fall_silent(entity)
            return False
        return True

    def after_attach(self, entity: str) -> None:
        if self.namespace.faults.black_hole(entity, "attach"):
            self.flush()
            self.fall_silent(entity)

    def cut_mid_transfer(self, entity: str, received: int) -> bool:
        faults = self.namespace.faults
        fault = faults.find(CutMidBatch, entity)
        if fault is None or received < fault.after_bytes:
            return False
        faults.strike(CutMidBatch, entity)
        self.cut()
        return True
