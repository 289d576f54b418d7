"""The two halves of `$cbs` and of an entity's `$management`: requests come in on one link, answers leave on another."""

import time
from collections import deque
from typing import TYPE_CHECKING, Any

from proton import Disposition, Message

from spark_sb_sink.broker import requests
from spark_sb_sink.broker.base_link import CREDIT, BaseLink, reject
from spark_sb_sink.broker.namespace import MANAGEMENT
from spark_sb_sink.broker.queue import RefusedError

if TYPE_CHECKING:
    from spark_sb_sink.broker.connection import AmqpConnection

CBS = "$cbs"
WAITING_ANSWERS = 1000
"""Answers that a client has asked for and given no credit to fetch; more end the link."""


class RequestLink(BaseLink):
    """The sending half of `$cbs` or of an entity's `$management`."""

    def __init__(self, connection: "AmqpConnection", link: Any, node: str) -> None:
        super().__init__(connection, link)
        self.node = node
        if node != CBS:
            self.entity_name = requests.find(connection.namespace, node[: -len(MANAGEMENT)]).entity.name
        self._parts = bytearray()
        self.open()
        link.flow(CREDIT)

    def on_delivery(self, delivery: Any) -> None:
        if not delivery.readable and not delivery.partial:
            return
        self.used_at = time.monotonic()
        while delivery.pending:
            part = self.link.recv(delivery.pending)
            if not part:
                break
            self._parts += part
            if len(self._parts) > self.namespace.tier.max_batch * 4:
                self.detach(RefusedError("amqp:link:message-size-exceeded", "The request is too large."))
                return
        if delivery.aborted:
            self._parts.clear()
            self.connection.frames.next_format(self.link.name)
            delivery.settle()
            self.link.flow(1)
            return
        if delivery.partial:
            return
        payload = bytes(self._parts)
        self._parts.clear()
        self.connection.frames.next_format(self.link.name)
        self.link.advance()
        self.link.flow(1)
        request = Message()
        try:
            request.decode(payload)
        except Exception as error:  # noqa: BLE001 - proton raises many kinds for bytes that are no message
            reject(delivery, RefusedError("amqp:decode-error", f"The request is no message: {type(error).__name__}."))
            return
        delivery.update(Disposition.ACCEPTED)
        delivery.settle()
        answer = requests.answer(self.connection, self.node, request)
        if answer is not None:
            self._reply(request, answer)

    def _reply(self, request: Any, answer: Any) -> None:
        candidates = [
            link
            for link in self.connection.links.values()
            if isinstance(link, ResponseLink) and link.node.lower() == self.node.lower()
        ]
        for link in candidates:
            if link.link.remote_target.address == request.reply_to:
                link.send(answer)
                return
        if candidates:
            candidates[-1].send(answer)


class ResponseLink(BaseLink):
    """The receiving half of `$cbs` or of an entity's `$management`."""

    def __init__(self, connection: "AmqpConnection", link: Any, node: str) -> None:
        super().__init__(connection, link)
        self.node = node
        self._waiting: deque[bytes] = deque()
        self._count = 0
        self.open()

    def send(self, answer: Any) -> None:
        if len(self._waiting) >= WAITING_ANSWERS:
            self.detach(
                RefusedError(
                    "amqp:resource-limit-exceeded",
                    f"{WAITING_ANSWERS} answers wait on the link, which has given no credit for them.",
                )
            )
            return
        self._waiting.append(answer.encode())
        self.on_flow()

    def on_flow(self) -> None:
        while self._waiting and self.link.credit > 0:
            self._count += 1
            delivery = self.link.delivery(self._count.to_bytes(8, "big"))
            self.link.send(self._waiting.popleft())
            delivery.settle()

    def on_delivery(self, delivery: Any) -> None:
        delivery.settle()
