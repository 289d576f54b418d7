"""A client's receiver on a queue, subscription or dead-letter sub-queue: what it is sent, and what it settles."""

import time
from typing import TYPE_CHECKING, Any

from cproton import ffi, lib
from proton import Disposition, Link

from spark_sb_sink.broker.base_link import BaseLink, modified_properties, reject
from spark_sb_sink.broker.entities import Queue, Topic
from spark_sb_sink.broker.queue import MessageQueue, RefusedError, Session, Stored

if TYPE_CHECKING:
    from spark_sb_sink.broker.connection import AmqpConnection

_OUTGOING_WINDOW = 4 * 1024 * 1024


class OutgoingLink(BaseLink):
    """A client's receiver on a queue, subscription or dead-letter sub-queue."""

    session: Session | None = None

    def __init__(self, connection: "AmqpConnection", link: Any, entity: Queue | Topic, store: MessageQueue) -> None:
        super().__init__(connection, link)
        self.entity = entity
        self.entity_name = entity.name
        self.store = store
        self._name = link.name
        self.peek_lock = link.remote_snd_settle_mode != Link.SND_SETTLED
        self._receiving = False
        """A receive is under way: credit was given, and nothing has ended it yet."""
        self._brought = False
        """It has brought a message."""
        self._start()

    def _start(self) -> None:
        self.open()
        self.connection.listener.pumps.add(self.store, self)

    def gone(self) -> None:
        self._end_receive()
        self.connection.listener.pumps.remove(self.store, self)

    def on_flow(self) -> None:
        """Credit was given or taken, or proton says so after it sent something.

        A flow frame that gives credit is a receive, and ends the one before it; so do a drain and the link's end. The
        SDK sends one for each `receive_messages` without prefetch; with prefetch, one whenever its credit is used up.
        """
        self.used_at = time.monotonic()
        for _ in range(self.connection.frames.take_grants(self._name)):
            self._begin_receive()
        if self.link.drain_mode and self.link.credit > 0 and not self._receiving:
            self._begin_receive()  # credit and drain in one frame: "what there is now"
        self.pump()
        if self.link.drain_mode:
            self._end_receive()
            self.link.drained()
        self.connection.flush()

    def _begin_receive(self) -> None:
        self._end_receive()
        self._receiving, self._brought = True, False

    def _end_receive(self) -> None:
        """Bill a receive that ended with nothing; one that brought messages was billed with them."""
        if self._receiving and not self._brought:
            for counters in (self.namespace.counters, self.entity.counters):
                counters.empty_receives += 1
        self._receiving = False

    def suspend(self) -> None:
        # The receive goes on when the client comes back; the service has not answered it, so it bills none.
        self._receiving = False

    def resume(self) -> None:
        self.pump()
        self.connection.flush()

    def pump(self, limit: int = 1_000_000) -> int:
        """Send what is ready, as far as credit and the socket allow. Returns how many."""
        link, store = self.link, self.store
        sent = 0
        now = self.namespace.clock.now()
        while sent < limit and link.credit > 0 and not self.connection.congested:
            if link.session.outgoing_bytes > _OUTGOING_WINDOW:
                self.connection.flush()
                if link.session.outgoing_bytes > _OUTGOING_WINDOW:
                    break
            stored = store.take(now, lock=self.peek_lock, session=self.session)
            if stored is None:
                break
            self._send(stored)
            sent += 1
        if sent:
            self.used_at = time.monotonic()
            self.entity.accessed_at = now
            self._brought = True
        return sent

    def _send(self, stored: Stored) -> None:
        link = self.link
        tag = stored.token or stored.sequence.to_bytes(16, "big")
        delivery = link.delivery(tag)
        link.send(stored.encoded(locked=self.peek_lock))
        if not self.peek_lock:
            delivery.settle()
        else:
            link.advance()

    def on_delivery(self, delivery: Any) -> None:
        """A disposition. Its outcome is applied, and the same outcome goes back, settled, as confirmation."""
        if not delivery.updated and not delivery.settled:
            return
        raw = lib.pn_delivery_tag(delivery._impl)
        token = ffi.unpack(raw.start, raw.size)
        remote = delivery.remote
        state = delivery.remote_state
        self.used_at = time.monotonic()
        try:
            self._settle(token, state, remote)
        except RefusedError as error:
            if delivery.settled:
                delivery.settle()
            else:
                reject(delivery, error)
            return
        if not delivery.settled and state:
            if state == Disposition.MODIFIED:
                delivery.local.failed = remote.failed
                delivery.local.undeliverable = remote.undeliverable
            delivery.update(state)
        if delivery.settled or state:
            delivery.settle()

    def _settle(self, token: bytes, state: int, remote: Any) -> None:
        store = self.store
        if state == Disposition.ACCEPTED:
            store.complete(token)
        elif state == Disposition.RELEASED:
            store.release(token)
        elif state == Disposition.MODIFIED:
            settle = store.defer if remote.undeliverable else store.abandon
            settle(token, modified_properties(remote.annotations))
        elif state == Disposition.REJECTED:
            store.dead_letter(token, *_dead_lettering(remote.condition))


def _dead_lettering(condition: Any) -> tuple[str | None, str | None, dict[str, bytes]]:
    """Reason, description, and the properties to modify, which come beside them in the `info` of the error."""
    if condition is None:
        return None, None, {}
    given = condition.info
    info = {str(key): value for key, value in given.items()} if isinstance(given, dict) else {}
    reason = info.pop("DeadLetterReason", None)
    description = info.pop("DeadLetterErrorDescription", condition.description)
    found = [None if text is None else str(text) for text in (reason, description)]
    return found[0], found[1], modified_properties(info)
