"""The bytes of a message on its way out: its own sections with the broker's annotations and delivery count added."""

import struct
from collections.abc import Mapping
from dataclasses import replace

from spark_sb_sink.broker.sections import APPLICATION_PROPERTIES, NULL, PROPERTIES, Incoming, items, scalar, skip, split

_U32 = struct.Struct(">I")
_I64 = struct.Struct(">q")

_KEYS = {
    name: b"\xa3" + bytes([len(name)]) + name.encode()
    for name in (
        "x-opt-sequence-number",
        "x-opt-enqueued-time",
        "x-opt-locked-until",
        "x-opt-message-state",
        "x-opt-enqueue-sequence-number",
        "x-opt-deadletter-source",
        "x-opt-partition-id",
    )
}
_SEQUENCE = _KEYS["x-opt-sequence-number"] + b"\x81"
_ENQUEUE_SEQUENCE = _KEYS["x-opt-enqueue-sequence-number"] + b"\x81"
_ENQUEUED = _KEYS["x-opt-enqueued-time"] + b"\x83"
_LOCKED = _KEYS["x-opt-locked-until"] + b"\x83"
_STATE = _KEYS["x-opt-message-state"] + b"\x54"
_DEAD_LETTER_SOURCE = _KEYS["x-opt-deadletter-source"] + b"\xb1"
_PARTITION_ID = _KEYS["x-opt-partition-id"] + b"\x61"


def outgoing_annotations(
    sequence: int,
    enqueue_sequence: int,
    enqueued_at: float,
    state: int,
    locked_until: float | None,
    dead_letter_source: str | None,
    partition: int | None,
) -> tuple[int, bytes]:
    """The annotations that the broker adds, as (number of items, bytes)."""
    parts = [
        _SEQUENCE,
        _I64.pack(sequence),
        _ENQUEUE_SEQUENCE,
        _I64.pack(enqueue_sequence),
        _ENQUEUED,
        _I64.pack(int(enqueued_at * 1000)),
        _STATE,
        bytes([state]),
    ]
    count = 8
    if locked_until is not None:
        parts += (_LOCKED, _I64.pack(int(locked_until * 1000)))
        count += 2
    if dead_letter_source is not None:
        name = dead_letter_source.encode()
        parts += (_DEAD_LETTER_SOURCE, _U32.pack(len(name)), name)
        count += 2
    if partition is not None:
        parts += (_PARTITION_ID, partition.to_bytes(2, "big", signed=True))
        count += 2
    return count, b"".join(parts)


def outgoing(message: Incoming, delivery_count: int, extra_items: int, extra: bytes) -> bytes:
    """The message as it is delivered: its own header and annotations with the broker's added, the rest unchanged."""
    header = (message.header or NULL * 4) + b"\x70" + _U32.pack(delivery_count)
    annotations = message.annotations + extra
    return b"".join(
        (
            b"\x00\x53\x70\xd0",
            _U32.pack(len(header) + 4),
            b"\x00\x00\x00\x05",
            header,
            b"\x00\x53\x72\xd1",
            _U32.pack(len(annotations) + 4),
            _U32.pack(message.annotation_items + extra_items),
            annotations,
            message.bare,
        )
    )


def modified(message: Incoming, added: Mapping[str, str | bytes]) -> Incoming:
    """The message with application properties added or replaced; itself if there are none."""
    if not added:
        return message
    bare = with_application_properties(message.bare, added)
    return replace(message, bare=bare, size=message.size + len(bare) - len(message.bare))


def encoded_string(text: str) -> bytes:
    raw = text.encode()
    return b"\xb1" + _U32.pack(len(raw)) + raw


def with_application_properties(bare: bytes, added: Mapping[str, str | bytes]) -> bytes:
    """The bare message with properties added or replaced; bytes are a value as it is encoded."""
    before = after = b""
    entries: list[bytes] = []
    seen_at = -1
    for code, start, pos, end in split(bare):
        if code == APPLICATION_PROPERTIES:
            seen_at = start
            before, after = bare[:start], bare[end:]
            count, at = items(bare, pos)
            for _ in range(count // 2):
                value_at = skip(bare, at)
                stop = skip(bare, value_at)
                if scalar(bare, at) not in added:
                    entries.append(bare[at:stop])
                at = stop
        elif code == PROPERTIES and seen_at < 0:
            before, after = bare[:end], bare[end:]
    if seen_at < 0 and not before:
        after = bare
    entries += [
        encoded_string(key) + (encoded_string(value) if isinstance(value, str) else value)
        for key, value in added.items()
    ]
    body = b"".join(entries)
    section = b"\x00\x53\x74\xd1" + _U32.pack(len(body) + 4) + _U32.pack(2 * len(entries)) + body
    return before + section + after
