"""A message or a row that was not sent, as people find it in Delta: readable, and nothing of it lost."""

import base64
import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_sb_sink import stored
from spark_sb_sink.amqp import (
    Byte,
    Char,
    Decimal32,
    Described,
    Float,
    Long,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    encode_message,
)
from tests.rows.support import not_utf8

NOW = 1_700_000_000_000
DAY = 86_400_000


def kept(**fields: Any) -> dict[str, Any]:
    return stored.of_message("orders", encode_message(fields.pop("body", b"body"), **fields), "all out")


def bad(of_all: str | None = "orders", /, **cells: Any) -> dict[str, Any]:
    arrays = {name: cell if isinstance(cell, pa.Array) else [cell] for name, cell in cells.items()}
    return stored.of_row(pa.record_batch(arrays), 0, "bad", of_all)


def row(found: dict[str, Any]) -> Any:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(found["row"], parse_constant=refuse)


# Messages


def test_a_message_is_kept_byte_for_byte_beside_what_people_read() -> None:
    message = encode_message(
        b"body",
        message_id="m1",
        session_id="s1",
        partition_key="s1",
        correlation_id="c1",
        subject="subject",
        content_type="text/plain",
        reply_to="answers",
        reply_to_session_id="r1",
        to="there",
        ttl_ms=5000,
        created_ms=NOW,
        scheduled_ms=NOW,
        application_properties={"a": "1"},
    )
    found = stored.of_message("orders", message, "all out")
    digest = found.pop("digest")
    assert len(digest) == 32
    assert found == {
        "entity": "orders",
        "message_id": "m1",
        "session_id": "s1",
        "partition_key": "s1",
        "correlation_id": "c1",
        "subject": "subject",
        "content_type": "text/plain",
        "reply_to": "answers",
        "reply_to_session_id": "r1",
        "to": "there",
        "body": b"body",
        "time_to_live_ms": 5000,
        "scheduled_enqueue_time": datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
        "application_properties": [("a", "1")],
        "message": message,
        "reason": "all out",
    }


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (None, None),
        (True, "true"),
        (False, "false"),
        ("ü", "ü"),
        (b"\0\xff", "AP8="),
        (7, "7"),
        (-1.5, "-1.5"),
        (Byte(-1), "-1"),
        (Short(-2), "-2"),
        (Long(2**40), "1099511627776"),
        (UByte(1), "1"),
        (UShort(2), "2"),
        (UInt(3), "3"),
        (ULong(2**64 - 1), "18446744073709551615"),
        (Float(0.5), "0.5"),
        (Decimal32(b"\1\2\3\4"), "01020304"),
        (Char("é"), "é"),
        (Symbol("sym"), "sym"),
        (Timestamp(NOW), "2023-11-14T22:13:20+00:00"),
        (Timestamp(2**62), "4611686018427387904 ms"),
        (UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (Described(Symbol("com.microsoft:timespan"), Long(600)), "600"),
        (Described(Symbol("d"), Described(Symbol("e"), True)), "true"),
    ],
    ids=repr,
)
def test_a_property_of_every_type_can_be_read(value: Any, read: str | None) -> None:
    found = kept(application_properties={"p": value})
    assert found["application_properties"] == [("p", read)]
    [column] = [
        array for name, array in zip(stored.COLUMNS, stored.to_arrow([found]), strict=True) if "properties" in name
    ]
    assert column.to_pylist() == [[("p", read)]]


def test_a_time_to_live_that_the_header_cannot_hold_is_told_in_full() -> None:
    assert kept(ttl_ms=100 * DAY, created_ms=NOW)["time_to_live_ms"] == 100 * DAY
    assert kept()["time_to_live_ms"] is None


def test_a_scheduled_time_beyond_the_calendar_is_left_to_the_message() -> None:
    found = kept(scheduled_ms=2**60)
    assert found["scheduled_enqueue_time"] is None
    assert found["message"] == encode_message(b"body", scheduled_ms=2**60)


