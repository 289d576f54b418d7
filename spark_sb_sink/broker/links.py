"""Decides what a new link is: a sender to an entity, a receiver from one, or a half of `$cbs` or `$management`."""

from typing import TYPE_CHECKING, Any

from spark_sb_sink.broker import requests
from spark_sb_sink.broker.base_link import BaseLink, authorize, path_of
from spark_sb_sink.broker.incoming_link import IncomingLink
from spark_sb_sink.broker.namespace import InjectedError
from spark_sb_sink.broker.outgoing_link import OutgoingLink
from spark_sb_sink.broker.queue import RefusedError
from spark_sb_sink.broker.request_links import CBS, MANAGEMENT, RequestLink, ResponseLink
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
        entity_path = path[: -len(MANAGEMENT)]
        try:
            authorize(connection, LISTEN, entity_path)
        except RefusedError:
            authorize(connection, SEND, entity_path)
        if not connection.check_attach(requests.find(connection.namespace, entity_path).entity.name):
            return None
        cls = RequestLink if incoming else ResponseLink
        return cls(connection, link, path)
    # First the claim, then whether the entity is there, so that who may not use it does not learn; as the service does
    # it (Azure/azure-sdk-for-net#44734).
    claim = SEND if incoming else LISTEN
    authorize(connection, claim, path)
    entity, store = (connection.namespace.entity(path), None) if incoming else connection.namespace.source(path)
    if not connection.check_attach(entity.name):
        return None
    reject = connection.namespace.faults.rejection(entity.name, "attach")
    if reject is not None:
        raise InjectedError(reject)
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
