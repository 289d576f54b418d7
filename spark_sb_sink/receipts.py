"""What a send task hands to the driver, as Arrow rows: its report, and before it the messages that were not sent.

Messages are packed, many in one row: Spark plans and keeps few columns for each micro-batch, whatever the tables have.
"""

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pyarrow as pa

from spark_sb_sink import stored
from spark_sb_sink.board_records import NotedChange
from spark_sb_sink.lanes import LaneTotals, Table

REPORT, KIND, PACKED, PARTITION = "report", "kind", "packed", "partition_id"

REPORT_DDL = f"{REPORT} binary"
"""Where nothing but reports comes."""
DDL = f"{REPORT} binary, {KIND} string, {PACKED} binary"
"""A row has a report, or the name of a table and messages for it."""
UNSENT_DDL = ", ".join([f"{PARTITION} int"] + [f"`{name}` {spark}" for name, (spark, _, _) in stored.COLUMNS.items()])
"""The messages once they are unpacked."""
_REPORT_SCHEMA = pa.schema([(REPORT, pa.binary())])
_SCHEMA = pa.schema([(REPORT, pa.binary()), (KIND, pa.string()), (PACKED, pa.binary())])
_UNSENT_SCHEMA = pa.schema(
    [(PARTITION, pa.int32())] + [(name, arrow) for name, (_, arrow, _) in stored.COLUMNS.items()]
)


@dataclass(frozen=True, slots=True)
class TaskReport:
    """All that one task did: how many rows it read, and what became of them."""

    partition: int
    rows: int
    entities: tuple[LaneTotals, ...]
    board: str
    """Which executor's board it was; its changes are told apart by it."""
    changes: tuple[NotedChange, ...] = ()
    """What the driver did not know yet."""
    missed: int = 0
    """Changes that the board has forgotten by now."""

    @property
    def total(self) -> int:
        """Rows with an outcome."""
        return sum(entity.total for entity in self.entities)


def report_batch(report: TaskReport, *, alone: bool = False) -> pa.RecordBatch:
    """The report as one row; `alone` without the columns of messages."""
    payload = pickle.dumps(report)
    if alone:
        return pa.RecordBatch.from_arrays([pa.array([payload], pa.binary())], schema=_REPORT_SCHEMA)
    return pa.RecordBatch.from_pylist([{REPORT: payload}], schema=_SCHEMA)


def unsent_batch(partition: int, unsent: Sequence[tuple[Table, dict[str, Any]]]) -> pa.RecordBatch:
    """Messages and rows for Delta: one row for those of a table."""
    by_table = sorted(unsent, key=lambda found: found[0].value)
    packed = [
        {KIND: table.value, PACKED: _pack(partition, [row for _, row in found])}
        for table, found in groupby(by_table, key=lambda found: found[0])
    ]
    return pa.RecordBatch.from_pylist(packed, schema=_SCHEMA)


def unpack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Of packed rows, the messages: `UNSENT_DDL`."""
    for batch in batches:
        for packed in batch.column(PACKED):
            yield from pa.ipc.open_stream(packed.as_buffer())


def read_report(payload: bytes | bytearray) -> TaskReport:
    """The report that a task of ours wrote; it came through Spark, which runs our code anyway."""
    report = pickle.loads(bytes(payload))  # noqa: S301
    if not isinstance(report, TaskReport):
        raise TypeError(f"a receipt holds a {type(report).__name__}, not a TaskReport")
    return report


def _pack(partition: int, rows: Sequence[dict[str, Any]]) -> bytes:
    columns = [pa.array([partition] * len(rows), pa.int32()), *stored.to_arrow(rows)]
    batch = pa.RecordBatch.from_arrays(columns, schema=_UNSENT_SCHEMA)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue())
