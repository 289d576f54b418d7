"""The envelope taken off: a message from a backlog queue as it was before, without what the broker added on the way."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from spark_sb_sink.amqp.encode import encode_timestamp, encode_uint
from spark_sb_sink.amqp.errors import MalformedMessageError
from spark_sb_sink.amqp.layout import NULL, compound_body, cut, cut_map, join_list, join_map
from spark_sb_sink.amqp.message import (
    ANNOTATIONS_PREFIX,
    APPLICATION_PREFIX,
    HEADER_PREFIX,
    PROPERTIES_PREFIX,
    SCHEDULED_KEY,
)
from spark_sb_sink.amqp.sections import (
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    Section,
    section_prefix,
    split_sections,
)
from spark_sb_sink.amqp.types import UINT_MAX
from spark_sb_sink.envelope.aliases import Aliases, spellings, take_aliases
from spark_sb_sink.envelope.fields import CREATED, ENQUEUED_KEYS, EXPIRES, GROUP_ID, TTL, read_timestamp
from spark_sb_sink.envelope.lifetime import Lifetime, Stay, TtlPolicy, restored, stay, usual_expiry

# A sender's own values under these names would not survive a direct send either: the broker replaces them. The
# scheduled time is among them because the envelope took it off: one that is there now is not the sender's.
_BROKER_NAMES = (
    "x-opt-enqueued-time",
    "x-opt-scheduled-enqueue-time",
    "x-opt-sequence-number",
    "x-opt-enqueue-sequence-number",
    "x-opt-locked-until",
    "x-opt-lock-token",
    "x-opt-message-state",
    "x-opt-deadletter-source",
    "x-opt-partition-id",
)
_BROKER_KEYS = frozenset(spellings(*_BROKER_NAMES))
# What a broker adds to nearly every message, and nothing else: each key a symbol, each value a number of fixed width.
_NUMBER = rb"(?:[\x80-\x83].{8}|[\x70\x71].{4}|[\x60\x61].{2}|[\x50-\x55].|[\x43\x44])"
_ENQUEUED = rb"\xa3\x13x-opt-enqueued-time\x83(.{8})"
_OTHERS = b"|".join(re.escape(bytes((0xA3, len(name))) + name.encode()) for name in _BROKER_NAMES[1:])
_ONLY_BROKER_KEYS = re.compile(rb"(?:%b|(?:%b)%b)*" % (_ENQUEUED, _OTHERS, _NUMBER), re.DOTALL)
_KEY_STARTS = b"x-opt-"
_DELIVERY_PREFIX = section_prefix(DELIVERY_ANNOTATIONS)
_HEADER_FIELDS, _PROPERTY_FIELDS = 5, 13
_SHORT = 300
"""Bytes of application properties that are worth remembering."""
_NOTHING_STORED = (None, None, None, None)
_SHORT_LIST, _SHORT_STRING = bytes((0xC0, _PROPERTY_FIELDS)), 0xA1
_REST_OF_PROPERTIES = NULL * (_PROPERTY_FIELDS - 1)


@dataclass(frozen=True, slots=True)
class Restored:
    """A message as it goes to its entity. `expired`: with `ttl="deduct"`, no time to live is left."""

    path: str
    message: bytes
    expired: bool = False
    enqueued_ms: int | None = field(default=None, compare=False)
    """When the backlog queue took it, by the service's clock."""


def restore(encoded: bytes, *, ttl: TtlPolicy = "full", now_ms: int | None = None) -> Restored:
    """The message as it was before `wrap`, and the entity that it is meant for.

    `now_ms` minus the broker's enqueued time is the time spent in the backlog. `ttl="deduct"` takes it off the time to
    live; `"full"` only moves creation and expiry time on by it, and without `now_ms` leaves every byte as it was.
    """
    if ttl == "deduct" and now_ms is None:
        raise ValueError('restore with ttl="deduct" needs now_ms, the time now')
    found: dict[int, Section] = {}
    tail = len(encoded)
    for section in split_sections(encoded):
        if section.descriptor >= DATA:
            tail = section.start
            break
        found[section.descriptor] = section
    aliases, own = _aliases(encoded, found.get(APPLICATION_PROPERTIES))
    annotations, enqueued = _annotations(encoded, found.get(MESSAGE_ANNOTATIONS), aliases.scheduled)
    scheduled = None if aliases.scheduled is None else read_timestamp(aliases.scheduled, "scheduled time", 0)
    spent = stay(enqueued, now_ms, scheduled, ttl)
    properties, left, expired = _properties(encoded, found.get(PROPERTIES), aliases, spent)
    message = b"".join(
        (
            _header(_bytes_of(encoded, found.get(HEADER)), left),
            _without_broker_keys(encoded, found.get(DELIVERY_ANNOTATIONS), _DELIVERY_PREFIX),
            annotations,
            properties,
            APPLICATION_PREFIX + join_map(b"".join(own), len(own)) if own else b"",
            encoded[tail:],
        )
    )
    return Restored(aliases.path, message, expired, enqueued)


def _bytes_of(encoded: bytes, section: Section | None) -> bytes:
    return encoded[section.start : section.end] if section else b""


