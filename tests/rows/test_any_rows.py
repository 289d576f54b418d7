"""Whatever a column of the contract's types holds: each row is a message that reads as it did, or is told as bad."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_sb_sink.amqp import Long, Map, Symbol, Timestamp, decode_message
from spark_sb_sink.rows import check_schema, encode_batch, fields_of_arrow
from spark_sb_sink.rows.contract import ALIAS_NAMES, TEXT_COLUMNS
from tests.amqp.strategies import typed
from tests.rows.support import NOW_MS, ids

int64s = st.integers(-(2**63), 2**63 - 1)
texts = st.one_of(st.text(max_size=140), st.sampled_from(sorted(ALIAS_NAMES)))
# Strings as bytes: mostly text, and now and then none.
raw_texts = st.one_of(texts.map(str.encode), texts.map(str.encode), texts.map(str.encode), st.binary(max_size=4))
entities = st.one_of(st.just(b"orders"), st.just(b"topics/a"), raw_texts)
SIMPLE = {
    pa.string(): raw_texts,
    pa.binary(): st.binary(max_size=20),
    pa.int8(): st.integers(-128, 127),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): int64s,
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.bool_(): st.booleans(),
    pa.timestamp("us", "UTC"): int64s,
    pa.timestamp("ns"): int64s,
}
LIFETIMES = {pa.duration("us"): int64s, pa.int64(): int64s, pa.float64(): st.floats(), pa.int32(): SIMPLE[pa.int32()]}


def column(cells: list, of: pa.DataType) -> pa.Array:
    """Any bits that the type can hold: also those that pyarrow would not make of Python values."""
    if of == pa.string():
        raw = pa.array(cells, pa.binary())
        return pa.Array.from_buffers(of, len(raw), raw.buffers(), raw.null_count)
    if pa.types.is_timestamp(of) or pa.types.is_duration(of):
        return pa.array(cells, pa.int64()).view(of)
    return pa.array(cells, of)


def cells(draw, strategy, size):
    return draw(st.lists(st.one_of(strategy, strategy, st.none()), min_size=size, max_size=size))


@st.composite
def batches(draw):
    size = draw(st.integers(0, 6))
    of_body = draw(st.sampled_from([pa.string(), pa.binary()]))
    columns = {"entity": column(cells(draw, entities, size), pa.string())}
    columns["body"] = column(cells(draw, raw_texts, size), of_body)
    for name in draw(st.sets(st.sampled_from(TEXT_COLUMNS))):
        columns[name] = column(cells(draw, raw_texts, size), pa.string())
    if draw(st.booleans()):
        of, strategy = draw(st.sampled_from(list(LIFETIMES.items())))
        columns["time_to_live"] = column(cells(draw, strategy, size), of)
    if draw(st.booleans()):
        columns["scheduled_enqueue_time"] = column(cells(draw, int64s, size), pa.timestamp("us", "UTC"))
    how = draw(st.sampled_from(["none", "struct", "map"]))
    if how == "struct":
        kinds = draw(st.lists(st.sampled_from(list(SIMPLE)), min_size=1, max_size=4))
        columns["application_properties"] = pa.StructArray.from_arrays(
            [column(cells(draw, SIMPLE[of], size), of) for of in kinds], names=[f"p{at}" for at in range(len(kinds))]
        )
    elif how == "map":
        of = draw(st.sampled_from(list(SIMPLE)))
        ends = sorted(draw(st.lists(st.integers(0, 8), min_size=size, max_size=size)))
        count = ends[-1] if ends else 0
        keys = draw(st.lists(raw_texts, min_size=count, max_size=count))
        columns["application_properties"] = pa.MapArray.from_arrays(
            pa.array([0, *ends], pa.int32()), column(keys, pa.string()), column(cells(draw, SIMPLE[of], count), of)
        )
    return pa.record_batch(columns)


@settings(max_examples=300, deadline=None)
@given(batches())
def test_every_row_is_a_message_or_bad_and_none_raises(batch):
    encoded = encode_batch(batch, check_schema(fields_of_arrow(batch.schema)), ids(), NOW_MS)
    sent = [row for lane in encoded.entities.values() for row in lane.rows]
    assert sorted(sent + [bad.row for bad in encoded.bad]) == list(range(batch.num_rows))
    assert all(bad.reason for bad in encoded.bad)
    for lane in encoded.entities.values():
        assert lane.rows == sorted(lane.rows)
        for message in lane.messages:
            decode_message(message)


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=20).filter(lambda name: name not in ALIAS_NAMES)
short = st.text(st.characters(exclude_categories=["Cs"]), max_size=128)
ascii_short = st.text(st.characters(max_codepoint=127), max_size=40)
moments = st.datetimes(timezones=st.just(UTC))
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def in_ms(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(milliseconds=1)


@st.composite
def good_rows(draw):
    row = {name: draw(st.none() | (ascii_short if name == "content_type" else short)) for name in TEXT_COLUMNS}
    row["message_id"] = row["message_id"] or None
    if row["session_id"] is not None:
        row["partition_key"] = draw(st.sampled_from([None, row["session_id"]]))
    return row | {
        "entity": draw(st.sampled_from(["orders", "invoices"])),
        "body": draw(st.binary(max_size=400)),
        "time_to_live": draw(st.none() | st.timedeltas(timedelta(milliseconds=1), timedelta(days=40))),
        "scheduled_enqueue_time": draw(st.none() | moments),
        "application_properties": draw(st.none() | st.dictionaries(names, st.none() | int64s, max_size=3)),
    }


GOOD = pa.schema(
    [("entity", pa.string()), ("body", pa.binary())]
    + [(name, pa.string()) for name in TEXT_COLUMNS]
    + [
        ("time_to_live", pa.duration("us")),
        ("scheduled_enqueue_time", pa.timestamp("us", "UTC")),
        ("application_properties", pa.map_(pa.string(), pa.int64())),
    ]
)


@settings(deadline=None)
@given(st.lists(good_rows(), max_size=5))
def test_a_message_reads_as_its_row_did(rows):
    arrow = [
        row | {"application_properties": row["application_properties"] and list(row["application_properties"].items())}
        for row in rows
    ]
    batch = pa.RecordBatch.from_pylist(arrow, GOOD)
    encoded = encode_batch(batch, check_schema(fields_of_arrow(GOOD)), ids(), NOW_MS)
    assert encoded.bad == []
    for entity, lane in encoded.entities.items():
        assert lane.rows == [at for at, row in enumerate(rows) if row["entity"] == entity]
        for at, raw in zip(lane.rows, lane.messages, strict=True):
            row, message = rows[at], decode_message(raw)
            assert message.data == row["body"]
            for name in set(TEXT_COLUMNS) - {"message_id", "content_type"}:
                assert getattr(message, name) == row[name]
            assert message.message_id == row["message_id"] or row["message_id"] is None
            assert message.content_type == (None if row["content_type"] is None else Symbol(row["content_type"]))
            ttl, scheduled = row["time_to_live"], row["scheduled_enqueue_time"]
            assert (message.ttl_ms is None) == (ttl is None)
            assert ttl is None or abs(timedelta(milliseconds=message.ttl_ms) - ttl) <= timedelta(microseconds=500)
            assert message.creation_time == (None if ttl is None else Timestamp(NOW_MS))
            assert message.scheduled_ms == (None if scheduled is None else in_ms(scheduled))
            own = row["application_properties"] or {}
            expected = Map(tuple((name, Long(value)) for name, value in own.items() if value is not None))
            assert typed(message.application_properties) == typed(expected)
