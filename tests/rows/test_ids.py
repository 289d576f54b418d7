"""Derived ids: by content, so that no replay gives the id of one message to another."""

from collections import Counter, defaultdict

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spark_sb_sink.amqp import decode_message
from spark_sb_sink.rows import IdMaker, check_schema, encode_batch, fields_of_arrow
from tests.rows.support import NOW_MS, encode, ids

# Few values, so that rows are often identical, or differ in one thing only: also in how long beyond 49 days they live.
rows = st.lists(
    st.tuples(
        st.sampled_from(["orders", "ord"]),
        st.sampled_from([b"", b"a", b"ersa"]),
        st.sampled_from([None, "x", "y"]),
        st.sampled_from([None, 60, 5_000_000, 6_000_000]),
        st.sampled_from([None, "1"]),
    ),
    max_size=14,
)
SCHEMA = pa.schema(
    [
        ("entity", pa.string()),
        ("body", pa.binary()),
        ("subject", pa.string()),
        ("time_to_live", pa.int64()),
        ("application_properties", pa.map_(pa.string(), pa.string())),
    ]
)
PLAN = check_schema(fields_of_arrow(SCHEMA))


def ids_of(partition_rows, partition=0, batch_size=3, now_ms=NOW_MS, maker=None):
    """The id of each row, in order: of one partition, in Arrow batches of a size."""
    maker = maker or ids(partition=partition)
    found = []
    for start in range(0, len(partition_rows), batch_size):
        part = [
            dict(zip(SCHEMA.names, (*row[:4], None if row[4] is None else [("k", row[4])]), strict=True))
            for row in partition_rows[start : start + batch_size]
        ]
        encoded = encode_batch(pa.RecordBatch.from_pylist(part, SCHEMA), PLAN, maker, now_ms)
        assert encoded.bad == []
        by_row = {
            row: decode_message(message).message_id
            for lane in encoded.entities.values()
            for row, message in zip(lane.rows, lane.messages, strict=True)
        }
        found += [by_row[row] for row in range(len(part))]
    return found


@given(rows, st.data())
def test_over_replays_no_id_is_ever_given_to_two_messages_and_n_identical_ones_have_n(all_rows, data):
    meaning = defaultdict(set)
    for _ in range(3):
        partitions = defaultdict(list)
        for row in data.draw(st.permutations(all_rows)):
            partitions[data.draw(st.integers(0, 2))].append(row)
        given_now = defaultdict(set)
        for partition, partition_rows in partitions.items():
            for row, found in zip(partition_rows, ids_of(partition_rows, partition), strict=True):
                meaning[found].add(row)
                given_now[row].add(found)
        assert {row: len(found) for row, found in given_now.items()} == Counter(all_rows)
    assert all(len(messages) == 1 for messages in meaning.values())


@given(rows, st.data(), st.integers(1, 6))
def test_a_replay_of_the_same_partition_gives_the_same_ids_in_any_order_and_at_any_time(all_rows, data, batch_size):
    again = data.draw(st.permutations(all_rows))
    first = zip(all_rows, ids_of(all_rows), strict=True)
    second = zip(again, ids_of(again, batch_size=batch_size, now_ms=NOW_MS + 99_999), strict=True)
    assert Counter(first) == Counter(second)


def test_a_lifetime_beyond_the_header_counts_in_any_order():
    short, long = ("orders", b"a", None, 5_000_000, None), ("orders", b"a", None, 6_000_000, None)
    assert ids_of([short, long]) == ids_of([long, short])[::-1]


def test_query_batch_call_partition_and_entity_all_count():
    row = ("orders", b"a", None, None, None)
    makers = [
        IdMaker("q", 1, 1),
        IdMaker("q", 1, 2),
        IdMaker("q", 2, 1),
        IdMaker("r", 1, 1),
        IdMaker("q1", 1, 1),
        IdMaker("q", 11, 1),
        IdMaker("q", 1, 1, 1),
        IdMaker("q", 1, 1, 2),
    ]
    found = [ids_of([row], maker=maker)[0] for maker in makers]
    other = ids_of([("order", b"sa", None, None, None)], maker=IdMaker("q", 1, 1))
    assert len({*found, *other}) == len(makers) + 1


def test_an_id_is_128_bits_and_the_occurrence_from_the_second_on():
    first, second, third = ids_of([("orders", b"a", None, None, None)] * 3)
    assert len(bytes.fromhex(first)) == 16
    assert (second, third) == (f"{first}-2", f"{first}-3")


def test_the_column_goes_before_and_a_null_in_it_is_derived():
    encoded = encode({"message_id": ["mine", None, None]})
    mine, first, second = (decode_message(message).message_id for message in encoded.entities["orders"].messages)
    assert mine == "mine"
    assert second == f"{first}-2"


def test_a_bad_row_takes_no_occurrence():
    good = {"content_type": ["a/b", "a/b"]}
    bad = {"content_type": ["a/b", "é", "a/b"]}
    assert encode(good).entities["orders"].messages == encode(bad).entities["orders"].messages


def test_one_try_of_a_partition_is_one_maker_and_another_starts_anew():
    row = ("orders", b"a", None, None, None)
    maker = ids()
    assert ids_of([row], maker=maker) + ids_of([row], maker=maker) == ids_of([row, row])
