"""Every private name of azure-servicebus that the library uses, in one list. Nothing else may import from there.

What is imported here is untyped on purpose: the SDK promises nothing about it, and `check` looks at it instead.
"""

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from spark_sb_sink.errors import IncompatibleSdkError

WORKS = "azure-servicebus>=7.15,<7.16"
"""The versions whose private parts were read and tried."""
_SERIES = "7.15."


def found_version() -> str:
    """The version of azure-servicebus that is installed."""
    try:
        return version("azure-servicebus")
    except PackageNotFoundError:
        return "(not installed)"


def incompatible(missing: str) -> IncompatibleSdkError:
    return IncompatibleSdkError(found=found_version(), works=WORKS, missing=missing)


def require_version() -> None:
    found = found_version()
    if not f"{found}.".startswith(_SERIES):
        raise incompatible("its private parts were never tried in this version")


require_version()
try:
    from azure.servicebus._common import constants as _constants
    from azure.servicebus._pyamqp import constants as _amqp
    from azure.servicebus._pyamqp import error as _error
    from azure.servicebus._pyamqp import outcomes as _outcomes
    from azure.servicebus._pyamqp import performatives as _performatives
    from azure.servicebus._pyamqp._decode import decode_frame as _decode_frame
    from azure.servicebus._pyamqp._encode import encode_frame as _encode_frame
    from azure.servicebus._pyamqp.aio import _client_async, _connection_async, _sasl_async
    from azure.servicebus._pyamqp.aio import _management_link_async as _management
    from azure.servicebus._pyamqp.aio import _receiver_async as _receiver
    from azure.servicebus._pyamqp.aio import _sender_async as _sender
    from azure.servicebus._pyamqp.aio import _session_async as _session
    from azure.servicebus._pyamqp.utils import amqp_string_value as _string_value
    from azure.servicebus.aio import _async_utils
    from azure.servicebus.aio import _base_handler_async as _handler
    from azure.servicebus.aio._transport._pyamqp_transport_async import PyamqpTransportAsync as _Transport

    Connection: Any = _connection_async.Connection
    Session: Any = _session.Session
    SenderLink: Any = _sender.SenderLink
    ReceiverLink: Any = _receiver.ReceiverLink
    ManagementLink: Any = _management.ManagementLink
    SendClient: Any = _client_async.SendClientAsync
    ReceiveClient: Any = _client_async.ReceiveClientAsync
    AnonymousCredential: Any = _sasl_async.SASLAnonymousCredential
    Handler: Any = _handler.BaseHandler
    Transport: Any = _Transport
    create_authentication: Any = _async_utils.create_authentication
    encode_frame: Any = _encode_frame
    decode_frame: Any = _decode_frame
    string_value: Any = _string_value

    AMQPException: Any = _error.AMQPException
    AMQPError: Any = _error.AMQPError
    AMQPLinkError: Any = _error.AMQPLinkError
    AMQPConnectionError: Any = _error.AMQPConnectionError
    MessageException: Any = _error.MessageException
    MessageSendFailed: Any = _error.MessageSendFailed
    ErrorCondition: Any = _error.ErrorCondition

    Accepted: Any = _outcomes.Accepted
    Modified: Any = _outcomes.Modified
    Rejected: Any = _outcomes.Rejected
    Released: Any = _outcomes.Released
    DispositionFrame: Any = _performatives.DispositionFrame
    FlowFrame: Any = _performatives.FlowFrame
    TransferFrame: Any = _performatives.TransferFrame

    LinkState: Any = _amqp.LinkState
    SessionState: Any = _amqp.SessionState
    TransferState: Any = _amqp.SessionTransferState
    Role: Any = _amqp.Role
    SettleReason: Any = _amqp.LinkDeliverySettleReason
    ManagementOpenResult: Any = _amqp.ManagementOpenResult
    ACCEPTED: str = _amqp.SEND_DISPOSITION_ACCEPT
    REJECTED: str = _amqp.SEND_DISPOSITION_REJECT

    DEFAULT_MAX_MESSAGE_SIZE: int = _constants.MAX_MESSAGE_LENGTH_BYTES
    PREMIUM_BATCH_SIZE: int = _constants.MAX_BATCH_SIZE_PREMIUM
    STANDARD_BATCH_SIZE: int = _constants.MAX_BATCH_SIZE_STANDARD
    DEAD_LETTER_CONDITION: Any = _constants.DEADLETTERNAME
    DEAD_LETTER_REASON: Any = _constants.RECEIVER_LINK_DEAD_LETTER_REASON
    DEAD_LETTER_DESCRIPTION: Any = _constants.RECEIVER_LINK_DEAD_LETTER_ERROR_DESCRIPTION
    ASSOCIATED_LINK: Any = _constants.ASSOCIATEDLINKPROPERTYNAME
    SERVER_TIMEOUT: Any = _constants.REQUEST_RESPONSE_TIMEOUT
    ENTITY_MANAGEMENT: Any = _constants.MGMT_REQUEST_OP_TYPE_ENTITY_MGMT
    ERROR_CONDITION_FIELD: Any = _constants.MGMT_RESPONSE_MESSAGE_ERROR_CONDITION
except (ImportError, AttributeError) as _missing:
    raise incompatible(f"a private part is gone: {_missing}") from _missing