def test_what_is_no_message_is_kept_as_its_bytes() -> None:
    found = stored.of_message("orders", b"no message", "odd")
    assert (found["entity"], found["message"], found["reason"]) == ("orders", b"no message", "odd")
    assert found["digest"] != stored.of_message("orders", b"no messages", "odd")["digest"]


texts = st.none() | st.text(st.characters(codec="utf-8"), max_size=5)
values = st.one_of(
    st.booleans(), st.integers(-5, 5), st.integers(-5, 5).map(Long), st.floats(allow_nan=False), texts, st.binary()
)
fields = st.fixed_dictionaries(
    {
        "body": st.binary(max_size=5),
        "message_id": texts,
        "session_id": texts,
        "subject": texts,
        "scheduled_ms": st.none() | st.integers(0, 5),
        "application_properties": st.dictionaries(st.text("ab", max_size=2), values, max_size=2),
    }
)


@given(
    fields,
    st.sampled_from([None, 1000, 100 * DAY, 9000 * 365 * DAY]),
    st.integers(0, 10**10),
    st.sampled_from(["no", "too large"]),
)
def test_the_same_row_encoded_later_has_the_same_digest_whatever_the_reason(
    given_fields: dict[str, Any], ttl: int | None, later: int, reason: str
) -> None:
    first = encode_message(**given_fields, ttl_ms=ttl, created_ms=NOW)
    again = encode_message(**given_fields, ttl_ms=ttl, created_ms=NOW + later)
    assert stored.of_message("e", first, "out")["digest"] == stored.of_message("e", again, reason)["digest"]


@given(fields, fields)
def test_different_messages_have_different_digests(one: dict[str, Any], other: dict[str, Any]) -> None:
    first, second = encode_message(**one), encode_message(**other)
    same = stored.of_message("e", first, "out")["digest"] == stored.of_message("e", second, "out")["digest"]
    assert same == (first == second)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"application_properties": {"p": 1}}, {"application_properties": {"p": Long(1)}}),
        ({"application_properties": {"p": 1}}, {"application_properties": {"p": True}}),
        ({"application_properties": {"p": "a"}}, {"application_properties": {"p": Symbol("a")}}),
        ({"ttl_ms": 1000, "created_ms": NOW}, {"ttl_ms": 2000, "created_ms": NOW}),
        ({"ttl_ms": 60 * DAY, "created_ms": NOW}, {"ttl_ms": 100 * DAY, "created_ms": NOW}),
        ({"session_id": "a"}, {"reply_to_session_id": "a"}),
        ({"body": b"a", "message_id": "b"}, {"body": b"b", "message_id": "a"}),
    ],
    ids=str,
)
def test_messages_that_differ_in_a_type_or_a_place_have_different_digests(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    assert kept(**one)["digest"] != kept(**other)["digest"]


def test_the_same_message_for_another_entity_has_another_digest() -> None:
    message = encode_message(b"body")
    assert stored.of_message("a", message, "")["digest"] != stored.of_message("b", message, "")["digest"]


# Rows


def test_a_row_that_became_no_message_is_kept_as_json_with_its_texts_in_their_columns() -> None:
    found = bad(None, body=None, entity="orders", message_id="m1", subject=None)
    assert row(found) == {"body": None, "entity": "orders", "message_id": "m1", "subject": None}
    assert (found["entity"], found["message_id"], found["subject"]) == ("orders", "m1", None)
    assert found["body"] is None
    assert "message" not in found
    assert found["reason"] == "bad"


def test_the_entity_of_all_rows_is_told_where_there_is_no_column() -> None:
    assert bad("orders", body="x")["entity"] == "orders"
    assert bad(None, body="x", entity=pa.array([None], pa.string()))["entity"] is None


def test_bodies_are_kept_as_they_would_have_been_sent() -> None:
    assert bad(body="ü")["body"] == "ü".encode()
    assert bad(body=b"\0\xff")["body"] == b"\0\xff"
    assert row(bad(body=b"\0\xff"))["body"] == {"base64": "AP8="}
    assert bad(body=not_utf8())["body"] == b"a\xff"


def test_a_text_that_is_no_utf8_is_kept_as_its_bytes() -> None:
    found = bad(body="x", subject=not_utf8(), entity=not_utf8())
    assert found["subject"] is found["entity"] is None
    assert base64.b64decode(row(found)["subject"]["base64"]) == b"a\xff"


@pytest.mark.parametrize(
    "cell",
    [
        pa.array([2**62], pa.timestamp("us", "UTC")),
        pa.array([-(2**62)], pa.timestamp("us")),
        pa.MapArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array(["key"]), not_utf8()),
        pa.StructArray.from_arrays([not_utf8()], ["field"]),
        pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array([2**62], pa.timestamp("us", "UTC"))),
        pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["twice", "twice"]),
    ],
    ids=lambda cell: str(cell.type),
)
def test_a_cell_that_python_has_no_value_for_comes_back_from_the_row_as_it_was(cell: pa.Array) -> None:
    found = bad(body="x", odd=cell)
    with pa.ipc.open_stream(base64.b64decode(row(found)["odd"]["arrow"])) as stream:
        assert stream.read_next_batch().column("cell").equals(cell)


