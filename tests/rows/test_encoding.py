"""A row becomes the message that a plain SDK send would make of it, or is told as bad; it never raises."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest

from spark_sb_sink.amqp import Long, Map, Symbol, Timestamp, decode_message
from spark_sb_sink.envelope.aliases import ALIAS_KEYS
from spark_sb_sink.rows import check_schema, encode_batch, fields_of_arrow
from spark_sb_sink.rows.encoding import MAX_REASON
from tests.amqp.sdk import sdk_bytes, sdk_message
from tests.amqp.strategies import typed
from tests.rows.support import NOW_MS, encode, ids, message_of, not_utf8, one, reason_of

WHEN = datetime(2024, 2, 29, 12, 30, 15, 123_999, tzinfo=UTC)
WHEN_MS = 1_709_209_815_123
TEXT_MAP = pa.map_(pa.string(), pa.string())
TEXT_STRUCT = pa.struct([("a", pa.string()), ("b", pa.string()), ("c", pa.string())])


def properties_of(cell: pa.Array) -> object:
    return typed(message_of(application_properties=cell).application_properties)


def test_a_message_is_that_of_a_plain_sdk_send():
    fields = {
        "body": b"some bytes",
        "message_id": "m-1",
        "session_id": "s",
        "partition_key": "s",
        "correlation_id": "c",
        "subject": "Täst",
        "content_type": "application/json",
        "reply_to": "replies",
        "reply_to_session_id": "rs",
        "to": "elsewhere",
        "application_properties": {"text": "t", "number": 5, "share": 0.5, "flag": True},
    }
    encoded = encode({name: [value] for name, value in fields.items() if name != "application_properties"} | {
        "application_properties": pa.array(
            [fields["application_properties"]],
            pa.struct([("text", pa.string()), ("number", pa.int32()), ("share", pa.float64()), ("flag", pa.bool_())]),
        ),
        "scheduled_enqueue_time": one(WHEN, pa.timestamp("us", "UTC")),
    })  # fmt: skip
    theirs = sdk_message(fields | {"ttl_ms": None, "created_ms": None, "scheduled_ms": WHEN_MS})
    assert encoded.entities["orders"].messages == [sdk_bytes(theirs)]


@pytest.mark.parametrize("of", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()], ids=str)
def test_a_body_is_sent_as_its_bytes_and_a_string_as_utf8(of):
    text = "Grüße 🎉"
    binary = "binary" in str(of)
    assert message_of(body=one(text.encode() if binary else text, of)).data == text.encode()


def test_a_string_body_that_is_no_utf8_is_sent_unchanged():
    assert message_of(body=not_utf8()).data == b"a\xff"


@pytest.mark.parametrize("empty", ["", b""])
def test_an_empty_body_is_a_message_and_a_null_body_is_none(empty):
    assert message_of(body=empty).data == b""
    assert reason_of(body=one(None, pa.string())) == "body is null"


def test_null_means_not_set():
    nothing = {
        name: one(None, pa.string())
        for name in ("session_id", "partition_key", "correlation_id", "subject", "content_type", "reply_to", "to")
    }
    message = message_of(
        message_id="m",
        time_to_live=one(None, pa.duration("us")),
        scheduled_enqueue_time=one(None, pa.timestamp("us", "UTC")),
        application_properties=one(None, TEXT_MAP),
        reply_to_session_id=pa.nulls(1),
        **nothing,
    )
    assert message == message_of(message_id="m")


def test_rows_go_to_their_entities_in_their_order():
    encoded = encode({"entity": ["a", "b", None, "a", "no//name", "a"], "body": [b"0", b"1", b"2", b"3", b"4", b"5"]})
    assert {entity: found.rows for entity, found in encoded.entities.items()} == {"a": [0, 3, 5], "b": [1]}
    assert [decode_message(message).data for message in encoded.entities["a"].messages] == [b"0", b"3", b"5"]
    assert [bad.row for bad in encoded.bad] == [2, 4]
    assert encoded.bad[0].reason == "entity is null"
    assert encoded.bad[1].reason.startswith("entity takes the name of a queue or topic")


@pytest.mark.parametrize("name", ["", " ", "a b", "/a", "a/", "x" * 261, "p/x-servicebus-transfer/0", "ä"])
def test_what_is_no_name_of_an_entity_is_a_bad_row(name):
    assert "entity takes the name of a queue or topic" in reason_of(entity=name)


def test_a_slice_of_a_batch_and_a_batch_without_rows_are_encoded_as_they_are():
    whole = pa.record_batch({
        "body": ["a", "b", "c", "d"],
        "message_id": ["1", "2", "3", "4"],
        "application_properties": pa.array([[("k", "a")], [("k", "b")], None, [("k", "d"), ("l", "e")]], TEXT_MAP),
    })  # fmt: skip
    plan = check_schema(fields_of_arrow(whole.schema), "orders")
    parts = [encode_batch(whole.slice(at, 1), plan, ids(), NOW_MS).entities["orders"].messages[0] for at in range(4)]
    assert parts == encode_batch(whole, plan, ids(), NOW_MS).entities["orders"].messages
    nothing = encode_batch(whole.slice(0, 0), plan, ids(), NOW_MS)
    assert (nothing.entities, nothing.bad) == ({}, [])


@pytest.mark.parametrize(
    ("of", "value", "expected"),
    [
        (pa.string(), "text", "text"),
        (pa.string(), "", ""),
        (pa.int8(), -128, -128),
        (pa.int16(), 32_767, 32_767),
        (pa.int32(), -(2**31), -(2**31)),
        (pa.int64(), 1, Long(1)),
        (pa.int64(), 2**63 - 1, Long(2**63 - 1)),
        (pa.float32(), 0.5, 0.5),
        (pa.float64(), 0.1, 0.1),
        (pa.float64(), float("nan"), float("nan")),
        (pa.bool_(), True, True),
        (pa.binary(), b"\0\xff", b"\0\xff"),
        (pa.timestamp("us", "UTC"), WHEN, Timestamp(WHEN_MS)),
        (pa.timestamp("us", "Europe/Berlin"), WHEN, Timestamp(WHEN_MS)),
        (pa.timestamp("us"), WHEN.replace(tzinfo=None), Timestamp(WHEN_MS)),
        (pa.timestamp("us", "UTC"), datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC), Timestamp(-1)),
    ],
)
def test_the_type_of_a_property_follows_from_its_column_in_struct_and_map(of, value, expected):
    alone = typed(Map((("p", expected),)))
    assert properties_of(one({"p": value}, pa.struct([("p", of)]))) == alone
    assert properties_of(one([("p", value)], pa.map_(pa.string(), of))) == alone


@pytest.mark.parametrize(
    "cell",
    [
        one(None, TEXT_MAP),
        one([], TEXT_MAP),
        one([("a", None)], TEXT_MAP),
        one([("a", None)], pa.map_(pa.string(), pa.null())),
        one({"a": None}, pa.struct([("a", pa.int32())])),
        one(None, pa.struct([("a", pa.int32())])),
        one({"a": None}, pa.struct([("a", pa.null())])),
        one({}, pa.struct([])),
        pa.nulls(1),
    ],
    ids=lambda cell: f"{cell.type}: {cell[0]}",
)
def test_properties_that_are_null_are_not_sent(cell):
    assert message_of(message_id="m", application_properties=cell) == message_of(message_id="m")


def test_what_stands_behind_a_null_map_or_struct_is_not_looked_at():
    full = pa.MapArray.from_arrays([0, 1], ["x-ms-path"], ["v"])
    null_map = pa.Array.from_buffers(
        full.type,
        1,
        [pa.py_buffer(b"\0"), full.buffers()[1]],
        children=[pa.StructArray.from_arrays([full.keys, full.items], names=["key", "value"])],
    )
    null_struct = pa.StructArray.from_arrays([not_utf8()], names=["p"], mask=pa.array([True]))
    for cell in (null_map, null_struct):
        assert message_of(message_id="m", application_properties=cell) == message_of(message_id="m")


def test_a_null_among_properties_leaves_the_others():
    left = typed(Map((("a", "1"), ("c", "3"))))
    assert properties_of(one([("a", "1"), ("b", None), ("c", "3")], TEXT_MAP)) == left
    assert properties_of(pa.array([{"a": "1", "b": None, "c": "3"}], TEXT_STRUCT)) == left


@pytest.mark.parametrize("name", sorted(set(ALIAS_KEYS.values())))
def test_a_property_with_a_name_of_the_envelope_makes_a_bad_row(name):
    cells = pa.array([[("ok", "1")], [("ok", "1"), (name, "x")], None], TEXT_MAP)
    encoded = encode({"application_properties": cells})
    assert encoded.entities["orders"].rows == [0, 2]
    assert encoded.bad[0].row == 1
    assert name in encoded.bad[0].reason


SECOND, HOUR = 1000, 3_600_000


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (one(timedelta(hours=1), pa.duration("us")), HOUR),
        (one(timedelta(microseconds=1), pa.duration("us")), 1),
        (one(timedelta(microseconds=1500), pa.duration("us")), 2),
        (one(60, pa.duration("s")), 60 * SECOND),
        (one(60, pa.int32()), 60 * SECOND),
        (one(60, pa.int64()), 60 * SECOND),
        (one(0.55, pa.float64()), 550),
        (one(0.1, pa.float32()), 100),
        (one(5e-324, pa.float64()), 1),
        (one(Decimal("1.001"), pa.decimal128(38, 18)), 1001),
        (one(2**62, pa.int64()), None),
        (one(1.7e308, pa.float64()), None),
        (one(2**63 - 1, pa.duration("s")), None),
    ],
)
def test_a_time_to_live_is_milliseconds_and_without_end_where_dotnets_timespan_ends(cell, expected):
    message = message_of(time_to_live=cell)
    assert message.ttl_ms == expected
    assert message.creation_time == (None if expected is None else Timestamp(NOW_MS))
    assert message.absolute_expiry_time == (None if expected is None else Timestamp(NOW_MS + expected))


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        (one(0, pa.int32()), "0 s"),
        (one(-1, pa.int64()), "-1 s"),
        (one(0.0, pa.float64()), "0.0 s"),
        (one(float("nan"), pa.float64()), "nan s"),
        (one(float("inf"), pa.float64()), "inf s"),
        (one(float("-inf"), pa.float32()), "-inf s"),
        (one(timedelta(0), pa.duration("us")), "0 us"),
        (one(-(2**63) + 1, pa.duration("ns")), "ns"),
        (one(Decimal("-0.5"), pa.decimal128(3, 1)), "-0.5 s"),
    ],
)
def test_a_time_to_live_of_nothing_or_less_is_a_bad_row(cell, shown):
    reason = reason_of(time_to_live=cell)
    assert reason.startswith("time_to_live takes a time of more than zero, not ")
    assert shown in reason


@pytest.mark.parametrize("of", [pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.timestamp("ns", "Asia/Tokyo")])
def test_a_scheduled_time_is_utc_with_and_without_a_zone(of):
    cell = pa.array([WHEN_MS * 1000 + 999], pa.int64()).cast(pa.timestamp("us")).cast(of)
    assert message_of(scheduled_enqueue_time=cell).scheduled_ms == WHEN_MS


@pytest.mark.parametrize("ticks", [2**63 - 1, -(2**63) + 1])
def test_a_time_that_no_receiver_could_read_is_a_bad_row(ticks):
    far = pa.array([ticks], pa.int64()).cast(pa.timestamp("us", "UTC"))
    assert reason_of(scheduled_enqueue_time=far).startswith("scheduled_enqueue_time takes times of the years 1 to 9999")
    struct = pa.StructArray.from_arrays([far], names=["at"])
    assert reason_of(application_properties=struct).startswith("application_properties.at takes times")


@pytest.mark.parametrize(
    ("cells", "text"),
    [
        ({"message_id": "m" * 129}, "message_id takes 128 characters, not 129"),
        ({"message_id": ""}, "message_id is empty"),
        ({"session_id": "s" * 129}, "session_id takes 128 characters"),
        ({"session_id": "s", "partition_key": "p"}, "partition_key 'p' must equal session_id 's'"),
        ({"content_type": "té"}, "content_type takes ASCII text, not 'té'"),
        ({"subject": not_utf8()}, "subject is no UTF-8 text: invalid start byte at byte 1"),
        ({"entity": not_utf8()}, "entity is no UTF-8 text"),
        ({"application_properties": pa.MapArray.from_arrays([0, 1], not_utf8(), ["v"])}, "a name in application_prop"),
        ({"application_properties": pa.MapArray.from_arrays([0, 1], ["k"], not_utf8())}, "a value in application_prop"),
        ({"application_properties": pa.MapArray.from_arrays([0, 2], ["k", "k"], ["v", "w"])}, "has a name twice"),
        ({"application_properties": pa.StructArray.from_arrays([not_utf8()], names=["p"])}, "application_properties.p"),
    ],
)
def test_a_row_that_breaks_the_contract_is_told_with_its_reason(cells, text):
    assert text in reason_of(**cells)


def test_a_long_reason_is_cut():
    assert len(reason_of(session_id="s", partition_key="p" * 10_000)) == MAX_REASON


def test_a_content_type_is_a_symbol_as_with_the_sdk():
    assert message_of(content_type="text/plain").content_type == Symbol("text/plain")
