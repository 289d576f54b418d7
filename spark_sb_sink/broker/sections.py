"""Finds what a broker needs in the bytes of an AMQP 1.0 message, and changes only what a broker must change.

Written apart from the library's own codec on purpose: a fault in one must not hide in the other.
"""

import contextlib
import struct
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

HEADER, DELIVERY_ANNOTATIONS, ANNOTATIONS, PROPERTIES, APPLICATION_PROPERTIES = 0x70, 0x71, 0x72, 0x73, 0x74
DATA, SEQUENCE, VALUE, FOOTER = 0x75, 0x76, 0x77, 0x78

_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_FIXED = {0x4: 0, 0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}
_MAX_DESCRIBED = 32


class MalformedError(ValueError):
    """Bytes that are no AMQP 1.0 message; the text says where and why."""


def skip(data: bytes, pos: int, depth: int = 0) -> int:
    """The position just after the value that starts at `pos`."""
    if pos >= len(data):
        raise MalformedError(f"the message ends at byte {pos}, where a value should start")
    code = data[pos]
    if code == 0:
        if depth >= _MAX_DESCRIBED:
            raise MalformedError(f"described values nested more than {_MAX_DESCRIBED} deep at byte {pos}")
        return skip(data, skip(data, pos + 1, depth + 1), depth + 1)
    kind = code >> 4
    fixed = _FIXED.get(kind)
    if fixed is not None:
        end = pos + 1 + fixed
    elif kind in (0xA, 0xC, 0xE):
        end = pos + 2 + (data[pos + 1] if pos + 1 < len(data) else 0)
    elif kind in (0xB, 0xD, 0xF):
        end = pos + 5 + (_U32.unpack_from(data, pos + 1)[0] if pos + 5 <= len(data) else 0)
    else:
        raise MalformedError(f"unknown constructor 0x{code:02x} at byte {pos}")
    if end > len(data):
        raise MalformedError(f"the value at byte {pos} ends at byte {end}, but the message has {len(data)}")
    return end


def scalar(data: bytes, pos: int) -> Any:
    """The value at `pos` as Python has it; compound and described values come back as their raw bytes."""
    end = skip(data, pos)
    code = data[pos]
    body = data[pos + 1 : end]
    match code:
        case 0x40:
            return None
        case 0x41 | 0x42:
            return code == 0x41
        case 0x56:
            return body[0] == 1
        case 0x43 | 0x44 | 0x45:
            return 0
        case 0x50 | 0x52 | 0x53 | 0x60 | 0x70 | 0x80:
            return int.from_bytes(body, "big")
        case 0x51 | 0x54 | 0x55 | 0x61 | 0x71 | 0x81 | 0x83:
            return int.from_bytes(body, "big", signed=True)
        case 0x72:
            return struct.unpack(">f", body)[0]
        case 0x82:
            return struct.unpack(">d", body)[0]
        case 0x73:
            return body.decode("utf-32-be", "replace")
        case 0x98:
            return uuid.UUID(bytes=body)
        case 0xA0:
            return body[1:]
        case 0xB0:
            return body[4:]
        case 0xA1 | 0xA3:
            return body[1:].decode("utf-8", "replace")
        case 0xB1 | 0xB3:
            return body[4:].decode("utf-8", "replace")
        case _:
            return data[pos:end]


def items(data: bytes, pos: int) -> tuple[int, int]:
    """How many items the list or map at `pos` has, and where the first one starts."""
    code = data[pos]
    if code == 0x45:
        return 0, pos + 1
    if code in (0xC0, 0xC1) and pos + 3 <= len(data):
        return data[pos + 2], pos + 3
    if code in (0xD0, 0xD1) and pos + 9 <= len(data):
        return _U32.unpack_from(data, pos + 5)[0], pos + 9
    raise MalformedError(f"a list or map should start at byte {pos}, not 0x{code:02x}")


