"""Looks at first use whether the SDK still is what this package takes it for, and fails with one sentence if not.

The private parts are looked at by name and by what they take; then one message goes out and in again through the
replaced methods and the SDK's own frames, without a network.
"""

import functools
import inspect
from collections.abc import Coroutine
from typing import Any, cast

from spark_sb_sink.wire import sdk
from spark_sb_sink.wire.sdk import incompatible, require_version
from spark_sb_sink.wire.transfer import RawTransfers, receive_raw

# What is called, and with which arguments at the least.
_CALLED: tuple[tuple[Any, str, tuple[str, ...]], ...] = (
    (sdk.Connection, "listen", ("wait",)),
    (sdk.Connection, "_get_remote_timeout", ("now",)),
    (sdk.Connection, "_process_outgoing_frame", ("channel", "frame")),
    (sdk.Session, "_outgoing_transfer", ("delivery", "network_trace_params")),
    (sdk.Session, "_outgoing_disposition", ("frame",)),
    (sdk.Session, "create_request_response_link_pair", ("endpoint",)),
    (sdk.SenderLink, "get_state", ()),
    (sdk.SenderLink, "_incoming_disposition", ("frame",)),
    (sdk.SenderLink, "_incoming_flow", ("frame",)),
    (sdk.ReceiverLink, "detach", ("close",)),
    (sdk.ReceiverLink, "flow", ("link_credit", "kwargs")),
    (sdk.ReceiverLink, "_incoming_transfer", ("frame",)),
    (sdk.ReceiverLink, "_incoming_disposition", ("frame",)),
    (sdk.ReceiverLink, "_incoming_flow", ("frame",)),
    (sdk.ManagementLink, "open", ()),
    (
        sdk.ManagementLink,
        "execute_operation",
        ("message", "on_execute_operation_complete", "operation", "type", "timeout"),
    ),
    (sdk.SendClient, "open_async", ("connection",)),
    (sdk.SendClient, "client_ready_async", ()),
    (sdk.SendClient, "close_async", ()),
    (sdk.ReceiveClient, "client_ready_async", ()),
    (sdk.Handler, "_close_handler", ()),
    (sdk.Transport, "create_servicebus_exception", ("logger", "exception")),
    (sdk.Transport, "handle_amqp_mgmt_error", ("logger", "error_description", "condition")),
    (sdk.Transport, "get_remote_max_message_size", ("handler",)),
    (sdk.Transport, "get_remote_max_message_batch_size", ("handler",)),
    (sdk.Transport, "create_mgmt_msg", ("message", "application_properties", "config", "reply_to")),
)
_LINK = ("state", "_error", "name", "handle", "delivery_count", "current_link_credit", "_session")
_CLIENT = ("_link", "_session", "_connection", "_cbs_authenticator", "_keep_alive_interval", "_keep_alive_thread")
_PAYLOAD = bytes(range(256)) * 600
"""No message at all: bytes that any attempt at decoding would fail on, in more than one frame."""


_WINDOWS = {"next_incoming_id": 0, "incoming_window": 1, "next_outgoing_id": 0, "outgoing_window": 1}


class _Answer:
    """Takes the place of a future that nobody waits for."""

    def add_done_callback(self, callback: Any) -> None: ...


@functools.cache
def check_sdk() -> None:
    """Raise `IncompatibleSdkError` unless the SDK at hand does what is relied on. Looks once per process."""
    require_version()
    for owner, name, takes in _CALLED:
        _check_signature(owner, name, takes)
    try:
        arrived = _round_trip()
    except Exception as error:
        raise incompatible(f"a message sent and received offline raised {type(error).__name__}: {error}") from error
    if arrived != [(0, b"\x00\x00\x00\x01", _PAYLOAD)]:
        raise incompatible("a message sent and received offline did not come back as it was")


def _check_signature(owner: Any, name: str, takes: tuple[str, ...]) -> None:
    found = getattr(owner, name, None)
    if not callable(found):
        raise incompatible(f"{owner.__name__}.{name} is gone")
    missing = [argument for argument in takes if argument not in inspect.signature(found).parameters]
    if missing:
        raise incompatible(f"{owner.__name__}.{name} no longer takes {', '.join(missing)}")


def _check_attributes(thing: Any, names: tuple[str, ...]) -> None:
    for name in names:
        if not hasattr(thing, name):
            raise AttributeError(f"{type(thing).__name__} has no {name}")


def _round_trip() -> list[tuple[int, bytes, bytes]]:
    connection = sdk.Connection("amqp://offline", sasl_credential=sdk.AnonymousCredential(), use_tls=False)
    _check_attributes(connection, ("_error", "_transport", "state"))
    _check_attributes(connection._transport, ("socket_lock", "writer"))
    _check_attributes(sdk.SendClient("offline", "target", keep_alive_interval=0), _CLIENT)
    connection._remote_max_frame_size = 65536
    frames: list[Any] = []

    async def record(channel: int, frame: Any) -> None:
        frames.append(sdk.decode_frame(memoryview(sdk.encode_frame(frame)[1])))

    connection._process_outgoing_frame = record
    session = connection.create_session(incoming_window=100, outgoing_window=100)
    session.state, session.remote_incoming_window, session.next_incoming_id = sdk.SessionState.MAPPED, 100, 0
    sender = session.create_sender_link("target", link_credit=1)
    receiver = session.create_receiver_link("source", link_credit=1, on_transfer=None)
    for link in (sender, receiver):
        _check_attributes(link, _LINK)
    sender.state = sdk.LinkState.ATTACHED
    arrived: list[tuple[int, bytes, bytes]] = []
    transfers = RawTransfers(sender, cast(Any, _Answer))
    _run(sender._incoming_flow(sdk.FlowFrame(handle=0, delivery_count=0, link_credit=1, **_WINDOWS)))
    receive_raw(receiver, lambda *delivery: arrived.append(delivery))
    _run(transfers.send(_PAYLOAD, 0))
    for performative, fields in frames:
        if performative == sdk.TransferFrame._code:
            _run(receiver._incoming_transfer(fields))
    if receiver.current_link_credit != 0 or sender.current_link_credit != 0:
        raise ValueError("the credit of a link is not counted as it was")
    return arrived


def _run(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Run what never waits, with or without an event loop around it."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    coroutine.close()
    raise RuntimeError("it waits for something")
