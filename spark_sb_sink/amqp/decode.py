"""AMQP 1.0 bytes to values that keep their AMQP type; strict, and bounded in depth and memory whatever the bytes say.

Knows nothing of messages.
"""

import struct
from collections.abc import Callable
from uuid import UUID

from spark_sb_sink.amqp.errors import MalformedMessageError
from spark_sb_sink.amqp.layout import MAX_DEPTH, body_end, compound_body, value_end
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
)

MAX_BARE_ELEMENTS = 255
"""Elements that take no bytes (an array of nulls, say) cost their sender nothing; so they are few, or refused."""


def decode_value(data: bytes) -> Value:
    """The one value that these bytes are."""
    end = value_end(data, 0, len(data))
    if end != len(data):
        raise MalformedMessageError(end, "the end of the value", f"{len(data) - end} more bytes")
    return decode_at(data, 0, end)


def decode_at(data: bytes, start: int, end: int) -> Value:
    """The value between two offsets that `value_end` gave."""
    value, after = _decode(data, start, end, 0)
    if after != end:
        raise MalformedMessageError(after, "the end of the value", f"{end - after} more bytes")
    return value


def _unsigned(raw: bytes) -> int:
    return int.from_bytes(raw, "big")


def _signed(raw: bytes) -> int:
    return int.from_bytes(raw, "big", signed=True)


def _double(raw: bytes) -> float:
    number: float = struct.unpack(">d", raw)[0]
    return number


def _float(raw: bytes) -> Float:
    return Float(struct.unpack(">f", raw)[0])


def _boolean(raw: bytes) -> bool:
    if raw[0] > 1:
        raise ValueError("a boolean is 0 or 1")
    return raw[0] == 1


_SIMPLE: dict[int, Callable[[bytes], Value]] = {
    0x40: lambda _: None,
    0x41: lambda _: True,
    0x42: lambda _: False,
    0x43: lambda _: UInt(0),
    0x44: lambda _: ULong(0),
    0x50: lambda raw: UByte(raw[0]),
    0x51: lambda raw: Byte(_signed(raw)),
    0x52: lambda raw: UInt(raw[0]),
    0x53: lambda raw: ULong(raw[0]),
    0x54: _signed,
    0x55: lambda raw: Long(_signed(raw)),
    0x56: _boolean,
    0x60: lambda raw: UShort(_unsigned(raw)),
    0x61: lambda raw: Short(_signed(raw)),
    0x70: lambda raw: UInt(_unsigned(raw)),
    0x71: _signed,
    0x72: _float,
    0x73: lambda raw: Char(raw.decode("utf-32-be")),
    0x74: Decimal32,
    0x80: lambda raw: ULong(_unsigned(raw)),
    0x81: lambda raw: Long(_signed(raw)),
    0x82: _double,
    0x83: lambda raw: Timestamp(_signed(raw)),
    0x84: Decimal64,
    0x94: Decimal128,
    0x98: lambda raw: UUID(bytes=raw),
    0xA0: bytes,
    0xB0: bytes,
    0xA1: lambda raw: raw.decode(),
    0xB1: lambda raw: raw.decode(),
    0xA3: lambda raw: Symbol(raw.decode("ascii")),
    0xB3: lambda raw: Symbol(raw.decode("ascii")),
}
"""By constructor, from the value's bytes without constructor and size. Whatever does not fit raises a ValueError."""

_ELEMENT_TYPES: dict[int, ElementType] = {int(kind): kind for kind in ElementType} | {
    0x41: ElementType.BOOLEAN,
    0x42: ElementType.BOOLEAN,
    0x43: ElementType.UINT,
    0x44: ElementType.ULONG,
    0x45: ElementType.LIST,
    0x52: ElementType.UINT,
    0x53: ElementType.ULONG,
    0x54: ElementType.INT,
    0x55: ElementType.LONG,
    0xA0: ElementType.BINARY,
    0xA1: ElementType.STRING,
    0xA3: ElementType.SYMBOL,
    0xC0: ElementType.LIST,
    0xC1: ElementType.MAP,
    0xE0: ElementType.ARRAY,
}


def _decode(data: bytes, start: int, limit: int, depth: int) -> tuple[Value, int]:
    if start < limit and data[start] == 0x00:
        if depth >= MAX_DEPTH:
            raise MalformedMessageError(start, f"at most {MAX_DEPTH} levels of nesting", "more")
        descriptor, position = _decode(data, start + 1, limit, depth + 1)
        value, position = _decode(data, position, limit, depth + 1)
        return Described(descriptor, value), position
    end = value_end(data, start, limit)
    return _read(data, data[start], start + 1, end, depth), end


def _read(data: bytes, code: int, start: int, end: int, depth: int) -> Value:
    """The value whose bytes after the constructor stand between `start` and `end`."""
    reader = _SIMPLE.get(code)
    if reader is None:
        return _compound(data, code, start, end, depth)
    body = start + (0 if code < 0xA0 else 1 if code < 0xB0 else 4)
    try:
        return reader(data[body:end])
    except ValueError as error:
        raise MalformedMessageError(start, f"a value of the type 0x{code:02x}", str(error)) from error


def _compound(data: bytes, code: int, start: int, end: int, depth: int) -> Value:
    if depth >= MAX_DEPTH:
        raise MalformedMessageError(start, f"at most {MAX_DEPTH} levels of nesting", "more")
    position, count = compound_body(data, code, start, end)
    if code in (0xE0, 0xF0):
        return _array(data, position, end, count, depth)
    if count > end - position:
        raise MalformedMessageError(start, f"room for {count} elements", f"{end - position} bytes")
    items = []
    for _ in range(count):
        item, position = _decode(data, position, end, depth + 1)
        items.append(item)
    if position != end:
        raise MalformedMessageError(position, f"the end after {count} elements", f"{end - position} more bytes")
    if code not in (0xC1, 0xD1):
        return tuple(items)
    if count % 2:
        raise MalformedMessageError(start, "a map of keys with values", f"{count} elements")
    return Map(tuple(zip(items[::2], items[1::2], strict=True)))


def _array(data: bytes, position: int, end: int, count: int, depth: int) -> Array:
    descriptors: list[Value] = []
    while position < end and data[position] == 0x00:
        if len(descriptors) >= MAX_DEPTH:
            raise MalformedMessageError(position, f"at most {MAX_DEPTH} descriptors", "more")
        descriptor, position = _decode(data, position + 1, end, depth + 1)
        descriptors.append(descriptor)
    if position >= end:
        raise MalformedMessageError(position, "the type of the array's elements", "the end")
    code = data[position]
    of = _ELEMENT_TYPES.get(code)
    if of is None:
        raise MalformedMessageError(position, "the type of the array's elements", f"the code 0x{code:02x}")
    position += 1
    room = MAX_BARE_ELEMENTS if code <= 0x45 else end - position
    if count > room:
        raise MalformedMessageError(position, f"at most {room} elements", str(count))
    items = []
    for _ in range(count):
        after = body_end(data, code, position, end)
        items.append(_read(data, code, position, after, depth + 1))
        position = after
    if position != end:
        raise MalformedMessageError(position, f"the end after {count} elements", f"{end - position} more bytes")
    return Array(of, tuple(items), tuple(descriptors))
