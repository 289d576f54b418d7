"""Values to AMQP 1.0 bytes, in the forms that the azure-servicebus SDK writes. Knows nothing of messages."""

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from spark_sb_sink.amqp.errors import UnencodableValueError
from spark_sb_sink.amqp.layout import MAX_DEPTH, NULL, join_list, join_map, wide_size
from spark_sb_sink.amqp.types import (
    INT_MAX,
    INT_MIN,
    LONG_MAX,
    LONG_MIN,
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
    timestamp_ms,
)

_INT = struct.Struct(">Bi").pack
_LONG = struct.Struct(">Bq").pack
_DOUBLE = struct.Struct(">Bd").pack

# One object for each short length: the hot path joins these instead of making them.
_BINARY8 = [bytes((0xA0, size)) for size in range(256)]
STRING8 = [bytes((0xA1, size)) for size in range(256)]
SYMBOL8 = [bytes((0xA3, size)) for size in range(256)]


def encode_value(value: object) -> bytes:
    """The AMQP bytes of a value; the module `types` says which type a plain Python value gets."""
    return _encode(value, 0)


def encode_string(text: str) -> bytes:
    """A string: what can go wrong is a lone surrogate, which UTF-8 has no bytes for."""
    raw = utf8(text)
    size = len(raw)
    return STRING8[size] + raw if size < 256 else b"\xb1" + wide_size(size) + raw


def encode_symbol(text: str) -> bytes:
    """A symbol."""
    try:
        raw = text.encode("ascii")
    except UnicodeEncodeError as error:
        raise UnencodableValueError(f"symbol takes ASCII text, not {text!r}") from error
    size = len(raw)
    return SYMBOL8[size] + raw if size < 256 else b"\xb3" + wide_size(size) + raw


def encode_timestamp(milliseconds: int) -> bytes:
    """A timestamp, from milliseconds since 1970."""
    try:
        return _LONG(0x83, milliseconds)
    except struct.error as error:
        raise UnencodableValueError(f"timestamp takes 64 bits of milliseconds, not {milliseconds!r}") from error


def encode_int(number: int) -> bytes:
    """An int, or a long where the number does not fit 32 bits."""
    if -128 <= number <= 127:
        return bytes((0x54, number & 0xFF))
    if INT_MIN <= number <= INT_MAX:
        return _INT(0x71, number)
    if LONG_MIN <= number <= LONG_MAX:
        return _LONG(0x81, number)
    raise UnencodableValueError(f"AMQP's long holds 64 bits; {number} needs more (ULong holds up to 2**64 - 1)")


def encode_long(number: int) -> bytes:
    """A long."""
    return bytes((0x55, number & 0xFF)) if -128 <= number <= 127 else _LONG(0x81, number)


def encode_uint(number: int) -> bytes:
    """A uint."""
    if number == 0:
        return b"\x43"
    return bytes((0x52, number)) if number < 256 else b"\x70" + number.to_bytes(4, "big")


def encode_boolean(value: bool) -> bytes:
    """A boolean, in the two-byte form that the SDK writes."""
    return b"\x56\x01" if value else b"\x56\x00"


def encode_double(number: float) -> bytes:
    """A double."""
    return _DOUBLE(0x82, number)


