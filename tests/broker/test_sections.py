"""What the broker reads in a message and what it leaves alone, against the SDK's own encoder and decoder."""

import struct
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from azure.servicebus._pyamqp._decode import decode_payload
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._pyamqp.message import Header, Message, Properties
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_sb_sink.broker import delivered, sections
from spark_sb_sink.broker.sections import Incoming, MalformedError

many = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])

text = st.text(max_size=40)
bodies = st.binary(max_size=300)
simple = (
    text
    | st.integers(-(2**31), 2**31 - 1)
    | st.booleans()
    | st.floats(allow_nan=False)
    | st.binary(max_size=20)
    | st.uuids()
    | st.integers(-(2**63), 2**63 - 1).map(lambda n: {"TYPE": "LONG", "VALUE": n})
)
headers = st.builds(
    Header,
    durable=st.none() | st.booleans(),
    priority=st.none() | st.integers(0, 9),
    ttl=st.none() | st.integers(0, 2**32 - 1),
    first_acquirer=st.none() | st.booleans(),
    delivery_count=st.none() | st.integers(0, 100),
)
properties = st.builds(
    Properties,
    message_id=st.none() | text,
    user_id=st.none() | st.binary(max_size=10),
    to=st.none() | text,
    subject=st.none() | text,
    reply_to=st.none() | text,
    correlation_id=st.none() | text,
    content_type=st.none() | text,
    content_encoding=st.none() | text,
    group_id=st.none() | text,
    group_sequence=st.none() | st.integers(0, 2**32 - 1),
    reply_to_group_id=st.none() | text,
)
times = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))
annotations = st.fixed_dictionaries(
    {},
    optional={
        b"x-opt-partition-key": text,
        b"x-opt-scheduled-enqueue-time": times.map(
            lambda at: {"TYPE": "TIMESTAMP", "VALUE": int(at.timestamp() * 1000)}
        ),
        b"x-opt-mine": text | st.integers(0, 5),
        b"x-opt-sequence-number": st.integers(0, 5),
    },
)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    body: dict[str, Any] = draw(
        st.one_of(
            st.lists(bodies, min_size=1, max_size=3).map(lambda parts: {"data": parts}),
            st.lists(st.lists(simple, max_size=3), min_size=1, max_size=2).map(lambda parts: {"sequence": parts}),
            text.filter(bool).map(lambda value: {"value": value}),
        )
    )
    return Message(
        header=draw(st.none() | headers),
        message_annotations=draw(st.none() | annotations),
        properties=draw(st.none() | properties),
        application_properties=draw(st.none() | st.dictionaries(text, simple, max_size=4)),
        footer=draw(st.none() | st.dictionaries(st.sampled_from([b"a", b"b"]), text, max_size=2)),
        **body,
    )


def encoded(message: Message) -> bytes:
    output = bytearray()
    encode_payload(output, message)
    return bytes(output)


def as_delivered(message: Incoming, delivery_count: int = 0) -> bytes:
    extra = delivered.outgoing_annotations(7, 5, 1_700_000_000.5, 0, 1_700_000_060.0, "q", 3)
    return delivered.outgoing(message, delivery_count, *extra)


@many
@given(messages())
def test_the_fields_that_a_broker_acts_on_are_read_as_the_sdk_wrote_them(message: Message) -> None:
    found = sections.incoming(encoded(message))
    given_properties = message.properties or Properties()
    given_annotations = message.message_annotations or {}
    scheduled = given_annotations.get(b"x-opt-scheduled-enqueue-time")
    assert found.message_id == given_properties.message_id
    assert found.session_id == given_properties.group_id
    assert found.content_type == given_properties.content_type
    assert found.partition_key == given_annotations.get(b"x-opt-partition-key")
    assert found.scheduled_at == (None if scheduled is None else scheduled["VALUE"] / 1000)
    ttl = message.header.ttl if message.header else None
    assert found.ttl == (None if ttl is None else ttl / 1000)
    assert found.size == len(encoded(message))


@many
@given(messages(), st.integers(0, 2**32 - 1))
def test_all_behind_the_annotations_is_delivered_byte_for_byte(message: Message, delivery_count: int) -> None:
    bare = encoded(message._replace(header=None, message_annotations=None))
    found = sections.incoming(encoded(message))
    assert found.bare == bare
    assert as_delivered(found, delivery_count).endswith(bare)
    before, after = (
        decode_payload(memoryview(encoded(message))),
        decode_payload(memoryview(as_delivered(found, delivery_count))),
    )
    for field in ("properties", "application_properties", "data", "sequence", "value", "footer"):
        assert getattr(after, field) == getattr(before, field)
    sent = before.header or Header()
    assert after.header[:4] == sent[:4]
    assert after.header[4] == delivery_count
    own = {
        b"x-opt-sequence-number": 7,
        b"x-opt-enqueue-sequence-number": 5,
        b"x-opt-enqueued-time": 1_700_000_000_500,
        b"x-opt-locked-until": 1_700_000_060_000,
        b"x-opt-message-state": 0,
        b"x-opt-deadletter-source": b"q",
        b"x-opt-partition-id": 3,
    }
    assert after.message_annotations == {**(before.message_annotations or {}), **own}


@many
@given(messages())
def test_what_was_delivered_can_be_sent_on_and_is_read_the_same(message: Message) -> None:
    first = sections.incoming(encoded(message))
    again = sections.incoming(as_delivered(first, 4))
    assert (again.bare, again.annotations, again.header) == (first.bare, first.annotations, first.header or b"\x40" * 4)


