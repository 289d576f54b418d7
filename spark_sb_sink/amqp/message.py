"""One row's fields to the bytes of one message: those that a plain azure-servicebus send would put on the wire.

This is the hot path: prefixes are made once, the rest is joined. Where the SDK has limits of its own (128 characters
for ids, one key for session and partition) they hold here too. Times come in as milliseconds; no clock is read here.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache

from spark_sb_sink.amqp.encode import (
    SIMPLE,
    encode_string,
    encode_symbol,
    encode_timestamp,
    encode_uint,
    encode_value,
    simple_encoder,
    utf8,
)
from spark_sb_sink.amqp.errors import UnencodableValueError
from spark_sb_sink.amqp.layout import NULL, join_list, join_map, wide_size
from spark_sb_sink.amqp.sections import (
    APPLICATION_PROPERTIES,
    DATA,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    section_prefix,
)
from spark_sb_sink.amqp.types import UINT_MAX, Described

MAX_ID_LENGTH = 128
MAX_EXPIRY_MS = 253_402_243_199_000
"""The latest absolute-expiry-time that the SDK writes: the last second but a day of the year 9999."""
FOR_EVER_MS = 922_337_203_685_477
"""TimeSpan.MaxValue: the time to live that means none."""

SCHEDULED_KEY = encode_symbol("x-opt-scheduled-enqueue-time")
PARTITION_KEY = encode_symbol("x-opt-partition-key")

HEADER_PREFIX = section_prefix(HEADER)
ANNOTATIONS_PREFIX = section_prefix(MESSAGE_ANNOTATIONS)
PROPERTIES_PREFIX = section_prefix(PROPERTIES)
APPLICATION_PREFIX = section_prefix(APPLICATION_PROPERTIES)
_DATA_PREFIX = section_prefix(DATA)

# The SDK writes all thirteen fields of the properties, null where not set; and so the section has one shape:
# message-id, seven fields (user-id to content-encoding), two times, three fields (group-id to reply-to-group-id).
_PROPERTY_COUNT = 13
_NO_MIDDLE = NULL * 7
_NO_TIMES = NULL * 2
_NO_GROUP = NULL * 3

PROPERTIES8 = [PROPERTIES_PREFIX + bytes((0xC0, size + 1, _PROPERTY_COUNT)) for size in range(255)]


def encode_message(
    body: bytes | str,
    *,
    message_id: str | None = None,
    session_id: str | None = None,
    partition_key: str | None = None,
    correlation_id: str | None = None,
    subject: str | None = None,
    content_type: str | None = None,
    reply_to: str | None = None,
    reply_to_session_id: str | None = None,
    to: str | None = None,
    ttl_ms: int | None = None,
    created_ms: int | None = None,
    scheduled_ms: int | None = None,
    application_properties: Mapping[str, object] | None = None,
    encoded_properties: bytes = b"",
    derive_id: Callable[[bytes], str] | None = None,
) -> bytes:
    """The message's bytes. `created_ms`, the time now, is needed with a time to live, and used only with one.

    Without a `message_id`, `derive_id` is given the bytes that the message would have without id, creation time and
    expiry time, so that a row sent again later gives it the same bytes; what it returns is the id. Only where the
    header cannot hold the time to live do those bytes have an expiry time, that of a message created in 1970.
    `encoded_properties` is the section of the application properties, for who has it in bytes already.
    """
    head = b""
    times = _NO_TIMES
    if ttl_ms is not None and ttl_ms < FOR_EVER_MS:
        head = header_with_ttl(ttl_ms)
        if ttl_ms:
            times = _times(created_ms, ttl_ms)
    if scheduled_ms is not None or partition_key is not None:
        head += _annotations(scheduled_ms, partition_key, session_id)

    middle = _NO_MIDDLE
    if (
        subject is not None
        or correlation_id is not None
        or content_type is not None
        or to is not None
        or reply_to is not None
    ):
        middle = b"".join(
            (
                NULL,
                NULL if to is None else encode_string(to),
                NULL if subject is None else encode_string(subject),
                NULL if reply_to is None else encode_string(reply_to),
                NULL if correlation_id is None else encode_string(correlation_id),
                NULL if content_type is None else encode_symbol(content_type),
                NULL,
            )
        )
    group = _NO_GROUP
    if session_id is not None or reply_to_session_id is not None:
        group = (
            (NULL if session_id is None else _id(session_id, "session_id"))
            + NULL
            + (NULL if reply_to_session_id is None else _id(reply_to_session_id, "reply_to_session_id"))
        )

    application = application_section(application_properties) if application_properties else encoded_properties
    raw = utf8(body) if isinstance(body, str) else body
    size = len(raw)
    data = DATA_HEADS[size] if size < FEW else data_head(size)

    if message_id is None and derive_id is not None:
        lasting = _NO_TIMES if times is _NO_TIMES or ttl_ms is None or ttl_ms <= UINT_MAX else _lasting(ttl_ms)
        unnamed = _properties(NULL, middle, lasting, group)
        message_id = derive_id(b"".join((head, unnamed, application, data, raw)))
    first = NULL if message_id is None else _id(message_id, "message_id")
    return b"".join((head, _properties(first, middle, times, group), application, data, raw))


def header_with_ttl(ttl_ms: int) -> bytes:
    """A header section that holds a time to live and nothing else; what a uint cannot hold is its largest."""
    if ttl_ms < 0:
        raise UnencodableValueError(f"a time to live cannot be negative, as {ttl_ms} ms is")
    return HEADER_PREFIX + join_list((NULL, NULL, encode_uint(min(ttl_ms, UINT_MAX)), NULL, NULL))


def expiry_ms(created_ms: int, ttl_ms: int) -> int:
    """The absolute-expiry-time that goes with a time of creation and a time to live."""
    return min(MAX_EXPIRY_MS, created_ms + ttl_ms)


def application_section(properties: Mapping[str, object]) -> bytes:
    """The application properties; the values may be of any simple type, and of a described one."""
    pieces: list[bytes] = []
    for name, value in properties.items():
        try:
            encoder = SIMPLE.get(type(value)) or simple_encoder(type(value))
            if encoder is not None:
                pieces += (_name(name), encoder(value))
            elif isinstance(value, Described):
                pieces += (_name(name), encode_value(value))
            else:
                kind = type(value).__name__
                raise UnencodableValueError(
                    f"a Python {kind} is none of text, number, boolean, timestamp, uuid, binary"
                )
        except UnencodableValueError as error:
            raise UnencodableValueError(f"application property {name!r}: {error}") from error
    return APPLICATION_PREFIX + join_map(b"".join(pieces), len(pieces))


@lru_cache(maxsize=1024)
def _name(name: str) -> bytes:
    # The names of a stream are few and come with each row.
    if not isinstance(name, str):
        raise UnencodableValueError(f"its name must be text, not a Python {type(name).__name__}")
    return encode_string(name)


def _id(text: str, field: str) -> bytes:
    if len(text) > MAX_ID_LENGTH:
        raise UnencodableValueError(f"{field} takes {MAX_ID_LENGTH} characters, not {len(text)}")
    return encode_string(text)


def _times(created_ms: int | None, ttl_ms: int) -> bytes:
    # The service takes expiry minus creation for the time to live where both are there, because the header's uint
    # ends at 49 days; so the SDKs write both, and so do we.
    if created_ms is None:
        raise UnencodableValueError("a time to live needs the time of creation")
    return encode_timestamp(expiry_ms(created_ms, ttl_ms)) + encode_timestamp(created_ms)


def _lasting(ttl_ms: int) -> bytes:
    # The header ends at 49 days: without this, messages that live for 50 and for 60 would have one derived id.
    return encode_timestamp(expiry_ms(0, ttl_ms)) + NULL


def _annotations(scheduled_ms: int | None, partition_key: str | None, session_id: str | None) -> bytes:
    content, count = b"", 0
    if scheduled_ms is not None:
        content, count = SCHEDULED_KEY + encode_timestamp(scheduled_ms), 2
    if partition_key is not None:
        if partition_key and session_id is not None and partition_key != session_id:
            raise UnencodableValueError(
                f"partition_key {partition_key!r} must equal session_id {session_id!r} where both are given"
            )
        content, count = content + PARTITION_KEY + _id(partition_key, "partition_key"), count + 2
    return ANNOTATIONS_PREFIX + join_map(content, count)


def _properties(first: bytes, middle: bytes, times: bytes, group: bytes) -> bytes:
    if first is NULL and middle is _NO_MIDDLE and times is _NO_TIMES and group is _NO_GROUP:
        return b""
    fields = b"".join((first, middle, times, group))
    return properties_head(len(fields)) + fields


def properties_head(size: int) -> bytes:
    """What stands before the fields of the properties, all thirteen of them in so many bytes."""
    if size < 255:
        return PROPERTIES8[size]
    return b"".join((PROPERTIES_PREFIX, b"\xd0", wide_size(size + 4), wide_size(_PROPERTY_COUNT)))


def data_head(size: int) -> bytes:
    """What stands before a body of so many bytes."""
    return _DATA_PREFIX + (bytes((0xA0, size)) if size < 256 else b"\xb0" + wide_size(size))


FEW = 2048
DATA_HEADS = [data_head(size) for size in range(FEW)]
"""For bodies of less than `FEW` bytes, and so for messages in a batch: looked up, not made."""
