"""A client's sender: each transfer is one message or one batch for an entity."""

import time
from typing import TYPE_CHECKING, Any

from proton import Disposition, symbol, ulong

from spark_sb_sink.broker import sections
from spark_sb_sink.broker.base_link import CREDIT, BaseLink, reject
from spark_sb_sink.broker.entities import Queue, Topic
from spark_sb_sink.broker.faults import LoseAck
from spark_sb_sink.broker.frames import BATCH_FORMAT
from spark_sb_sink.broker.journal import Happened
from spark_sb_sink.broker.queue import RefusedError

if TYPE_CHECKING:
    from spark_sb_sink.broker.connection import AmqpConnection


class IncomingLink(BaseLink):
    """A client's sender: each transfer is one message or one batch for an entity."""

    def __init__(self, connection: "AmqpConnection", link: Any, entity: Queue | Topic) -> None:
        super().__init__(connection, link)
        self.entity = entity
        self.entity_name = entity.name
        self._name = link.name
        self._parts: list[bytes] = []
        self._size = 0
        self.limit, batch_limit = connection.namespace.limits(entity)
        self._largest = max(self.limit, batch_limit)
        self.batch_limit = batch_limit
        link.max_message_size = self.limit
        link.properties = {symbol("com.microsoft:max-message-batch-size"): ulong(batch_limit)}
        self.open()
        link.flow(CREDIT)

    def on_delivery(self, delivery: Any) -> None:
        link = self.link
        if not delivery.readable and not delivery.partial:
            return
        self.used_at = time.monotonic()
        while delivery.pending:
            part = link.recv(delivery.pending)
            if not part:
                break
            self._size += len(part)
            if self._size <= self._largest:
                self._parts.append(bytes(part))
        if delivery.aborted:
            self._drop()
            self.connection.frames.next_format(self._name)
            delivery.settle()
            link.flow(1)
            return
        if self.connection.cut_mid_transfer(self.entity.name, self._size):
            return
        if delivery.partial:
            return
        payload, size = b"".join(self._parts), self._size  # of what is too large, the payload is the beginning
        self._drop()
        link.advance()
        link.flow(1)
        batch = self.connection.frames.next_format(self._name) == BATCH_FORMAT
        limit = self.batch_limit if batch else self.limit
        if size > limit:
            # Rejected, not detached: from a detach the SDK makes an unknown error, and it is known to raise
            # MessageSizeExceededError for what the service answers.
            error = RefusedError(
                "amqp:link:message-size-exceeded",
                f"The received message (size:{size} bytes) exceeds the limit ({limit} bytes) allowed on the link.",
            )
            self._refuse(delivery, payload, batch, error)
            return
        self._accept(delivery, payload, batch)

    def _drop(self) -> None:
        self._parts = []
        self._size = 0

    def _refuse(self, delivery: Any, payload: bytes, batch: bool, error: RefusedError) -> None:
        members = [payload]
        if batch:
            try:
                members = sections.batch_members(payload)
            except sections.MalformedError:
                members = []
        self.namespace.note_rejected(self.entity, members, error)
        if not delivery.settled:
            reject(delivery, error)

    def _accept(self, delivery: Any, payload: bytes, batch: bool) -> None:
        namespace, name = self.namespace, self.entity.name
        if not self.check_token():
            return
        try:
            messages = namespace.accept(self.entity, payload, batch=batch)
        except RefusedError as error:
            self._refuse(delivery, payload, batch, error)
            return
        if namespace.faults.strike(LoseAck, name) is not None:
            now = namespace.clock.now()
            for message in messages:
                namespace.journal.write(message.message_id, now, name, Happened.ACK_LOST)
            self.connection.cut()
            return
        delivery.update(Disposition.ACCEPTED)
        delivery.settle()
