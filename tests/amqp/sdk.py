"""What the real SDK puts on the wire for a message, and reads from it."""

from datetime import timedelta

from azure.servicebus import ServiceBusMessage
from azure.servicebus._pyamqp._decode import decode_payload
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._pyamqp.message import Message
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport

from tests.amqp.strategies import at


def sdk_message(fields: dict) -> ServiceBusMessage:
    """The SDK's message of the same row."""
    fields = dict(fields)
    ttl, scheduled = fields.pop("ttl_ms"), fields.pop("scheduled_ms")
    del fields["created_ms"]
    message = ServiceBusMessage(
        fields.pop("body"),
        time_to_live=None if ttl is None else timedelta(milliseconds=ttl),
        scheduled_enqueue_time_utc=None if scheduled is None else at(scheduled),
        **fields,
    )
    # The SDK makes up an id where there is none.
    message.message_id = fields["message_id"]
    return message


def sdk_bytes(message: ServiceBusMessage) -> bytes:
    """What a send would put into the transfer."""
    return bytes(encode_payload(bytearray(), PyamqpTransport.to_outgoing_amqp_message(message.raw_amqp_message)))


def sdk_decoded(encoded: bytes) -> Message:
    """What the SDK reads."""
    return decode_payload(memoryview(encoded))
