"""The names and types under which the envelope stores what it clears, as application properties.

Owns what an operator reads when they are not as they should be.
"""

from typing import NamedTuple

from spark_sb_sink.amqp.decode import decode_value
from spark_sb_sink.amqp.errors import UnrestorableMessageError
from spark_sb_sink.amqp.layout import NULL, cut_map
from spark_sb_sink.amqp.sections import Section
from spark_sb_sink.amqp.types import Described, Long, Symbol, Timestamp, Value
from spark_sb_sink.envelope.lifetime import ttl_from_ticks

PATH = "x-ms-path"
SESSION_ID = "x-ms-sessionid"
TIME_TO_LIVE = "x-ms-timetolive"
SCHEDULED = "x-ms-scheduledenqueuetimeutc"
EXPIRY = "x-ms-absoluteexpirytimeutc"
"""Only on foreign messages whose expiry does not follow from their other times; null where they had none."""

_TIMESPAN = Symbol("com.microsoft:timespan")


def spellings(*names: str) -> dict[bytes, str]:
    """Each name as the key of a map can have it: a string or a symbol, in its short and its long form."""
    found = {}
    for name in names:
        raw = name.encode()
        for small, large in ((0xA1, 0xB1), (0xA3, 0xB3)):
            found[bytes((small, len(raw))) + raw] = name
            found[bytes((large,)) + len(raw).to_bytes(4, "big") + raw] = name
    return found


ALIAS_KEYS = spellings(PATH, SESSION_ID, TIME_TO_LIVE, SCHEDULED, EXPIRY)


class Aliases(NamedTuple):
    """What the envelope stored, None where it stored nothing; what goes back as it is stays encoded."""

    path: str
    session_id: bytes | None
    ttl: int | None
    scheduled: bytes | None
    expiry: bytes | None


def take_aliases(encoded: bytes, section: Section | None) -> tuple[Aliases, list[bytes]]:
    """The aliases among the application properties, and the properties that are the sender's own."""
    stored: dict[str, bytes] = {}
    own: list[bytes] = []
    for key, value in cut_map(encoded, section.value, section.end) if section else ():
        name = ALIAS_KEYS.get(key)
        if name is None:
            own += (key, value)
        elif name in stored:
            raise UnrestorableMessageError(f"application property {name} is there twice")
        else:
            stored[name] = value
    return (
        Aliases(
            path=_path(stored.get(PATH)),
            session_id=_of_type(stored, SESSION_ID, "string", (0xA1, 0xB1)),
            ttl=_ttl(stored.get(TIME_TO_LIVE)),
            scheduled=_of_type(stored, SCHEDULED, "timestamp", (0x83,)),
            expiry=_of_type(stored, EXPIRY, "timestamp or null", (0x83, NULL[0])),
        ),
        own,
    )


def _path(raw: bytes | None) -> str:
    if raw is None:
        raise UnrestorableMessageError(
            f"no application property {PATH}: nothing says which entity this message is for, so it was not sent to the "
            "backlog by a paired sender; send it to its entity by hand, or delete it"
        )
    path = decode_value(raw)
    if not isinstance(path, str) or not path:
        raise _wrong_type(PATH, "string with the path of an entity", path)
    return path


def _ttl(raw: bytes | None) -> int | None:
    if raw is None:
        return None
    stored = decode_value(raw)
    # The .NET SDK writes a TimeSpan as a described long; we write the long alone, as the envelope's documents say.
    ticks = stored.value if isinstance(stored, Described) and stored.descriptor == _TIMESPAN else stored
    if not isinstance(ticks, Long) or ticks.value < 0:
        raise _wrong_type(TIME_TO_LIVE, "long of 100-ns ticks, 0 or more", stored)
    return ttl_from_ticks(ticks.value)


def _of_type(stored: dict[str, bytes], name: str, wanted: str, codes: tuple[int, ...]) -> bytes | None:
    raw = stored.get(name)
    if raw is None:
        return None
    value = decode_value(raw)  # also where the type is right: a string may be no UTF-8, and the primary would refuse it
    if raw[0] not in codes:
        raise _wrong_type(name, wanted, value)
    return raw


def _wrong_type(name: str, wanted: str, value: Value) -> UnrestorableMessageError:
    found = repr(value) if isinstance(value, Long | Timestamp | Symbol | None) else f"a {type(value).__name__.lower()}"
    return UnrestorableMessageError(
        f"application property {name} must be a {wanted}, but is {found}; correct it and send the message to the "
        "backlog queue again, or send it to its entity by hand"
    )
