"""The envelope put on: what a shared backlog queue must not see is cleared and stored as application properties."""

from functools import lru_cache

from spark_sb_sink.amqp.encode import encode_long, encode_string, encode_timestamp
from spark_sb_sink.amqp.errors import MalformedMessageError, UnwrappableMessageError
from spark_sb_sink.amqp.layout import NULL, compound_body, cut, cut_map, join_list, join_map
from spark_sb_sink.amqp.message import ANNOTATIONS_PREFIX, APPLICATION_PREFIX, HEADER_PREFIX, PROPERTIES_PREFIX
from spark_sb_sink.amqp.sections import (
    APPLICATION_PROPERTIES,
    DATA,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    Section,
    split_sections,
)
from spark_sb_sink.envelope import aliases
from spark_sb_sink.envelope.fields import CREATED, EXPIRES, GROUP_ID, SCHEDULED_KEYS, TTL, read_timestamp, read_uint
from spark_sb_sink.envelope.lifetime import NO_LIFETIME, TICKS_PER_MS, Lifetime, usual_expiry, whole_ttl

# The partition key (x-opt-partition-key) stays. Backlog queues are made without partitions, where it has no effect; on
# a partitioned one it picks a partition. None is added where only a session id was set: the service takes the session
# id for it again once that is restored.

_SESSION_ID = encode_string(aliases.SESSION_ID)
_TIME_TO_LIVE = encode_string(aliases.TIME_TO_LIVE)
_SCHEDULED = encode_string(aliases.SCHEDULED)
_EXPIRY = encode_string(aliases.EXPIRY)


def wrap(encoded: bytes, path: str) -> bytes:
    """The message with the envelope on, for a backlog queue; `path` is the entity that it is meant for."""
    stored = [_path_entry(path)]
    out: list[bytes] = []
    own, count, tail = b"", 0, len(encoded)
    ttl: int | None = None
    times = NO_LIFETIME
    for section in split_sections(encoded):
        kind = section.descriptor
        if kind >= DATA:
            tail = section.start
            break
        piece = encoded[section.start : section.end]
        if kind == HEADER:
            ttl, piece = _without_ttl(encoded, section)
        elif kind == MESSAGE_ANNOTATIONS:
            scheduled, piece = _without_schedule(encoded, section)
            if scheduled is not None:
                stored.append(_SCHEDULED + scheduled)
        elif kind == PROPERTIES:
            session_id, times, piece = _without_session(encoded, section)
            if session_id is not None:
                stored.append(_SESSION_ID + session_id)
        elif kind == APPLICATION_PROPERTIES:
            first, count = _own_properties(encoded, section)
            own, piece = encoded[first : section.end], b""
        out.append(piece)
    if ttl is not None or times.expires is not None:
        stored += _lifetime_entries(times._replace(ttl=ttl))
    out += (APPLICATION_PREFIX, join_map(b"".join((own, *stored)), count + 2 * len(stored)), encoded[tail:])
    return b"".join(out)


@lru_cache(maxsize=4096)
def _path_entry(path: str) -> bytes:
    if not path:
        raise UnwrappableMessageError("the envelope needs the path of an entity, not an empty one")
    return encode_string(aliases.PATH) + encode_string(path)


def _lifetime_entries(lifetime: Lifetime) -> list[bytes]:
    entries = []
    ttl = whole_ttl(lifetime)
    if ttl is not None:
        entries.append(_TIME_TO_LIVE + encode_long(ttl * TICKS_PER_MS))
    if lifetime.expires != usual_expiry(ttl, lifetime.created):
        entries.append(_EXPIRY + (NULL if lifetime.expires is None else encode_timestamp(lifetime.expires)))
    return entries


def _without_ttl(encoded: bytes, section: Section) -> tuple[int | None, bytes]:
    fields = cut(encoded, section.value, section.end)
    ttl = read_uint(fields[TTL], "ttl", section.value) if len(fields) > TTL else None
    if ttl is None:
        return None, encoded[section.start : section.end]
    fields[TTL] = NULL
    # A header that says nothing is left out; the SDK's says nothing but the time to live.
    return ttl, b"" if all(field == NULL for field in fields) else HEADER_PREFIX + join_list(fields)


def _without_schedule(encoded: bytes, section: Section) -> tuple[bytes | None, bytes]:
    unchanged = encoded[section.start : section.end]
    if b"x-opt-scheduled-enqueue-time" not in unchanged:
        return None, unchanged
    scheduled = None
    kept: list[bytes] = []
    for key, value in cut_map(encoded, section.value, section.end):
        if key not in SCHEDULED_KEYS:
            kept += (key, value)
        elif value[0] != 0x83 or scheduled is not None:
            found = f"the type 0x{value[0]:02x}" if value[0] != 0x83 else "two"
            raise MalformedMessageError(section.value, "one scheduled enqueue time, a timestamp", found)
        else:
            scheduled = value
    if scheduled is None:
        return None, unchanged
    return scheduled, ANNOTATIONS_PREFIX + join_map(b"".join(kept), len(kept)) if kept else b""


def _without_session(encoded: bytes, section: Section) -> tuple[bytes | None, Lifetime, bytes]:
    fields = cut(encoded, section.value, section.end)
    given = fields + [NULL] * (GROUP_ID + 1 - len(fields))
    session_id = given[GROUP_ID]
    times = Lifetime(
        None,
        read_timestamp(given[CREATED], "creation-time", section.value),
        read_timestamp(given[EXPIRES], "absolute-expiry-time", section.value),
    )
    if session_id == NULL and times.expires is None:
        return None, times, encoded[section.start : section.end]
    if session_id != NULL:
        if session_id[0] not in (0xA1, 0xB1):
            raise MalformedMessageError(section.value, "group-id as string", f"the type 0x{session_id[0]:02x}")
        fields[GROUP_ID] = NULL
    if times.expires is not None:
        fields[EXPIRES] = NULL
    return None if session_id == NULL else session_id, times, PROPERTIES_PREFIX + join_list(fields)


def _own_properties(encoded: bytes, section: Section) -> tuple[int, int]:
    """Where the sender's own entries start, and how many keys and values they are. An alias among them is refused."""
    if encoded.find(b"x-ms-", section.value, section.end) >= 0:
        for key, _ in cut_map(encoded, section.value, section.end):
            if key in aliases.ALIAS_KEYS:
                name = aliases.ALIAS_KEYS[key]
                raise UnwrappableMessageError(
                    f"application property {name} is the envelope's own: it cannot be sent through a backlog queue"
                )
    return compound_body(encoded, encoded[section.value], section.value + 1, section.end)
