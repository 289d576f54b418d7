"""What a send task hands to the driver comes through Arrow and pickle as it was."""

import pickle
from dataclasses import replace

import pyarrow as pa
import pytest

from spark_sb_sink import stored
from spark_sb_sink.amqp import encode_message
from spark_sb_sink.board_records import NotedChange
from spark_sb_sink.errors import AllBacklogsOutError, MisconfiguredSendError
from spark_sb_sink.failover import Health, StateChange
from spark_sb_sink.lanes import LaneTotals, Table
from spark_sb_sink.receipts import (
    DDL,
    KIND,
    PACKED,
    PARTITION,
    REPORT,
    REPORT_DDL,
    UNSENT_DDL,
    TaskReport,
    read_report,
    report_batch,
    unpack,
)
from spark_sb_sink.receipts import unsent_batch as unsent

REFUSED = MisconfiguredSendError(namespace="west", entity="bills", claim="Send", detail="no")
ALL_OUT = AllBacklogsOutError(namespace="north", entity="orders", errors=[("b/0", "gone")])
CHANGE = StateChange("orders", Health.SUSPECT, Health.FAILED_OVER, "no answer", 5.0)
REPORT_OF_ALL = TaskReport(
    partition=3,
    rows=10,
    entities=(
        LaneTotals("orders", 1, 2, 3, 1, 0, None, ALL_OUT, ("too large",)),
        LaneTotals("bills", abandoned=3, error=REFUSED),
    ),
    board="board",
    changes=(NotedChange("board", 1, CHANGE, 1e9),),
    missed=2,
)


def through_arrow(batch: pa.RecordBatch) -> pa.RecordBatch:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    [back] = pa.ipc.open_stream(sink.getvalue())
    return back


def told(report: TaskReport) -> list[object]:
    """Everything in it, with errors as their texts: exceptions are equal only to themselves."""
    lanes = [
        (replace(lane, error=None, all_out=None), repr(lane.error), repr(lane.all_out)) for lane in report.entities
    ]
    return [report.partition, report.rows, lanes, report.board, report.changes, report.missed]


def test_a_report_comes_through_arrow_as_it_was() -> None:
    batch = through_arrow(report_batch(REPORT_OF_ALL))
    assert (batch.num_rows, batch.column(KIND).to_pylist(), batch.column(PACKED).to_pylist()) == (1, [None], [None])
    back = read_report(bytearray(batch.column(REPORT)[0].as_py()))
    assert told(back) == told(REPORT_OF_ALL)
    assert back.total == back.rows == 10
    all_out, refused = back.entities[0].all_out, back.entities[1].error
    assert isinstance(all_out, AllBacklogsOutError)
    assert isinstance(refused, MisconfiguredSendError)
    assert (all_out.errors, refused.claim) == ((("b/0", "gone"),), "Send")


def test_what_was_not_sent_has_the_columns_of_its_table_and_no_report() -> None:
    message = encode_message(b"body", message_id="m1")
    of_message = stored.of_message("orders", message, "all out")
    of_row = stored.of_row(pa.record_batch({"body": [None], "entity": ["bills"]}), 0, "body is null", None)
    rows = [(Table.OVERFLOW, of_message), (Table.QUARANTINE, of_row), (Table.OVERFLOW, of_message)]
    batch = through_arrow(unsent(4, rows))
    assert batch.column(KIND).to_pylist() == ["overflow", "quarantine"], "a row for each table"
    assert batch.column(REPORT).null_count == 2
    overflow, quarantine = unpack([batch])
    for found, count in ((overflow, 2), (quarantine, 1)):
        assert found.column(PARTITION).to_pylist() == [4] * count
    assert overflow.column("entity").to_pylist() == ["orders", "orders"]
    assert overflow.column("message").to_pylist() == [message, message]
    assert overflow.column("reason").to_pylist() == ["all out", "all out"]
    assert quarantine.column("entity").to_pylist() == ["bills"]
    assert quarantine.column("message").to_pylist() == [None]
    assert quarantine.column("reason").to_pylist() == ["body is null"]


def test_every_receipt_has_the_columns_that_spark_is_told() -> None:
    some = unsent(0, [(Table.OVERFLOW, stored.of_message("orders", encode_message(b""), "all out"))])
    for batch in (report_batch(REPORT_OF_ALL), some):
        assert batch.schema.names == names_in(DDL)
    assert [batch.schema.names for batch in unpack([some])] == [names_in(UNSENT_DDL)]


def names_in(ddl: str) -> list[str]:
    return [column.split()[0].strip("`") for column in ddl.split(", ")]


def test_a_receipt_that_holds_something_else_is_refused() -> None:
    with pytest.raises(TypeError, match="holds a dict, not a TaskReport"):
        read_report(pickle.dumps({}))


def test_a_report_that_comes_alone_has_no_other_column() -> None:
    back = through_arrow(report_batch(REPORT_OF_ALL, alone=True))
    assert back.schema.names == [REPORT]
    assert f"{REPORT} binary" == REPORT_DDL
    assert str(read_report(back.column(REPORT)[0].as_py())) == str(REPORT_OF_ALL)
