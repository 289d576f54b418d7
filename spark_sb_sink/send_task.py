"""The send task: one partition of one micro-batch on an executor. Arrow rows in, receipts out.

It never raises for the outcome of a send: Spark would run it again and send everything again. It reports; the driver
decides. How messages are sent is the business of the paired factory that its worker process keeps.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark import SparkFiles, TaskContext

from spark_sb_sink import stored
from spark_sb_sink.board_records import Mark
from spark_sb_sink.factory import PairedFactory, factory_for
from spark_sb_sink.lanes import Aside, Lanes, LaneTotals, Table, first_reasons
from spark_sb_sink.options import Options
from spark_sb_sink.receipts import TaskReport, report_batch, unsent_batch
from spark_sb_sink.rows import EncodedBatch, IdMaker, RowPlan, encode_batch

SLICE_ROWS = 5000
"""Rows that are encoded at a time: enough for a full batch, few enough that memory stays near the bound."""
UNSENT_ROWS = 1000
"""Rows in one Arrow batch of what was not sent."""
UNSENT_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """What all tasks of one micro-batch are told."""

    plan: RowPlan
    query_id: str
    batch_id: int
    keep_unsent: bool
    """Whether there are Delta tables for what cannot be sent."""
    hints: tuple[str, ...] = ()
    """Entities that another executor has failed over."""
    known: Mapping[str, int] = field(default_factory=dict)
    """The number of the last change that the driver knows, by board."""
    call: int = 0
    """Which call of a sink it is within the micro-batch."""


@dataclass(frozen=True, slots=True)
class SendTask:
    """What `mapInArrow` calls. `options` brings the options when it is called on the executor."""

    batch: BatchPlan
    options: Callable[[], Options]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        yield from run(self.batch, self.options(), partition, batches, executor_folder())


def executor_folder() -> str:
    """A folder that all workers of this executor share and no other executor has; Spark removes it."""
    return os.path.abspath(str(SparkFiles.getRootDirectory()))


def run(
    batch: BatchPlan,
    options: Options,
    partition: int,
    batches: Iterable[pa.RecordBatch],
    folder: str,
) -> Iterator[pa.RecordBatch]:
    """Send the rows of one partition; gives what could not be sent, then the report. No rows: nothing."""
    task: _Task | None = None
    try:
        for rows in batches:
            if rows.num_rows:
                if task is None:
                    task = _Task(batch, options, partition, factory_for(options, folder))
                yield from task.send(rows)
        if task is not None:
            yield from task.finish()
    finally:
        if task is not None:
            task.lanes.cancel()


class _Task:
    def __init__(self, batch: BatchPlan, options: Options, partition: int, factory: PairedFactory) -> None:
        self.lanes = Lanes(factory, options.max_in_flight, keep_unsent=batch.keep_unsent)
        self._plan = batch.plan
        self._keep = batch.keep_unsent
        self._most = options.max_in_flight
        self._partition = partition
        self._board = factory.board
        self._ids = IdMaker(batch.query_id, batch.batch_id, partition, batch.call)
        self._rows = 0
        self._bad: dict[str, LaneTotals] = {}
        board = self._board.mark().board
        self._mark = Mark(board, batch.known.get(board, 0))
        for entity in batch.hints:
            self._board.hint(entity)

    def send(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Encode and hand to the lanes, slice by slice, waiting for room."""
        self._rows += rows.num_rows
        step = self._slice_rows(rows)
        for start in range(0, rows.num_rows, step):
            part = rows.slice(start, step)
            encoded = encode_batch(part, self._plan, self._ids, int(time.time() * 1000))
            yield from self._put_aside(part, encoded)
            streams = {entity: found.messages for entity, found in encoded.entities.items()}
            if self.lanes.has_room(sum(sum(map(len, messages)) for messages in streams.values())):
                self.lanes.feed_all(streams)
            else:
                yield from self._feed_as_there_is_room(streams)
            yield from self._unsent(self.lanes.take())

    def _feed_as_there_is_room(self, streams: Mapping[str, Sequence[bytes]]) -> Iterator[pa.RecordBatch]:
        for entity, messages in streams.items():
            while not self.lanes.await_room(sum(map(len, messages))):
                yield from self._unsent(self.lanes.take())
            self.lanes.feed(entity, messages)

    def _slice_rows(self, rows: pa.RecordBatch) -> int:
        """So many that a slice is a small part of what may be in flight."""
        per_row: int = max(1, rows.nbytes // rows.num_rows)
        return max(1, min(SLICE_ROWS, self._most // 4 // per_row))

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Wait for every outcome, then report."""
        while not self.lanes.await_end():
            yield from self._unsent(self.lanes.take())
        yield from self._unsent(self.lanes.take())
        changes = self._board.changes_since(self._mark)
        yield report_batch(
            TaskReport(
                partition=self._partition,
                rows=self._rows,
                entities=(*self.lanes.totals(), *self._bad.values()),
                board=changes.mark.board,
                changes=changes.noted,
                missed=changes.missed,
            ),
            alone=not self._keep,
        )

    def _put_aside(self, part: pa.RecordBatch, encoded: EncodedBatch) -> Iterator[pa.RecordBatch]:
        """The rows that could be no message."""
        unsent: list[tuple[Table, dict[str, Any]]] = []
        for row, reason in encoded.bad:
            found = stored.of_row(part, row, reason, self._plan.entity)
            entity = found["entity"] or ""
            totals = self._bad.get(entity, LaneTotals(entity))
            self._bad[entity] = LaneTotals(
                entity, quarantine=totals.quarantine + 1, reasons=first_reasons(totals.reasons, [reason])
            )
            unsent.append((Table.QUARANTINE, found))
        if self._keep:
            yield from _in_parts(self._partition, unsent)

    def _unsent(self, taken: list[Aside]) -> Iterator[pa.RecordBatch]:
        rows = ((each.table, stored.of_message(each.entity, each.message, each.reason)) for each in taken)
        yield from _in_parts(self._partition, rows)


def _in_parts(partition: int, rows: Iterable[tuple[Table, dict[str, Any]]]) -> Iterator[pa.RecordBatch]:
    part: list[tuple[Table, dict[str, Any]]] = []
    size = 0
    for table, row in rows:
        part.append((table, row))
        size += len(row.get("message") or row.get("row") or b"")
        if len(part) >= UNSENT_ROWS or size >= UNSENT_BYTES:
            yield unsent_batch(partition, part)
            part, size = [], 0
    if part:
        yield unsent_batch(partition, part)
