"""The request/response nodes: `$cbs` takes tokens, `<entity>/$management` does what links cannot.

Operations, their fields and status codes are those of "AMQP 1.0 in Azure Service Bus: request-response-based
operations" (learn.microsoft.com, service-bus-amqp-request-response).
"""

import struct
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from proton import UNDESCRIBED, Array, Data, Message, int32, symbol, timestamp

from spark_sb_sink.broker.base_link import authorize, modified_properties
from spark_sb_sink.broker.entities import Queue, Topic
from spark_sb_sink.broker.faults import CbsAnswer
from spark_sb_sink.broker.journal import billed
from spark_sb_sink.broker.namespace import MANAGEMENT, Namespace
from spark_sb_sink.broker.queue import MessageQueue, RefusedError, Session, Stored
from spark_sb_sink.broker.security import LISTEN, SEND, TokenRefusedError, place_of

if TYPE_CHECKING:
    from spark_sb_sink.broker.connection import AmqpConnection

PEEK_LIMIT = 250


@dataclass(frozen=True)
class Node:
    """The entity behind a management node; a topic has no store to receive from."""

    entity: Queue | Topic
    store: MessageQueue | None
    connection: "AmqpConnection | None" = None

    def serves(self, claim: str) -> bool:
        """Whether its status lets it do what takes that claim; a subscription has one of its own beside its topic's."""
        settings = self.entity.settings
        if claim != LISTEN:
            return settings.can_send()
        return settings.can_receive() and (self.store is None or self.store.settings.can_receive())


def find(namespace: Namespace, path: str) -> Node:
    try:
        return Node(*namespace.source(path))
    except RefusedError:
        return Node(namespace.entity(path), None)


def answer(connection: "AmqpConnection", node: str, request: Any) -> Any:
    """The answer to a request, or None where a fault keeps it back."""
    if node == "$cbs":
        return _put_token(connection, request)
    return _manage(connection, node, request)


def _reply(request: Any, properties: dict[str, Any], body: Any = None) -> Any:
    reply = Message()
    reply.correlation_id = request.id
    reply.properties = properties
    if body is not None:
        reply.body = body
    return reply


# $cbs


def _put_token(connection: "AmqpConnection", request: Any) -> Any:
    properties = request.properties if isinstance(request.properties, dict) else {}
    audience = str(properties.get("name", ""))
    namespace = connection.namespace
    try:
        path = place_of(audience)[2]
    except TokenRefusedError as error:
        return _cbs_reply(request, error.status, str(error))
    fault = namespace.faults.find(CbsAnswer, namespace.entity_name(path) if path else None)
    if fault is not None:
        return _cbs_reply(request, fault.status, fault.description)
    if properties.get("operation") != "put-token":
        # 400 for what is missing or of another kind in a request (protocol guide; Azure/azure-sdk-for-net#9388).
        return _cbs_reply(request, 400, "The only operation of $cbs is put-token.")
    token = request.body
    if isinstance(token, (bytes, memoryview)):
        token = bytes(token).decode("utf-8", "replace")
    if not isinstance(token, str):
        return _cbs_reply(request, 400, "The token is missing.")
    try:
        # A token is judged by the client's clock when it is put, and from then on runs out by the broker's: a clock
        # that was moved ends what is open, and does not lock out every client that comes after.
        clock = namespace.clock
        grant = namespace.guard.check(token, audience, clock.seen_by_clients())
        # A token that would do for more is put for this audience, and allows no more on this connection.
        connection.grants[path.lower()] = replace(grant, path=path, expires_at=grant.expires_at + clock.offset)
    except TokenRefusedError as error:
        # 401 and what was wrong with it; what an earlier token allowed is gone with it.
        connection.grants.pop(path.lower(), None)
        return _cbs_reply(request, error.status, str(error))
    # 202 is what the service answers (protocol guide, "Claims-based authorization").
    return _cbs_reply(request, 202, "Accepted")


def _cbs_reply(request: Any, status: int, text: str) -> Any:
    return _reply(request, {"status-code": int32(status), "status-description": text})


# $management