def utf8(text: str) -> bytes:
    """The UTF-8 of a text, or an error that shows which text has none."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UnencodableValueError(f"{text!r} is not Unicode text: {error.reason} at {error.start}") from error


def _binary(value: bytes) -> bytes:
    size = len(value)
    return _BINARY8[size] + value if size < 256 else b"\xb0" + wide_size(size) + value


def _ulong(value: ULong) -> bytes:
    number = value.value
    if number == 0:
        return b"\x44"
    return bytes((0x53, number)) if number < 256 else b"\x80" + number.to_bytes(8, "big")


SIMPLE: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda _: NULL,
    bool: encode_boolean,
    int: encode_int,
    float: encode_double,
    str: encode_string,
    bytes: _binary,
    bytearray: lambda value: _binary(bytes(value)),
    memoryview: lambda value: _binary(bytes(value)),
    UUID: lambda value: b"\x98" + value.bytes,
    datetime: lambda value: encode_timestamp(timestamp_ms(value)),
    UByte: lambda value: bytes((0x50, value.value)),
    UShort: lambda value: b"\x60" + value.value.to_bytes(2, "big"),
    UInt: lambda value: encode_uint(value.value),
    ULong: _ulong,
    Byte: lambda value: bytes((0x51, value.value & 0xFF)),
    Short: lambda value: b"\x61" + value.value.to_bytes(2, "big", signed=True),
    Long: lambda value: encode_long(value.value),
    Float: lambda value: struct.pack(">Bf", 0x72, value.value),
    Decimal32: lambda value: b"\x74" + value.raw,
    Decimal64: lambda value: b"\x84" + value.raw,
    Decimal128: lambda value: b"\x94" + value.raw,
    Char: lambda value: b"\x73" + value.value.encode("utf-32-be"),
    Timestamp: lambda value: encode_timestamp(value.value),
    Symbol: lambda value: encode_symbol(value.value),
}
"""All types but list, map, array and described: what an application property may hold."""


def simple_encoder(kind: type) -> Callable[[Any], bytes] | None:
    """The encoder for a simple type or for a subclass of one, such as an enum of ints; None for all others."""
    # In the order of the method resolution: bool is an int, but comes before it.
    return next((SIMPLE[base] for base in kind.__mro__ if base in SIMPLE), None)


def _encode(value: object, depth: int) -> bytes:
    encoder = SIMPLE.get(type(value)) or simple_encoder(type(value))
    if encoder is not None:
        return encoder(value)
    if depth >= MAX_DEPTH:
        raise UnencodableValueError(f"a value is nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, Described):
        return b"\x00" + _encode(value.descriptor, depth + 1) + _encode(value.value, depth + 1)
    if isinstance(value, Map):
        return join_map(_flat(value.pairs, depth + 1), 2 * len(value.pairs))
    if isinstance(value, Mapping):
        return join_map(_flat(value.items(), depth + 1), 2 * len(value))
    if isinstance(value, Array):
        return _array(value, depth + 1)
    if isinstance(value, Sequence):
        return join_list([_encode(item, depth + 1) for item in value])
    raise UnencodableValueError(f"AMQP has no type for a Python {type(value).__name__}")


def _flat(pairs: Iterable[tuple[object, object]], depth: int) -> bytes:
    return b"".join(_encode(part, depth) for pair in pairs for part in pair)


def _array(array: Array, depth: int) -> bytes:
    described = b"".join(b"\x00" + _encode(descriptor, depth) for descriptor in array.descriptors)
    elements = b"".join(_element(array.of, item, depth) for item in array.items)
    content = described + bytes((array.of,)) + elements
    count = len(array.items)
    if len(content) < 255 and count <= 255:
        return bytes((0xE0, len(content) + 1, count)) + content
    return b"\xf0" + wide_size(len(content) + 4) + wide_size(count) + content


def _element(of: ElementType, item: object, depth: int) -> bytes:
    """An element without its constructor, which it shares with all others: always in the widest form of its type."""
    encoded = _encode(item, depth)
    code, rest = encoded[0], encoded[1:]
    forms = _NARROW.get(of, {})
    if code == of:
        return rest
    if code in forms:
        return forms[code](rest)
    raise UnencodableValueError(f"an array of {of.name.lower()} cannot hold {item!r}")


def _widened(width: int, signed: bool) -> Callable[[bytes], bytes]:
    return lambda raw: int.from_bytes(raw, "big", signed=signed).to_bytes(width, "big", signed=signed)


def _long_size(raw: bytes) -> bytes:
    return wide_size(raw[0]) + raw[1:]


def _long_size_and_count(raw: bytes) -> bytes:
    return wide_size(raw[0] + 3) + wide_size(raw[1]) + raw[2:]


_NARROW: dict[ElementType, dict[int, Callable[[bytes], bytes]]] = {
    ElementType.UINT: {0x43: _widened(4, False), 0x52: _widened(4, False)},
    ElementType.ULONG: {0x44: _widened(8, False), 0x53: _widened(8, False)},
    ElementType.INT: {0x54: _widened(4, True)},
    ElementType.LONG: {0x55: _widened(8, True)},
    ElementType.BINARY: {0xA0: _long_size},
    ElementType.STRING: {0xA1: _long_size},
    ElementType.SYMBOL: {0xA3: _long_size},
    ElementType.LIST: {0x45: lambda _: wide_size(4) + wide_size(0), 0xC0: _long_size_and_count},
    ElementType.MAP: {0xC1: _long_size_and_count},
    ElementType.ARRAY: {0xE0: _long_size_and_count},
}
"""For each element type: the short forms that `_encode` writes, and how each becomes the long one."""
