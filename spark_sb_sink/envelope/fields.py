"""The few fields of header, properties and annotations that the envelope reads, by place and type."""

from spark_sb_sink.amqp.decode import decode_value
from spark_sb_sink.amqp.errors import MalformedMessageError
from spark_sb_sink.amqp.layout import NULL
from spark_sb_sink.amqp.types import UInt
from spark_sb_sink.envelope.aliases import spellings

# In the header, then in the properties.
TTL = 2
EXPIRES, CREATED, GROUP_ID = 8, 9, 10

SCHEDULED_KEYS = spellings("x-opt-scheduled-enqueue-time")
ENQUEUED_KEYS = spellings("x-opt-enqueued-time")


def read_uint(raw: bytes, field: str, offset: int) -> int | None:
    """The number of a field that holds a uint, or nothing."""
    if raw == NULL:
        return None
    value = decode_value(raw)
    if not isinstance(value, UInt):
        raise MalformedMessageError(offset, f"{field} as uint", f"the type 0x{raw[0]:02x}")
    return value.value


def read_timestamp(raw: bytes, field: str, offset: int) -> int | None:
    """The milliseconds of a field that holds a timestamp, or nothing."""
    if raw == NULL:
        return None
    if raw[0] != 0x83:
        raise MalformedMessageError(offset, f"{field} as timestamp", f"the type 0x{raw[0]:02x}")
    return int.from_bytes(raw[1:], "big", signed=True)