def _manage(connection: "AmqpConnection", address: str, request: Any) -> Any:
    namespace = connection.namespace
    path = address[: -len(MANAGEMENT)]
    properties = request.properties if isinstance(request.properties, dict) else {}
    operation = str(properties.get("operation", ""))
    body = request.body if isinstance(request.body, dict) else {}
    try:
        node = replace(find(namespace, path), connection=connection)
        claim, run = _OPERATIONS.get(operation, (None, None))
        if claim is None or run is None:
            raise RefusedError("amqp:not-implemented", f"The operation {operation!r} is not offered.", 501)
        authorize(connection, claim, address)  # a token for the node itself will do, and so will one for its entity
        if not node.serves(claim):
            raise namespace.disabled(path)
        for counters in (namespace.counters, node.entity.counters):
            counters.management += 1
        fault = namespace.faults.management(node.entity.name, operation.removeprefix("com.microsoft:"))
        if fault is not None:
            raise RefusedError(fault.condition, fault.description, fault.status)
        status, result = run(namespace, node, body)
    except RefusedError as error:
        return _reply(
            request,
            {
                "statusCode": int32(error.status),
                "statusDescription": error.text,
                "errorCondition": symbol(error.condition),
            },
        )
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, struct.error) as error:
        found = f"{type(error).__name__}: {error}"
        return _reply(
            request,
            {
                "statusCode": int32(400),
                "statusDescription": f"The request lacks a field, or has one of another type ({found}).",
                "errorCondition": symbol("com.microsoft:argument-error"),
            },
        )
    return _reply(request, {"statusCode": int32(status), "statusDescription": "OK"}, result)


def _store(node: Node) -> MessageQueue:
    if node.store is None:
        raise RefusedError(
            "amqp:not-allowed", "A topic has no messages of its own; name one of its subscriptions.", 400
        )
    return node.store


def _elements(value: Any) -> list[Any]:
    if isinstance(value, Array):
        return list(value.elements)
    if isinstance(value, list):
        return value
    return [value]


def _tokens(body: dict[str, Any]) -> list[bytes]:
    return [cast(uuid.UUID, token).bytes_le for token in _elements(body["lock-tokens"])]


def _session(node: Node, body: dict[str, Any]) -> Session | None:
    """The session that a request speaks of; only who holds its lock may."""
    store = _store(node)
    wanted = body.get("session-id")
    if wanted is None or not store.settings.requires_session:
        return None
    session = store.sessions.get(str(wanted))
    if session is None or session.owner is None or getattr(session.owner, "connection", None) is not node.connection:
        raise RefusedError(
            "com.microsoft:session-lock-lost", f"The session '{wanted}' is not locked by this receiver.", 410
        )
    return session


def _messages(found: list[Stored], *, tokens: bool) -> dict[str, Any]:
    entries = []
    for stored in found:
        entry: dict[str, Any] = {"message": stored.encoded(locked=stored.token is not None)}
        if tokens and stored.token is not None:
            entry["lock-token"] = uuid.UUID(bytes_le=stored.token)
        entries.append(entry)
    return {"messages": entries}


Result = tuple[int, Any]


def _renew_lock(namespace: Namespace, node: Node, body: dict[str, Any]) -> Result:
    store = _store(node)
    until = [timestamp(int(store.renew(token) * 1000)) for token in _tokens(body)]
    return 200, {"expirations": Array(UNDESCRIBED, Data.TIMESTAMP, *until)}


def _peek(namespace: Namespace, node: Node, body: dict[str, Any]) -> Result:
    store = _store(node)
    count = min(int(body["message-count"]), PEEK_LIMIT)
    if count < 1:
        raise RefusedError("com.microsoft:argument-out-of-range", f"message-count is {count}; it takes at least 1.")
    session_id = body.get("session-id")
    found = store.peek(int(body["from-sequence-number"]), count, None if session_id is None else str(session_id))
    # The request has been counted as one operation; an answer of more than 64 KB is more than one.
    for counters in (namespace.counters, node.entity.counters):
        counters.management += billed(sum(stored.message.size for stored in found)) - 1
    return (200, _messages(found, tokens=False)) if found else (204, None)


