"""What the stream over the overflow came by and nothing took: put aside in a Delta table of its own, so that the rest
passes. A row is there from the micro-batch that left it until it is sent. Sends nothing.
"""

import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_sb_sink.delta_state import LEFT, DeltaState
from spark_sb_sink.errors import StateError
from spark_sb_sink.receipts import KIND, PACKED, REPORT, unpack

COLUMNS = ("entity", "message", "stored_at")
"""What is read of the overflow, and of this table to try again."""
_MOMENT = pa.timestamp("us", "UTC")
"""Spark takes no other unit."""
_SCHEMA = pa.schema(
    [("entity", pa.string()), ("message", pa.binary()), ("stored_at", _MOMENT), ("reason", pa.string())]
)
_DDL = "entity string, message binary, stored_at timestamp, reason string"
_RECEIPT = pa.schema([(REPORT, pa.binary()), (KIND, pa.string()), (PACKED, pa.binary())])


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the overflow."""

    entity: str
    message: bytes
    stored_ms: int | None


@dataclass(frozen=True, slots=True)
class Portion:
    """The rows of one entity in one part."""

    part: str
    entity: str
    bytes: int


def left_batch(left: Sequence[tuple[Row, str]]) -> pa.RecordBatch:
    """Rows and why they were not sent, as a task hands them to the driver."""
    rows = [
        {
            "entity": row.entity,
            "message": row.message,
            "stored_at": None if row.stored_ms is None else row.stored_ms * 1000,
            "reason": reason,
        }
        for row, reason in left
    ]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _SCHEMA) as stream:
        stream.write_batch(pa.RecordBatch.from_pylist(rows, schema=_SCHEMA))
    return pa.RecordBatch.from_pylist([{KIND: LEFT, PACKED: bytes(sink.getvalue())}], schema=_RECEIPT)


def left_of(receipts: DataFrame) -> DataFrame:
    """The rows that tasks left."""
    return receipts.where(F.col(KIND) == LEFT).select(PACKED).mapInArrow(unpack, _DDL)


def in_groups(portions: Iterable[Portion], most: int) -> Iterator[list[Portion]]:
    """Whole parts, in their order, as many as are tried at once."""
    group: list[Portion] = []
    size = 0
    for portion in portions:
        if group and portion.part != group[-1].part and size >= most:
            yield group
            group, size = [], 0
        group.append(portion)
        size += portion.bytes
    if group:
        yield group


class Left:
    """The table. Made with the first row that is left."""

    def __init__(self, state: DeltaState, address: str) -> None:
        """`address`: what errors call the state."""
        self._state = state
        self._address = address

    def portions(self) -> list[Portion]:
        """What there is, oldest part first. Reads no messages."""
        if not self._state.exists(LEFT):
            return []
        sums = self._state.read(LEFT).groupBy("part", "entity")
        found = sums.agg(F.sum("bytes").alias("bytes"), F.min("left_at").alias("at")).orderBy("at", "part").collect()
        return [Portion(row["part"], row["entity"], int(row["bytes"])) for row in found]

    def rows(self, portions: Sequence[Portion]) -> DataFrame:
        """The rows of whole parts, less the entities that are not named."""
        parts, entities = _names(portions)
        wanted = F.col("part").isin(parts) & F.col("entity").isin(entities)
        return self._state.read(LEFT).where(wanted).select(*COLUMNS)

    def add(self, rows: DataFrame, count: int) -> None:
        """One more part, of so many rows; a `StateError` where others came, as after an executor was lost."""
        if count and (kept := self._state.add_left(rows, uuid.uuid4().hex)) != count:
            raise StateError(state=self._address, detail=f"{kept} of {count} rows reached the table {LEFT}")

    def remove(self, portions: Sequence[Portion], entities: Collection[str]) -> None:
        """These entities' rows of these parts are sent."""
        parts, _ = _names(portions)
        gone = F.col("part").isin(parts) & F.col("entity").isin(sorted(entities))
        self._state.delta_table(LEFT).delete(gone)


def _names(portions: Sequence[Portion]) -> tuple[list[str], list[str]]:
    return sorted({each.part for each in portions}), sorted({each.entity for each in portions})