def split(data: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Each section as (code, start, start of its value, end)."""
    pos, size = 0, len(data)
    while pos < size:
        start = pos
        if data[pos : pos + 2] == b"\x00\x53" and pos + 3 <= size:
            code, pos = data[pos + 2], pos + 3
        elif data[pos : pos + 2] == b"\x00\x80" and pos + 10 <= size:
            code, pos = _U64.unpack_from(data, pos + 2)[0], pos + 10
        else:
            raise MalformedError(f"a section should start at byte {pos}")
        if not HEADER <= code <= FOOTER:
            raise MalformedError(f"unknown section 0x{code:02x} at byte {start}")
        end = skip(data, pos)
        yield code, start, pos, end
        pos = end


# Annotations that only the broker sets: those that arrive, on a message sent on as it was received, are left out.
_BROKER_OWNED = frozenset(
    {
        "x-opt-sequence-number",
        "x-opt-enqueued-time",
        "x-opt-locked-until",
        "x-opt-lock-token",
        "x-opt-message-state",
        "x-opt-enqueue-sequence-number",
        "x-opt-deadletter-source",
        "x-opt-partition-id",
    }
)
NULL = b"\x40"


@dataclass(slots=True)
class Incoming:
    """One message as it arrived: the bytes to keep, and the few fields that a broker acts on."""

    bare: bytes
    """Properties, application properties, body and footer, byte for byte."""
    header: bytes = b""
    """The first four header fields (durable, priority, ttl, first-acquirer) as they were encoded."""
    annotations: bytes = b""
    """The entries of the message annotations as they were encoded, without the broker's own."""
    annotation_items: int = 0
    message_id: str | None = None
    session_id: str | None = None
    partition_key: str | None = None
    content_type: str | None = None
    ttl: float | None = None
    scheduled_at: float | None = None
    size: int = 0


def incoming(data: bytes) -> Incoming:
    """Read one message. Raises `MalformedError`, and nothing else, whatever the bytes are."""
    try:
        return _incoming(data)
    except (IndexError, struct.error) as error:
        raise MalformedError(f"the message is cut short ({error})") from error


def _incoming(data: bytes) -> Incoming:
    message = Incoming(b"", size=len(data))
    bare = last = -1
    for code, start, pos, end in split(data):
        if code < last or (code == last and code not in (DATA, SEQUENCE)):
            raise MalformedError(f"section 0x{code:02x} at byte {start} is out of order")
        last = code
        if code >= PROPERTIES and bare < 0:
            bare = start
        if code == PROPERTIES:
            _read_properties(message, data, pos, end)
        elif code == HEADER:
            _read_header(message, data, pos, end)
        elif code == ANNOTATIONS:
            _read_annotations(message, data, pos, end)
        elif code == APPLICATION_PROPERTIES:
            # Filters and dead-lettering read them later, when nobody could be told any more that they cannot be read.
            count, at = items(data, pos)
            _whole(data, at, count, end)
    if bare < 0:
        raise MalformedError("the message has no body")
    message.bare = data[bare:]
    return message


def _whole(data: bytes, pos: int, count: int, end: int) -> None:
    """Check that so many values from `pos` on end where their list or map does."""
    for _ in range(count):
        if pos >= end:
            break
        pos = skip(data, pos)
    else:
        if pos == end:
            return
    raise MalformedError(f"a list or map of {count} more items does not end at byte {end} with the last of them")


def _read_properties(message: Incoming, data: bytes, pos: int, end: int) -> None:
    count, pos = items(data, pos)
    first = min(count, 11)
    for index in range(first):
        if data[pos] == 0x40:
            pos += 1
            continue
        if index == 0:
            value = scalar(data, pos)
            message.message_id = value.hex() if isinstance(value, bytes) else str(value)
        elif index == 6:
            message.content_type = str(scalar(data, pos))
        elif index == 10:
            message.session_id = str(scalar(data, pos))
        pos = skip(data, pos)
    _whole(data, pos, count - first, end)


def _read_header(message: Incoming, data: bytes, pos: int, end: int) -> None:
    count, first = items(data, pos)
    pos = first
    for index in range(min(count, 4)):
        if index == 2 and data[pos] != 0x40:
            ttl = scalar(data, pos)
            message.ttl = ttl / 1000 if isinstance(ttl, int) else None
        pos = skip(data, pos)
    message.header = data[first:pos] + NULL * (4 - min(count, 4))
    _whole(data, pos, count - min(count, 4), end)


def _read_annotations(message: Incoming, data: bytes, pos: int, end: int) -> None:
    count, pos = items(data, pos)
    kept = bytearray()
    for _ in range(count // 2):
        value_at = skip(data, pos)
        after = skip(data, value_at)
        key = scalar(data, pos)
        if key not in _BROKER_OWNED:
            kept += data[pos:after]
            message.annotation_items += 2
        if key == "x-opt-partition-key":
            value = scalar(data, value_at)
            message.partition_key = None if value is None else str(value)
        elif key == "x-opt-scheduled-enqueue-time":
            value = scalar(data, value_at)
            message.scheduled_at = None if not isinstance(value, int) else value / 1000
        pos = after
    message.annotations = bytes(kept)
    _whole(data, pos, count % 2, end)


def message_id(data: bytes) -> str | None:
    """The id of a message, also of one that is damaged or cut short behind its properties; None if it shows none."""
    message = Incoming(b"")
    with contextlib.suppress(MalformedError, IndexError, struct.error):
        for code, _, pos, end in split(data):
            if code == PROPERTIES:
                _read_properties(message, data, pos, end)
    return message.message_id


def batch_members(data: bytes) -> list[bytes]:
    """The messages of a batch (message format 0x80013700): one encoded message in each data section."""
    members: list[bytes] = []
    size = len(data)
    pos = 0
    unpack = _U32.unpack_from
    try:
        while pos < size:
            # The two forms that clients write are read at once; anything else takes the general way.
            head = data[pos : pos + 4]
            if head == b"\x00\x53\x75\xb0":
                start = pos + 8
                pos = start + unpack(data, pos + 4)[0]
            elif head == b"\x00\x53\x75\xa0":
                start = pos + 5
                pos = start + data[pos + 4]
            else:
                code, _, at, end = next(split(data[pos:]))
                if code != DATA:
                    if code > DATA:
                        raise MalformedError(f"a batch holds data sections only, not 0x{code:02x}")
                    pos += end
                    continue
                body = scalar(data, pos + at)
                if not isinstance(body, bytes):
                    raise MalformedError("a data section holds binary only")
                members.append(body)
                pos += end
                continue
            if pos > size:
                raise MalformedError(f"a data section ends at byte {pos}, but the batch has {size}")
            members.append(data[start:pos])
    except (IndexError, struct.error) as error:
        raise MalformedError(f"the batch is cut short ({error})") from error
    return members


def application_properties(bare: bytes) -> dict[str, Any]:
    """All application properties, for filters."""
    found: dict[str, Any] = {}
    for code, _, pos, _end in split(bare):
        if code == APPLICATION_PROPERTIES:
            count, at = items(bare, pos)
            for _ in range(count // 2):
                value_at = skip(bare, at)
                found[str(scalar(bare, at))] = scalar(bare, value_at)
                at = skip(bare, value_at)
    return found


_PROPERTY_FIELDS = (
    "message_id",
    "user_id",
    "to",
    "subject",
    "reply_to",
    "correlation_id",
    "content_type",
    "content_encoding",
    "absolute_expiry_time",
    "creation_time",
    "session_id",
    "group_sequence",
    "reply_to_session_id",
)


def properties(bare: bytes) -> dict[str, Any]:
    """All set fields of the properties section, for filters."""
    for code, _, pos, _end in split(bare):
        if code == PROPERTIES:
            count, at = items(bare, pos)
            found = {}
            for name in _PROPERTY_FIELDS[:count]:
                value = scalar(bare, at)
                if value is not None:
                    found[name] = value
                at = skip(bare, at)
            return found
    return {}