def _receive_by_sequence(namespace: Namespace, node: Node, body: dict[str, Any]) -> Result:
    store = _store(node)
    lock = int(body.get("receiver-settle-mode", 1)) == 1
    sequences = [int(number) for number in _elements(body["sequence-numbers"])]
    found = store.receive_by_sequence(sequences, lock=lock, session=_session(node, body))
    return 200, _messages(found, tokens=True)


def _update_disposition(namespace: Namespace, node: Node, body: dict[str, Any]) -> Result:
    store = _store(node)
    status = str(body["disposition-status"])
    changed = modified_properties(body.get("properties-to-modify"))
    tokens = list(dict.fromkeys(_tokens(body)))
    for token in tokens:  # all or none: a lost lock is found before anything is settled
        if token not in store.locked:
            store.complete(token)
    for token in tokens:
        match status:
            case "completed":
                store.complete(token)
            case "abandoned":
                store.abandon(token, changed)
            case "defered":
                store.defer(token, changed)
            case "suspended":
                reason, text = body.get("deadletter-reason"), body.get("deadletter-description")
                store.dead_letter(token, str(reason) if reason else None, str(text) if text else None, changed)
            case _:
                raise RefusedError("com.microsoft:argument-error", f"Unknown disposition {status!r}.")
    return 200, None


def _schedule(namespace: Namespace, node: Node, body: dict[str, Any]) -> Result:
    payloads = [bytes(entry["message"]) for entry in _elements(body["messages"])]
    try:
        stored = namespace.schedule(node.entity, payloads)
    except RefusedError as error:
        namespace.note_rejected(node.entity, payloads, error)
        raise
    sequences = [one.sequence if one is not None else 0 for one in stored]
    return 200, {"sequence-numbers": Array(UNDESCRIBED, Data.LONG, *sequences)}


def _cancel(namespace: Namespace, node: Node, body: dict[str, Any]) -> Result:
    store = node.entity.scheduled if isinstance(node.entity, Topic) else _store(node)
    store.cancel([int(number) for number in _elements(body["sequence-numbers"])])
    return 200, None


def _renew_session(namespace: Namespace, node: Node, body: dict[str, Any]) -> Result:
    store = _store(node)
    session = _session(node, body)
    if session is None:
        raise RefusedError("com.microsoft:argument-error", "The session id is missing.")
    return 200, {"expiration": timestamp(int(store.renew_session(session) * 1000))}


def _set_state(namespace: Namespace, node: Node, body: dict[str, Any]) -> Result:
    session = _session(node, body)
    if session is None:
        raise RefusedError("com.microsoft:argument-error", "The session id is missing.")
    state = body.get("session-state")
    session.state = None if state is None else state.encode() if isinstance(state, str) else bytes(state)
    return 200, None


def _get_state(namespace: Namespace, node: Node, body: dict[str, Any]) -> Result:
    session = _session(node, body)
    if session is None:
        raise RefusedError("com.microsoft:argument-error", "The session id is missing.")
    return 200, {"session-state": session.state}


def _sessions(namespace: Namespace, node: Node, body: dict[str, Any]) -> Result:
    store = _store(node)
    skip, top = int(body.get("skip", 0)), int(body.get("top", 100))
    found = sorted({s.message.session_id for s in store.messages.values() if s.message.session_id})[skip : skip + top]
    if not found:
        return 204, None
    return 200, {"skip": int32(skip + len(found)), "sessions-ids": Array(UNDESCRIBED, Data.STRING, *found)}


_OPERATIONS: dict[str, tuple[str, Callable[[Namespace, Node, dict[str, Any]], Result]]] = {
    "com.microsoft:renew-lock": (LISTEN, _renew_lock),
    "com.microsoft:peek-message": (LISTEN, _peek),
    "com.microsoft:receive-by-sequence-number": (LISTEN, _receive_by_sequence),
    "com.microsoft:update-disposition": (LISTEN, _update_disposition),
    "com.microsoft:schedule-message": (SEND, _schedule),
    "com.microsoft:cancel-scheduled-message": (SEND, _cancel),
    "com.microsoft:renew-session-lock": (LISTEN, _renew_session),
    "com.microsoft:set-session-state": (LISTEN, _set_state),
    "com.microsoft:get-session-state": (LISTEN, _get_state),
    "com.microsoft:get-message-sessions": (LISTEN, _sessions),
}