@pytest.mark.parametrize(
    ("cell", "read"),
    [
        (pa.array([datetime(2026, 1, 2, tzinfo=UTC)], pa.timestamp("us", "UTC")), "2026-01-02T00:00:00+00:00"),
        (pa.array([datetime(2026, 1, 2)], pa.timestamp("us")), "2026-01-02T00:00:00"),
        (pa.array([timedelta(milliseconds=-1500)], pa.duration("us")), "-1.500000 s"),
        (pa.array([2**63 - 1], pa.duration("us")), "9223372036854.775807 s"),
        (pa.array([Decimal("1.20")]), "1.20"),
        (pa.array([float("nan")]), "nan"),
        (pa.array([float("-inf")]), "-inf"),
        (pa.array([1.5]), 1.5),
        (pa.array([2**60]), 2**60),
        (pa.array([True]), True),
        (
            pa.array([{"a": {"b": [1.5, float("inf")], "c": b"\xff"}}]),
            {"a": {"b": [1.5, "inf"], "c": {"base64": "/w=="}}},
        ),
        (pa.array([[("k", 1), ("k", 2)]], pa.map_(pa.string(), pa.int32())), [["k", 1], ["k", 2]]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_other_cells_are_read_in_the_row_as_json(cell: pa.Array, read: Any) -> None:
    assert row(bad(body="x", odd=cell))["odd"] == read


def test_the_right_row_of_a_slice_is_kept() -> None:
    batch = pa.record_batch({"body": ["a", "b", "c"], "entity": ["x", "y", "z"]}).slice(1)
    assert row(stored.of_row(batch, 1, "bad", None)) == {"body": "c", "entity": "z"}


def test_rows_that_differ_have_different_digests_and_the_same_row_has_the_same() -> None:
    assert bad(body="a")["digest"] == bad(body="a")["digest"]
    assert bad(body="a")["digest"] != bad(body="b")["digest"]
    assert bad(body="a")["digest"] != bad(body=b"a")["digest"]
    assert bad("orders", body="a")["digest"] != bad("bills", body="a")["digest"]


def test_messages_and_rows_go_into_one_batch_of_arrow_with_nulls_where_nothing_is() -> None:
    columns = dict(zip(stored.COLUMNS, stored.to_arrow([kept(message_id="m1"), bad(body="x")]), strict=True))
    assert columns["message_id"].to_pylist() == ["m1", None]
    assert columns["row"].to_pylist() == [None, '{"body": "x"}']
    assert columns["scheduled_enqueue_time"].type == pa.timestamp("us", "UTC")
