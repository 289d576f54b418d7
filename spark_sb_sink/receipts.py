"""What a send task hands to the driver, as Arrow rows: its report, and before it the messages that were not sent."""

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from spark_sb_sink import stored
from spark_sb_sink.board_records import NotedChange
from spark_sb_sink.lanes import LaneTotals, Table

REPORT = "report"
KIND, PAYLOAD, PARTITION = "kind", "report", "partition_id"

REPORT_DDL = f"{PAYLOAD} binary"
"""Where nothing but reports comes: Spark plans each column of each micro-batch."""
DDL = ", ".join(
    [f"{KIND} string", f"{PAYLOAD} binary", f"{PARTITION} int"]
    + [f"`{name}` {spark}" for name, (spark, _, _) in stored.COLUMNS.items()]
)
_SCHEMA = pa.schema(
    [(KIND, pa.string()), (PAYLOAD, pa.binary()), (PARTITION, pa.int32())]
    + [(name, arrow) for name, (_, arrow, _) in stored.COLUMNS.items()]
)
_REPORT_SCHEMA = pa.schema([(PAYLOAD, pa.binary())])


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
    if alone:
        return pa.RecordBatch.from_arrays([pa.array([pickle.dumps(report)], pa.binary())], schema=_REPORT_SCHEMA)
    empty = stored.to_arrow([{}])
    return _batch([REPORT], [pickle.dumps(report)], [report.partition], empty)


def unsent_batch(partition: int, unsent: Sequence[tuple[Table, dict[str, Any]]]) -> pa.RecordBatch:
    """Messages and rows for Delta, each with its table."""
    kinds = [table.value for table, _ in unsent]
    return _batch(kinds, [None] * len(unsent), [partition] * len(unsent), stored.to_arrow(row for _, row in unsent))


def read_report(payload: bytes | bytearray) -> TaskReport:
    """The report that a task of ours wrote; it came through Spark, which runs our code anyway."""
    report = pickle.loads(bytes(payload))  # noqa: S301
    if not isinstance(report, TaskReport):
        raise TypeError(f"a receipt holds a {type(report).__name__}, not a TaskReport")
    return report


def _batch(
    kinds: list[str], payloads: list[bytes | None], partitions: list[int], columns: list[pa.Array]
) -> pa.RecordBatch:
    ours = [pa.array(kinds, pa.string()), pa.array(payloads, pa.binary()), pa.array(partitions, pa.int32())]
    return pa.RecordBatch.from_arrays(ours + columns, schema=_SCHEMA)
