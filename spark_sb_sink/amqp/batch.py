"""The payload of a batch: a message whose data sections each hold one encoded message. Knows nothing of links."""

from collections.abc import Iterable

from spark_sb_sink.amqp.layout import NULL, cut, cut_map, join_list, join_map, wide_size
from spark_sb_sink.amqp.message import ANNOTATIONS_PREFIX, PARTITION_KEY, PROPERTIES_PREFIX
from spark_sb_sink.amqp.sections import DATA, MESSAGE_ANNOTATIONS, PROPERTIES, section_prefix, split_sections

BATCH_FORMAT = 0x80013700
"""The message-format of the transfer that carries a batch."""

_DATA8 = [section_prefix(DATA) + bytes((0xA0, size)) for size in range(256)]
_DATA32 = section_prefix(DATA) + b"\xb0"
_EMPTY = (NULL, b"\xa1\x00")


def size_in_batch(message_size: int) -> int:
    """How many bytes of a batch's payload an encoded message of that size takes."""
    return message_size + (5 if message_size < 256 else 8)


def batch_prefix(first: bytes) -> bytes:
    """What stands before the messages: id, session id and partition key of the first one, where it has them.

    As the SDK does: the service takes the partition that a batch goes to from here.
    """
    annotations = properties = b""
    for section in split_sections(first):
        if section.descriptor == MESSAGE_ANNOTATIONS:
            key = dict(cut_map(first, section.value, section.end)).get(PARTITION_KEY, NULL)
            if key not in _EMPTY:
                annotations = ANNOTATIONS_PREFIX + join_map(PARTITION_KEY + key, 2)
        elif section.descriptor == PROPERTIES:
            fields = cut(first, section.value, section.end)
            fields += [NULL] * (13 - len(fields))
            message_id, session_id = fields[0], fields[10]
            if message_id not in _EMPTY or session_id not in _EMPTY:
                properties = PROPERTIES_PREFIX + join_list((message_id, *[NULL] * 9, session_id, NULL, NULL))
        elif section.descriptor > PROPERTIES:
            break
    return annotations + properties


def batch_payload(prefix: bytes, messages: Iterable[bytes]) -> bytes:
    """The payload of a batch of encoded messages."""
    pieces = [prefix]
    for message in messages:
        size = len(message)
        pieces.append(_DATA8[size] if size < 256 else _DATA32 + wide_size(size))
        pieces.append(message)
    return b"".join(pieces)
