"""What all links share: the node that they name, the claim that they live by, and how they end."""

import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from proton import Array, Data, Described, Disposition

from spark_sb_sink.broker.connection import condition_of
from spark_sb_sink.broker.queue import RefusedError

if TYPE_CHECKING:
    from spark_sb_sink.broker.connection import AmqpConnection

CREDIT = 1000
"""What a sender is given, and kept at."""


def path_of(address: str | None) -> str:
    """The node in a link address: addresses arrive as `amqps://host:port/entity`, or as the bare name."""
    if address is None:
        return ""
    try:
        return urlsplit(address).path.strip("/") if "://" in address else address.strip("/")
    except ValueError as error:
        raise RefusedError("amqp:invalid-field", "The address of the link is no URI.", 400) from error


def authorize(connection: "AmqpConnection", claim: str, path: str) -> None:
    """Refuse what no token on this connection allows.

    Condition and text are the service's, for a claim that is missing as for no token at all: a detach with
    amqp:unauthorized-access (ppatierno/azuresblite#2, Azure/azure-service-bus#258; claims: service-bus-sas, "Rights
    required for Service Bus operations").
    """
    now = connection.namespace.clock.now()
    if any(grant.allows(claim, path, now) for grant in connection.grants.values()):
        return
    raise RefusedError(
        "amqp:unauthorized-access",
        f"Unauthorized access. '{claim}' claim(s) are required to perform this operation. "
        f"Resource: 'sb://{connection.namespace.name}/{path}'.",
        401,
    )


def force_detached(name: str, error: RefusedError) -> RefusedError:
    """What a link gets whose token has run out: the service detaches it, in these words.

    Source: Azure/azure-sdk-for-python#23487, Azure/azure-sdk-for-net#11619. A client that goes on puts a new token and
    attaches again; an operation under way on the link fails.
    """
    text = f"The link '{name}' is force detached. Code: RenewToken. Details: {error.text}."
    return RefusedError("amqp:link:detach-forced", text, error.status)


class BaseLink:
    """What every link has: its connection, its place in it, and what happens when it goes away."""

    entity_name: str | None = None
    needs: tuple[str, str] | None = None
    """The claim that the link lives by, and on which path; None for `$cbs` and `$management`."""

    def __init__(self, connection: "AmqpConnection", link: Any) -> None:
        self.connection = connection
        self.namespace = connection.namespace
        self.link = link
        self.used_at = time.monotonic()

    def open(self) -> None:
        link = self.link
        link.source.copy(link.remote_source)
        link.target.copy(link.remote_target)
        link.snd_settle_mode = link.remote_snd_settle_mode
        link.rcv_settle_mode = link.remote_rcv_settle_mode
        link.open()

    def on_delivery(self, delivery: Any) -> None:
        raise NotImplementedError

    def on_flow(self) -> None: ...

    def resume(self) -> None: ...

    def suspend(self) -> None:
        """The broker is about to detach the link because it was idle."""

    def gone(self) -> None:
        """The link or its connection ended."""

    def check_token(self) -> bool:
        """Whether a token still allows the link; if none does, it is detached."""
        if self.needs is None:
            return True
        try:
            authorize(self.connection, *self.needs)
        except RefusedError as error:
            self.detach(force_detached(self.link.name, error))
            return False
        return True

    def detach(self, error: RefusedError) -> None:
        """Detach with an error, as the service does for deleted or disabled entities and idle links."""
        self.connection.links.pop(self.link, None)
        self.gone()
        self.link.condition = condition_of(error)
        self.link.close()
        self.connection.flush()


def modified_properties(given: Any) -> dict[str, bytes]:
    """The application properties that a settlement changes, each encoded with the AMQP type that it came with."""
    if given is None:
        return {}
    if not isinstance(given, dict) or not all(isinstance(name, str) for name in given):
        raise RefusedError("amqp:invalid-field", "The properties to modify are no map with text for keys.")
    if any(isinstance(value, (dict, list, tuple, Array, Described)) for value in given.values()):
        raise RefusedError("amqp:invalid-field", "A property to modify has a list, a map or a described value.")
    found = {}
    for name, value in given.items():
        data = Data()
        data.put_object(value)
        found[str(name)] = data.encode()
    return found


def reject(delivery: Any, error: RefusedError) -> None:
    delivery.local.condition = condition_of(error)
    delivery.update(Disposition.REJECTED)
    delivery.settle()
