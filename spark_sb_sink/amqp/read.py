"""A message's bytes back to its values, each with its AMQP type. For tools and tests: nothing on the hot path reads."""

from dataclasses import dataclass

from spark_sb_sink.amqp.decode import decode_at
from spark_sb_sink.amqp.errors import MalformedMessageError
from spark_sb_sink.amqp.sections import (
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    Section,
    split_sections,
)
from spark_sb_sink.amqp.types import Map, Timestamp, UInt, Value

_HEADER_FIELDS = 5
_PROPERTY_FIELDS = 13


@dataclass(frozen=True, slots=True)
class Message:
    """A message as its sections. Fields that are not there are None, sections that are not there are empty."""

    header: tuple[Value, ...]
    delivery_annotations: Map
    message_annotations: Map
    properties: tuple[Value, ...]
    application_properties: Map
    body: tuple[tuple[int, Value], ...]
    footer: Map

    @property
    def data(self) -> bytes | None:
        """The body's data sections, joined; None for a body of another kind."""
        parts = [value for kind, value in self.body if kind == DATA]
        return b"".join(part for part in parts if isinstance(part, bytes)) if parts else None

    @property
    def ttl_ms(self) -> int | None:
        ttl = self.header[2]
        return ttl.value if isinstance(ttl, UInt) else None

    @property
    def message_id(self) -> Value:
        return self.properties[0]

    @property
    def to(self) -> Value:
        return self.properties[2]

    @property
    def subject(self) -> Value:
        return self.properties[3]

    @property
    def reply_to(self) -> Value:
        return self.properties[4]

    @property
    def correlation_id(self) -> Value:
        return self.properties[5]

    @property
    def content_type(self) -> Value:
        return self.properties[6]

    @property
    def absolute_expiry_time(self) -> Value:
        return self.properties[8]

    @property
    def creation_time(self) -> Value:
        return self.properties[9]

    @property
    def session_id(self) -> Value:
        return self.properties[10]

    @property
    def reply_to_session_id(self) -> Value:
        return self.properties[12]

    @property
    def partition_key(self) -> Value:
        return self.message_annotations.get("x-opt-partition-key")

    @property
    def scheduled_ms(self) -> int | None:
        scheduled = self.message_annotations.get("x-opt-scheduled-enqueue-time")
        return scheduled.value if isinstance(scheduled, Timestamp) else None


def decode_message(message: bytes) -> Message:
    """All sections of a message, decoded."""
    sections = split_sections(message)
    found = {section.descriptor: section for section in sections}
    return Message(
        header=_fields(message, found.get(HEADER), _HEADER_FIELDS),
        delivery_annotations=_map(message, found.get(DELIVERY_ANNOTATIONS)),
        message_annotations=_map(message, found.get(MESSAGE_ANNOTATIONS)),
        properties=_fields(message, found.get(PROPERTIES), _PROPERTY_FIELDS),
        application_properties=_map(message, found.get(APPLICATION_PROPERTIES)),
        body=tuple(
            (section.descriptor, decode_at(message, section.value, section.end))
            for section in sections
            if DATA <= section.descriptor < FOOTER
        ),
        footer=_map(message, found.get(FOOTER)),
    )


def _fields(message: bytes, section: Section | None, count: int) -> tuple[Value, ...]:
    if section is None:
        return (None,) * count
    fields = decode_at(message, section.value, section.end)
    if not isinstance(fields, tuple) or len(fields) > count:
        raise MalformedMessageError(section.value, f"a list of at most {count} fields", "another value")
    return fields + (None,) * (count - len(fields))


def _map(message: bytes, section: Section | None) -> Map:
    if section is None:
        return Map()
    value = decode_at(message, section.value, section.end)
    if not isinstance(value, Map):
        raise MalformedMessageError(section.value, "a map", "another value")
    return value
