"""The key that decides the partition of a message on a partitioned entity: its session id, else its partition key."""

from spark_sb_sink.amqp import decode_value, split_sections
from spark_sb_sink.amqp.layout import NULL, cut, cut_map
from spark_sb_sink.amqp.message import PARTITION_KEY
from spark_sb_sink.amqp.sections import MESSAGE_ANNOTATIONS, PROPERTIES

_GROUP_ID = 10


def partition_key_of(message: bytes) -> str | None:
    """Read off an encoded message; None where it has neither."""
    key: bytes = NULL
    for section in split_sections(message):
        if section.descriptor == MESSAGE_ANNOTATIONS:
            key = dict(cut_map(message, section.value, section.end)).get(PARTITION_KEY, NULL)
        elif section.descriptor == PROPERTIES:
            fields = cut(message, section.value, section.end)
            if len(fields) > _GROUP_ID and fields[_GROUP_ID] != NULL:
                key = fields[_GROUP_ID]
        elif section.descriptor > PROPERTIES:
            break
    value = decode_value(key)
    return None if value is None else str(value)
