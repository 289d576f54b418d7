"""Decides what a new link is: a sender to an entity, a receiver from one, or a half of `$cbs` or `$management`."""

from typing import TYPE_CHECKING, Any

from spark_sb_sink.broker import requests
from spark_sb_sink.broker.base_link import BaseLink, authorize, path_of
from spark_sb_sink.broker.incoming_link import IncomingLink
from spark_sb_sink.broker.namespace import MANAGEMENT, InjectedError
from spark_sb_sink.broker.outgoing_link import OutgoingLink
from spark_sb_sink.broker.queue import RefusedError
from spark_sb_sink.broker.request_links import CBS, RequestLink, ResponseLink
from spark_sb_sink.broker.security import LISTEN, SEND
from spark_sb_sink.broker.session_link import NO_FILTER, SessionLink, session_filter

if TYPE_CHECKING:
    from spark_sb_sink.broker.connection import AmqpConnection


def attach(connection: "AmqpConnection", link: Any) -> BaseLink | None:
    """The handler of a new link, or None where a fault has ended the connection. Raises `RefusedError`."""
    incoming = link.is_receiver
    terminus = link.remote_target if incoming else link.remote_source
    path = path_of(terminus.address)
    if path == CBS:
        return RequestLink(connection, link, CBS) if incoming else ResponseLink(connection, link, CBS)
    if path.lower().endswith(MANAGEMENT):
        # Any claim opens the node; each request on it asks for its own.
        try:
            authorize(connection, LISTEN, path)
        except RefusedError:
            authorize(connection, SEND, path)
        name = requests.find(connection.namespace, path[: -len(MANAGEMENT)]).entity.name
        if not _faults_let_pass(connection, name):
            return None
        half = (RequestLink if incoming else ResponseLink)(connection, link, path)
        connection.after_attach(name)
        return half
    # First the claim, then whether the entity is there, so that who may not use it does not learn; as the service does
    # it (Azure/azure-sdk-for-net#44734).
    claim = SEND if incoming else LISTEN
    authorize(connection, claim, path)
    entity, store = (connection.namespace.entity(path), None) if incoming else connection.namespace.source(path)
    if not _faults_let_pass(connection, entity.name):
        return None
    if store is None and not entity.settings.can_send():
        raise connection.namespace.disabled(entity.name)
    # A subscription has a status of its own, beside its topic's.
    if store is not None and not (entity.settings.can_receive() and store.settings.can_receive()):
        raise connection.namespace.disabled(path)
    handler: BaseLink
    if store is None:
        handler = IncomingLink(connection, link, entity)
    elif store.settings.requires_session:
        handler = SessionLink(connection, link, entity, store)
    else:
        if session_filter(link) is not NO_FILTER:
            raise RefusedError(
                "amqp:not-allowed",
                "A sessionful message receiver cannot be created on an entity that does not require sessions.",
            )
        handler = OutgoingLink(connection, link, entity, store)
    handler.needs = (claim, path)
    connection.after_attach(entity.name)
    return handler


def _faults_let_pass(connection: "AmqpConnection", entity: str) -> bool:
    """Whether the attach may go on; not where a fault has ended the connection. Raises what a `Reject` says."""
    if not connection.check_attach(entity):
        return False
    reject = connection.namespace.faults.rejection(entity, "attach")
    if reject is not None:
        raise InjectedError(reject)
    return True
