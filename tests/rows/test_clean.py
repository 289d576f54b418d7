"""Column by column or row by row: the same bytes, the same ids, and nothing that is unusual slips through."""

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_sb_sink.rows import check_schema, fields_of_arrow
from spark_sb_sink.rows.clean import encode_clean
from spark_sb_sink.rows.contract import TEXT_COLUMNS
from spark_sb_sink.rows.encoding import encode_row_by_row
from tests.rows.support import NOW_MS, ids, not_utf8
from tests.rows.test_any_rows import batches, column

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=32)
ascii_texts = st.text(st.characters(max_codepoint=127), min_size=1, max_size=32)


@st.composite
def clean_batches(draw):
    size = draw(st.integers(1, 6))

    def cells(strategy):
        return draw(st.lists(strategy, min_size=size, max_size=size))

    columns = {"body": pa.array(cells(st.binary(max_size=600)), pa.binary())}
    if draw(st.booleans()):
        columns["entity"] = pa.array(cells(st.sampled_from(["orders", "bills"])))
    for name in draw(st.sets(st.sampled_from(sorted(set(TEXT_COLUMNS) - {"partition_key"})))):
        given = ascii_texts if name == "content_type" else texts
        columns[name] = pa.array(cells(given if name == "message_id" else given | st.none()), pa.string())
    if draw(st.booleans()):
        columns["application_properties"] = pa.array(
            cells(st.fixed_dictionaries({"a": texts | st.none(), "b": st.integers(0, 9)})),
            pa.struct([("a", pa.string()), ("b", pa.int64())]),
        )
    return pa.record_batch(columns)


def both_ways(batch):
    plan = check_schema(fields_of_arrow(batch.schema), "orders")
    # Twice, as derived ids count how often a message came.
    makers = ids(), ids()
    quick = [encode_clean(batch, plan, makers[0]) for _ in range(2)]
    slow = [encode_row_by_row(batch, plan, makers[1], NOW_MS) for _ in range(2)]
    return quick, slow


@settings(deadline=None)
@given(clean_batches())
def test_what_is_clean_becomes_the_same_messages_as_row_by_row(batch):
    quick, slow = both_ways(batch)
    assert all(encoded.bad == [] for encoded in slow)
    assert quick == [encoded.entities for encoded in slow]


@settings(max_examples=300, deadline=None)
@given(batches())
def test_what_is_not_clean_is_left_to_be_looked_at_row_by_row(batch):
    quick, slow = both_ways(batch)
    for found, encoded in zip(quick, slow, strict=True):
        assert found is None or (found, []) == (encoded.entities, encoded.bad)


def is_left(**columns) -> bool:
    batch = pa.record_batch({"body": [b"x"], **columns})
    return encode_clean(batch, check_schema(fields_of_arrow(batch.schema), "orders"), ids()) is None


def test_unusual_values_are_left() -> None:
    assert not is_left()
    assert is_left(message_id=[""])
    assert is_left(message_id=pa.array([None], pa.string()))
    assert is_left(message_id=["x" * 129])
    assert is_left(session_id=["é" * 128])
    assert is_left(subject=["x" * 256])
    assert is_left(subject=not_utf8())
    assert is_left(content_type=["é"])
    assert is_left(entity=["no entity"])
    assert is_left(entity=pa.array([None], pa.string()))
    assert is_left(body=pa.array([None], pa.binary()))
    assert is_left(partition_key=["p"])
    assert is_left(time_to_live=[5])
    assert is_left(application_properties=pa.array([[("x-ms-path", "a")]], pa.map_(pa.string(), pa.string())))
    assert is_left(scheduled_enqueue_time=column([0], pa.timestamp("us", "UTC")))
