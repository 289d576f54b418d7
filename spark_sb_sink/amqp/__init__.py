"""AMQP 1.0 messages to bytes and back, and batches of them: pure, of the standard library alone."""

from spark_sb_sink.amqp.batch import BATCH_FORMAT, batch_payload, batch_prefix, size_in_batch
from spark_sb_sink.amqp.decode import decode_value
from spark_sb_sink.amqp.encode import encode_value
from spark_sb_sink.amqp.errors import (
    CodecError,
    EnvelopeError,
    MalformedMessageError,
    UnencodableValueError,
    UnrestorableMessageError,
    UnwrappableMessageError,
)
from spark_sb_sink.amqp.message import encode_message
from spark_sb_sink.amqp.read import Message, decode_message
from spark_sb_sink.amqp.sections import Section, split_sections
from spark_sb_sink.amqp.types import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    ElementType,
    Float,
    Long,
    Map,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    Value,
    timestamp_ms,
)

__all__ = [
    "BATCH_FORMAT",
    "Array",
    "Byte",
    "Char",
    "CodecError",
    "Decimal32",
    "Decimal64",
    "Decimal128",
    "Described",
    "ElementType",
    "EnvelopeError",
    "Float",
    "Long",
    "MalformedMessageError",
    "Map",
    "Message",
    "Section",
    "Short",
    "Symbol",
    "Timestamp",
    "UByte",
    "UInt",
    "ULong",
    "UShort",
    "UnencodableValueError",
    "UnrestorableMessageError",
    "UnwrappableMessageError",
    "Value",
    "batch_payload",
    "batch_prefix",
    "decode_message",
    "decode_value",
    "encode_message",
    "encode_value",
    "size_in_batch",
    "split_sections",
    "timestamp_ms",
]