def _aliases(encoded: bytes, section: Section | None) -> tuple[Aliases, Sequence[bytes]]:
    if section is None or section.end - section.start > _SHORT:
        return take_aliases(encoded, section)
    try:
        return _known_aliases(encoded[section.start : section.end], section.value - section.start)
    except MalformedMessageError:
        return take_aliases(encoded, section)  # which knows at what byte of the message


@lru_cache(maxsize=1024)
def _known_aliases(whole: bytes, value: int) -> tuple[Aliases, Sequence[bytes]]:
    # Messages without properties of their own have nothing but the path here, the same for all of an entity.
    return take_aliases(whole, Section(APPLICATION_PROPERTIES, 0, value, len(whole)))


@lru_cache(maxsize=1024)
def _header(whole: bytes, ttl: int | None) -> bytes:
    """With the sender's time to live, not the backlog queue's; without delivery-count and first-acquirer."""
    fields = [field for section in split_sections(whole) for field in cut(whole, section.value, section.end)]
    ours = NULL if ttl is None else encode_uint(min(ttl, UINT_MAX))
    if whole and ours == NULL and all(field == NULL for field in fields[TTL:]):
        return whole
    durable_and_priority = (*fields[:TTL], NULL, NULL)[:TTL]
    fields = [*durable_and_priority, ours, *[NULL] * (_HEADER_FIELDS - TTL - 1)]
    return b"" if all(field == NULL for field in fields) else HEADER_PREFIX + join_list(fields)


def _annotations(encoded: bytes, section: Section | None, scheduled: bytes | None) -> tuple[bytes, int | None]:
    """With the scheduled time in front, where the SDK writes it; and when the broker enqueued the message."""
    front = () if scheduled is None else (SCHEDULED_KEY, scheduled)
    enqueued = None
    if section is not None:
        first, count = compound_body(encoded, encoded[section.value], section.value + 1, section.end)
        # An empty map is none of the broker's: it stays.
        match = _ONLY_BROKER_KEYS.fullmatch(encoded, first, section.end)
        if count and match is not None and count == 2 * encoded.count(_KEY_STARTS, first, section.end):
            if match[1] is not None:
                enqueued = int.from_bytes(match[1], "big", signed=True)
            return ANNOTATIONS_PREFIX + join_map(b"".join(front), len(front)) if front else b"", enqueued
        for key, value in cut_map(encoded, section.value, section.end):
            if key in ENQUEUED_KEYS and value[0] == 0x83:
                enqueued = read_timestamp(value, "x-opt-enqueued-time", section.value)
    return _without_broker_keys(encoded, section, ANNOTATIONS_PREFIX, front), enqueued


def _without_broker_keys(
    encoded: bytes, section: Section | None, prefix: bytes, front: tuple[bytes, ...] = ()
) -> bytes:
    kept = list(front)
    if section is not None:
        pairs = cut_map(encoded, section.value, section.end)
        if not front and not any(key in _BROKER_KEYS for key, _ in pairs):
            return encoded[section.start : section.end]
        for key, value in pairs:
            if key not in _BROKER_KEYS:
                kept += (key, value)
    return prefix + join_map(b"".join(kept), len(kept)) if kept else b""


def _properties(
    encoded: bytes, section: Section | None, aliases: Aliases, spent: Stay
) -> tuple[bytes, int | None, bool]:
    """With session id and times; and the time to live for the header, and whether it is over."""
    if section is not None and aliases[1:] == _NOTHING_STORED and _only_an_id(encoded, section):
        return encoded[section.start : section.end], None, False
    fields = cut(encoded, section.value, section.end) if section else []
    given = fields + [NULL] * (_PROPERTY_FIELDS - len(fields))
    offset = section.value if section else 0
    created = read_timestamp(given[CREATED], "creation-time", offset)
    # An expiry time that is there now is the backlog queue's: the envelope took the sender's off.
    if aliases.expiry is None:
        expires = usual_expiry(aliases.ttl, created)
    else:
        expires = read_timestamp(aliases.expiry, "expiry time", 0)
    lifetime, expired = restored(Lifetime(aliases.ttl, created, expires), spent)
    wanted = {
        EXPIRES: NULL if lifetime.expires is None else encode_timestamp(lifetime.expires),
        CREATED: NULL if lifetime.created is None else encode_timestamp(lifetime.created),
        GROUP_ID: aliases.session_id or NULL,
    }
    if all(given[place] == value for place, value in wanted.items()):
        return encoded[section.start : section.end] if section else b"", lifetime.ttl, expired
    for place, value in wanted.items():
        given[place] = value
    return PROPERTIES_PREFIX + join_list(given), lifetime.ttl, expired


def _only_an_id(encoded: bytes, section: Section) -> bool:
    """Whether the properties are a short message id and no more, as far as a glance tells."""
    start = section.value + 5  # constructor, size and count of the list, constructor and size of the id
    return (
        encoded[section.value : section.value + 4 : 2] == _SHORT_LIST
        and encoded[section.value + 3] == _SHORT_STRING
        and encoded[start + encoded[start - 1] : section.end] == _REST_OF_PROPERTIES
    )