@many
@given(messages(), text, text)
def test_a_dead_letter_gets_its_reason_and_keeps_all_else(message: Message, reason: str, description: str) -> None:
    bare = sections.incoming(encoded(message)).bare
    added = {"DeadLetterReason": reason, "DeadLetterErrorDescription": description}
    twice = delivered.with_application_properties(
        delivered.with_application_properties(bare, {"DeadLetterReason": "old"}), added
    )
    before, after = decode_payload(memoryview(bare)), decode_payload(memoryview(twice))
    for field in ("properties", "data", "sequence", "value", "footer"):
        assert getattr(after, field) == getattr(before, field)
    kept = {key: value for key, value in (before.application_properties or {}).items() if key.decode() not in added}
    new = {key.encode(): value.encode() for key, value in added.items()}
    assert after.application_properties == {**kept, **new}
    sections.incoming(twice)


@many
@given(st.lists(messages().map(encoded), min_size=1, max_size=5))
def test_a_batch_of_the_sdk_comes_apart_into_its_messages(members: list[bytes]) -> None:
    assert sections.batch_members(encoded(Message(data=members))) == members


@many
@given(messages())
def test_filters_see_the_properties_that_the_sdk_wrote(message: Message) -> None:
    bare = sections.incoming(encoded(message)).bare
    found = sections.properties(bare)
    given_properties = message.properties or Properties()
    assert found.get("subject") == given_properties.subject
    assert found.get("to") == given_properties.to
    assert found.get("correlation_id") == given_properties.correlation_id
    assert found.get("reply_to_session_id") == given_properties.reply_to_group_id
    wanted = {
        key: value["VALUE"] if isinstance(value, dict) else value
        for key, value in (message.application_properties or {}).items()
    }
    assert sections.application_properties(bare) == wanted


# Whatever comes


def read_all(data: bytes) -> None:
    """Read as a message and as a batch. What `incoming` takes, everything after it can read."""
    try:
        found = sections.incoming(data)
    except MalformedError as error:
        assert str(error)  # noqa: PT017
    else:
        as_delivered(found)
        sections.properties(found.bare)
        sections.application_properties(found.bare)
        sections.incoming(delivered.with_application_properties(found.bare, {"DeadLetterReason": "x"}))
    try:
        sections.batch_members(data)
    except MalformedError as error:
        assert str(error)  # noqa: PT017


@many
@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_malformed(data: bytes) -> None:
    read_all(data)


@many
@given(
    st.lists(st.sampled_from(range(0x70, 0x79)), min_size=1, max_size=5), st.lists(st.binary(max_size=30), min_size=5)
)
def test_any_sections_are_a_message_or_malformed(codes: list[int], values: list[bytes]) -> None:
    read_all(b"".join(b"\x00\x53" + bytes([code]) + value for code, value in zip(codes, values, strict=False)))


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    data = bytearray(encoded(draw(messages())))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data) - 1))
        data[at] = draw(st.integers(0, 255) | st.sampled_from([0x00, 0x40, 0x45, 0xC0, 0xC1, 0xD0, 0xD1, 0xFF]))
    return bytes(data[: draw(st.integers(1, len(data)) | st.just(len(data)))])


@settings(many, max_examples=250)
@given(damaged())
def test_a_damaged_message_is_still_a_message_or_malformed(data: bytes) -> None:
    read_all(data)


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (b"", "no body"),
        (b"\x00\x53\x70\x45", "no body"),
        (b"\x00\x53\x75", "byte 3"),
        (b"\x00\x53\x79\x45", "unknown section"),
        (b"\x00\x53\x75\xa0\x05abc", "ends at byte"),
        (b"\x00\x53\x75\xb0\xff\xff\xff\xffabc", "ends at byte"),
        (b"\x00\x53\x73\xa1\x01a", "list or map"),
        (b"\x00\x53\x73\xc0\x02\x05\x40", "cut short"),
        (b"\x00\x53\x73\xc0\x03\x01\x40\x40", "does not end"),
        (b"\x00\x53\x74\xc1\x02\x04\x40\x00\x53\x75\xa0\x00", "does not end"),
        (b"\x00\x53\x74\xd1" + struct.pack(">II", 5, 2**32 - 1) + b"\x40\x00\x53\x75\xa0\x00", "does not end"),
        (b"\x00\x53\x75\xa0\x00\x00\x53\x70\x45", "out of order"),
        (b"\x00\x53\x73\x45\x00\x53\x73\x45", "out of order"),
        (b"\x00" * 100, "section should start"),
        (b"\x00\x53\x77" + b"\x00" * 3000 + b"\x40", "nested"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_malformed_messages_are_named(data: bytes, part: str) -> None:
    with pytest.raises(MalformedError, match=part):
        sections.incoming(data)


def test_ids_of_every_amqp_type_are_taken() -> None:
    def with_id(value: bytes) -> str | None:
        body = bytes([1]) + value
        return sections.incoming(b"\x00\x53\x73\xc0" + bytes([len(body)]) + body + b"\x00\x53\x75\xa0\x00").message_id

    number = uuid.uuid4()
    assert with_id(b"\x98" + number.bytes) == str(number)
    assert with_id(b"\x80" + (2**63).to_bytes(8, "big")) == str(2**63)
    assert with_id(b"\x44") == "0"
    assert with_id(b"\xa0\x02\x01\xff") == "01ff"
    assert with_id(b"\xa1\x01\xff") == "\ufffd"
