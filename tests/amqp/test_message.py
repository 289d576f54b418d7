"""One row to one message: the bytes that the SDK would have sent."""

import pytest
from hypothesis import given

from spark_sb_sink.amqp import (
    Described,
    Long,
    Map,
    Symbol,
    Timestamp,
    UInt,
    UnencodableValueError,
    decode_message,
    encode_message,
)
from spark_sb_sink.amqp.message import application_section
from tests.amqp.sdk import sdk_bytes, sdk_decoded, sdk_message
from tests.amqp.strategies import row_fields, typed, typed_message

DAY_MS = 86_400_000


@given(row_fields(sdk=True))
def test_the_message_on_the_wire_is_that_of_a_plain_sdk_send(fields):
    theirs = sdk_bytes(sdk_message(fields))
    created = decode_message(theirs).creation_time
    if isinstance(created, Timestamp):
        fields["created_ms"] = created.value
    ours = encode_message(**fields)
    assert ours == theirs
    assert typed_message(decode_message(ours)) == typed_message(decode_message(theirs))
    assert repr(sdk_decoded(ours)) == repr(sdk_decoded(theirs))


@pytest.mark.parametrize("size", range(225, 262))
def test_short_and_long_forms_change_where_the_sdks_do(size):
    fields = {
        "body": b"x" * size,
        "message_id": None,
        "subject": "s" * size,
        "application_properties": {"name": "v" * size},
        "ttl_ms": None,
        "created_ms": None,
        "scheduled_ms": None,
    }
    assert encode_message(**fields) == sdk_bytes(sdk_message(fields))


@given(row_fields())
def test_every_field_comes_back(fields):
    message = decode_message(encode_message(**fields))
    body = fields["body"]
    assert message.data == (body.encode() if isinstance(body, str) else body)
    for name in ("message_id", "session_id", "partition_key", "correlation_id", "subject", "reply_to", "to"):
        assert getattr(message, name) == fields[name]
    assert message.reply_to_session_id == fields["reply_to_session_id"]
    content_type = fields["content_type"]
    assert message.content_type == (None if content_type is None else Symbol(content_type))
    assert message.scheduled_ms == fields["scheduled_ms"]
    ttl = fields["ttl_ms"]
    assert message.ttl_ms == (None if ttl is None else min(ttl, 2**32 - 1))
    if ttl:
        assert message.creation_time == Timestamp(fields["created_ms"])
        assert message.absolute_expiry_time == Timestamp(fields["created_ms"] + ttl)
    names = [name for name, _ in message.application_properties.pairs]
    assert names == list(fields["application_properties"] or {})


def test_a_time_to_live_over_49_days_is_carried_by_the_expiry_time():
    message = decode_message(encode_message(b"", ttl_ms=100 * DAY_MS, created_ms=1000))
    assert message.header[2] == UInt(2**32 - 1)
    assert message.absolute_expiry_time == Timestamp(100 * DAY_MS + 1000)


def test_a_time_to_live_without_end_is_none():
    assert encode_message(b"x", ttl_ms=922_337_203_685_477) == encode_message(b"x")


def test_the_expiry_time_stops_where_the_sdks_does():
    message = decode_message(encode_message(b"", ttl_ms=400_000_000_000_000, created_ms=1000))
    assert message.absolute_expiry_time == Timestamp(253_402_243_199_000)


def test_application_properties_keep_their_amqp_types():
    timespan = Described(Symbol("com.microsoft:timespan"), Long(5))
    properties = {"int": 1, "long": Long(1), "big": 2**40, "flag": True, "double": 1.0, "timespan": timespan}
    decoded = decode_message(encode_message(b"", application_properties=properties)).application_properties
    expected = properties | {"big": Long(2**40)}
    assert typed(decoded) == typed(Map(tuple(expected.items())))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"message_id": "m" * 129}, "message_id takes 128 characters, not 129"),
        ({"session_id": "s" * 129}, "session_id takes 128"),
        ({"partition_key": "p" * 129}, "partition_key takes 128"),
        ({"reply_to_session_id": "r" * 129}, "reply_to_session_id takes 128"),
        ({"partition_key": "p", "session_id": "s"}, "partition_key 'p' must equal session_id 's'"),
        ({"content_type": "é"}, "symbol takes ASCII text"),
        ({"subject": "\ud800"}, "not Unicode text"),
        ({"ttl_ms": -1, "created_ms": 0}, "cannot be negative"),
        ({"ttl_ms": 1000}, "needs the time of creation"),
        ({"scheduled_ms": 2**63}, "timestamp takes 64 bits"),
        ({"application_properties": {"a": [1]}}, "application property 'a': a Python list is none of"),
        ({"application_properties": {"a": 2**64}}, "application property 'a': .* needs more"),
        ({"application_properties": {1: "a"}}, "application property 1: its name must be text"),
    ],
)
def test_a_row_that_cannot_be_a_message_is_refused_with_a_reason(fields, text):
    with pytest.raises(UnencodableValueError, match=text):
        encode_message(b"", **fields)


@given(row_fields())
def test_a_derived_id_sees_the_whole_message_but_not_the_time_of_sending(fields):
    del fields["message_id"]
    seen = []

    def derive(message: bytes) -> str:
        seen.append(message)
        return "derived"

    encoded = encode_message(**fields, derive_id=derive)
    later = encode_message(**fields | {"created_ms": fields["created_ms"] + 1}, derive_id=derive)
    assert seen[0] == seen[1]
    assert decode_message(later).message_id == "derived"
    assert encoded == encode_message(**fields, message_id="derived")
    unnamed = decode_message(seen[0])
    assert unnamed.message_id is None
    assert unnamed.creation_time is None
    assert typed(unnamed.application_properties) == typed(decode_message(encoded).application_properties)


def test_a_given_id_is_not_derived():
    assert decode_message(encode_message(b"", message_id="m", derive_id=lambda _: "other")).message_id == "m"


def test_times_to_live_that_the_header_cannot_tell_apart_do_not_share_a_derived_id():
    seen = set()
    for ttl in (50 * DAY_MS, 60 * DAY_MS):
        encode_message(b"", ttl_ms=ttl, created_ms=1000, derive_id=lambda raw: seen.add(raw) or "derived")
    assert len(seen) == 2


@given(row_fields())
def test_properties_that_come_encoded_make_the_same_message(fields):
    plain = encode_message(**fields)
    properties = fields.pop("application_properties")
    section = application_section(properties) if properties else b""
    assert encode_message(**fields, encoded_properties=section) == plain
