"""A message's bytes as its sections, each a slice: what nobody needs to read is not decoded.

Owns the order and number of sections that AMQP 1.0 allows. Reads no field of any of them.
"""

from typing import NamedTuple

from spark_sb_sink.amqp.errors import MalformedMessageError
from spark_sb_sink.amqp.layout import value_end

HEADER = 0x70
DELIVERY_ANNOTATIONS = 0x71
MESSAGE_ANNOTATIONS = 0x72
PROPERTIES = 0x73
APPLICATION_PROPERTIES = 0x74
DATA = 0x75
SEQUENCE = 0x76
VALUE = 0x77
FOOTER = 0x78

_NAMES = {
    HEADER: "amqp:header:list",
    DELIVERY_ANNOTATIONS: "amqp:delivery-annotations:map",
    MESSAGE_ANNOTATIONS: "amqp:message-annotations:map",
    PROPERTIES: "amqp:properties:list",
    APPLICATION_PROPERTIES: "amqp:application-properties:map",
    DATA: "amqp:data:binary",
    SEQUENCE: "amqp:amqp-sequence:list",
    VALUE: "amqp:amqp-value:*",
    FOOTER: "amqp:footer:map",
}
_BY_SYMBOL = {name.encode(): descriptor for descriptor, name in _NAMES.items()}
_CONSTRUCTORS = {
    "list": frozenset((0x45, 0xC0, 0xD0)),
    "map": frozenset((0xC1, 0xD1)),
    "binary": frozenset((0xA0, 0xB0)),
}
_SHORT_FORMS, _LONG_FORMS = frozenset((0xA0, 0xC0, 0xC1)), frozenset((0xB0, 0xD0, 0xD1))
_TAKES = {descriptor: _CONSTRUCTORS.get(name.rsplit(":", 1)[-1]) for descriptor, name in _NAMES.items()}


class Section(NamedTuple):
    """A section: its descriptor, where it starts, where its value starts after the descriptor, where it ends."""

    descriptor: int
    start: int
    value: int
    end: int


def section_prefix(descriptor: int) -> bytes:
    """What stands before the value of a section: described, by a small ulong."""
    return bytes((0x00, 0x53, descriptor))


def split_sections(message: bytes) -> list[Section]:
    """The sections of a message, in order. An empty body, which the SDK sends for `body=None`, is let through."""
    sections: list[Section] = []
    position, limit, last = 0, len(message), 0
    while position < limit:
        start = position
        if message[position : position + 2] == b"\x00\x53" and position + 2 < limit:
            descriptor = message[position + 2]
            position += 3
        else:
            descriptor, position = _long_descriptor(message, position, limit)
        if descriptor not in _NAMES:
            raise MalformedMessageError(start, "a message section", f"the descriptor 0x{descriptor:x}")
        if descriptor <= last and not (descriptor == last and descriptor in (DATA, SEQUENCE)):
            found = f"{_NAMES[descriptor]} after {_NAMES[last]}"
            raise MalformedMessageError(start, "each section once and in order", found)
        if last in (DATA, SEQUENCE, VALUE) and descriptor not in (last, FOOTER):
            raise MalformedMessageError(start, "a body of one kind", f"{_NAMES[descriptor]} after {_NAMES[last]}")
        code = message[position] if position < limit else 0
        # As `value_end`, which does all but the usual forms and raises what is to be raised.
        if code in _SHORT_FORMS and position + 1 < limit:
            end = position + 2 + message[position + 1]
        elif code in _LONG_FORMS and position + 4 < limit:
            end = position + 5 + int.from_bytes(message[position + 1 : position + 5], "big")
        else:
            end = limit + 1
        if end > limit:
            end = value_end(message, position, limit)
        takes = _TAKES[descriptor]
        if takes is not None and code not in takes:
            raise MalformedMessageError(position, _NAMES[descriptor], f"the type 0x{code:02x}")
        sections.append(Section(descriptor, start, position, end))
        position, last = end, descriptor
    return sections


def _long_descriptor(message: bytes, start: int, limit: int) -> tuple[int, int]:
    """A descriptor that is not the usual small ulong: a wide one, or the section's name as a symbol."""
    if message[start] != 0x00:
        raise MalformedMessageError(start, "a message section", f"the byte 0x{message[start]:02x}")
    end = value_end(message, start + 1, limit)
    code = message[start + 1]
    if code == 0x80:
        return int.from_bytes(message[start + 2 : end], "big"), end
    if code in (0xA3, 0xB3):
        name = message[start + (3 if code == 0xA3 else 6) : end]
        if name in _BY_SYMBOL:
            return _BY_SYMBOL[name], end
        raise MalformedMessageError(start, "the name of a message section", repr(name[:64]))
    raise MalformedMessageError(start + 1, "the descriptor of a message section", f"the type 0x{code:02x}")
