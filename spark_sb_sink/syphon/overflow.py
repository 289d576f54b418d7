"""What went to the overflow table, sent at last: a Delta stream into the pair, never written back to that table.

A message whose entity is still out goes to the backlog where that is up again, and the syphon moves it on from there;
what nothing takes is left, and comes out again as the row that it was. Which of many syphons drains decides `lease`.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from spark_sb_sink import stored
from spark_sb_sink.amqp.encode import encode_timestamp
from spark_sb_sink.amqp.errors import CodecError
from spark_sb_sink.amqp.layout import cut_map, join_map
from spark_sb_sink.amqp.message import ANNOTATIONS_PREFIX
from spark_sb_sink.amqp.sections import DELIVERY_ANNOTATIONS, HEADER, MESSAGE_ANNOTATIONS, split_sections
from spark_sb_sink.envelope import TtlPolicy, restore, wrap
from spark_sb_sink.factory import factory_for
from spark_sb_sink.lanes import Lanes, LaneTotals, Table
from spark_sb_sink.options import Options, Ttl
from spark_sb_sink.receipts import TaskReport, report_batch, unsent_batch
from spark_sb_sink.send_task import executor_folder
from spark_sb_sink.syphon.overflow_left import COLUMNS, Row, left_batch
from spark_sb_sink.syphon.rate import OVERFLOW_SHARE, Bucket

_ENQUEUED = b"\xa3\x13x-opt-enqueued-time"
AT_ONCE = 200
"""Messages that are made ready before they are handed to the lanes."""
RATE_STEP = 0.1
"""Seconds that are waited for the rate at the least, so that messages need not go out one by one."""
LEFT_ROWS, LEFT_BYTES = 500, 2**20
"""Rows that are left come out in parts of so many."""
EXPIRED = "its time to live ran out while it waited in the overflow, and the option ttl is deduct"


@dataclass(frozen=True, slots=True)
class Dated:
    """A message of the overflow table as it goes out now. `expired`: with ttl = deduct, no time is left."""

    message: bytes
    expired: bool


def dated(message: bytes, entity: str, stored_ms: int, now_ms: int, ttl: TtlPolicy) -> Dated:
    """As if it had waited in a backlog queue since `stored_ms`: the same rules for its time to live."""
    wrapped = _enqueued_at(wrap(message, entity), stored_ms)
    found = restore(wrapped, ttl=ttl, now_ms=now_ms)
    return Dated(found.message, found.expired)


def _enqueued_at(wrapped: bytes, moment: int) -> bytes:
    """The message with the time that a backlog queue would have put on it."""
    entry = _ENQUEUED + encode_timestamp(moment)
    place = 0
    for section in split_sections(wrapped):
        if section.descriptor == MESSAGE_ANNOTATIONS:
            pairs = cut_map(wrapped, section.value, section.end)
            content = b"".join(key + value for key, value in pairs if key != _ENQUEUED) + entry
            count = 2 * (sum(1 for key, _ in pairs if key != _ENQUEUED) + 1)
            return wrapped[: section.start] + ANNOTATIONS_PREFIX + join_map(content, count) + wrapped[section.end :]
        if section.descriptor in (HEADER, DELIVERY_ANNOTATIONS):
            place = section.end
    return wrapped[:place] + ANNOTATIONS_PREFIX + join_map(entry, 2) + wrapped[place:]


class Waiting(bytes):
    """A message as it goes out, with the row that it came from: lanes hand back what they were given."""

    row: Row

    @classmethod
    def of(cls, message: bytes, row: Row) -> "Waiting":
        made = cls(message)
        made.row = row
        return made


def overflow_task(
    options: Callable[[], Options],
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What `mapInArrow` calls with rows of the overflow table."""

    def send_overflow(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        yield from send(options(), context.partitionId() if context is not None else 0, batches, executor_folder())

    return send_overflow


def send(options: Options, partition: int, batches: Iterable[pa.RecordBatch], folder: str) -> Iterator[pa.RecordBatch]:
    """Send the messages of one partition. What is bad comes out for quarantine, and what nobody takes as it was."""
    task: _Task | None = None
    try:
        for rows in batches:
            if rows.num_rows:
                task = task or _Task(options, partition, folder)
                yield from task.send(rows)
        if task is not None:
            yield from task.finish()
    finally:
        if task is not None:
            task.lanes.cancel()


class _Task:
    def __init__(self, options: Options, partition: int, folder: str) -> None:
        self._factory = factory_for(options, folder)
        self._partition = partition
        self._ttl: TtlPolicy = "deduct" if options.ttl is Ttl.DEDUCT else "full"
        self._rows = 0
        self._bad: dict[str, LaneTotals] = {}
        self._out: dict[str, str] = {}
        """Entities of which nothing more is tried, and why."""
        self._left: list[tuple[Row, str]] = []
        self._left_bytes = 0
        self._left_count: Counter[str] = Counter()
        self._bucket = Bucket(None if options.max_rate is None else options.max_rate * OVERFLOW_SHARE)
        # Half, as each message is there twice: as it goes out, and as it was.
        self.lanes = Lanes(self._factory, max(1, options.max_in_flight // 2), keep_unsent=True, from_overflow=True)

    def send(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Hand the rows to the lanes, some at a time."""
        for start in range(0, rows.num_rows, AT_ONCE):
            ready: deque[Waiting] = deque()
            for row in _rows(rows.slice(start, AT_ONCE)):
                self._rows += 1
                if row.entity in self._out:
                    self._leave(row, self._out[row.entity])
                    continue
                now = int(time.time() * 1000)
                stored_ms = now if row.stored_ms is None else row.stored_ms
                try:
                    found = dated(row.message, row.entity, stored_ms, now, self._ttl)
                except CodecError as error:
                    yield from self._quarantine(row.entity, row.message, f"it cannot be sent: {error}")
                    continue
                if found.expired:
                    yield from self._quarantine(row.entity, row.message, EXPIRED)
                else:
                    ready.append(Waiting.of(found.message, row))
            while ready:
                yield from self._feed([ready.popleft() for _ in range(self._granted(len(ready)))])
            yield from self._put_aside()

    def _feed(self, messages: Sequence[Waiting]) -> Iterator[pa.RecordBatch]:
        """Hand them to the lanes, waiting for room."""
        streams: dict[str, list[bytes]] = {}
        for message in messages:
            streams.setdefault(message.row.entity, []).append(message)
        for entity, stream in streams.items():
            while not self.lanes.await_room(sum(map(len, stream))):
                yield from self._put_aside()
            self.lanes.feed(entity, stream)

    def _granted(self, count: int) -> int:
        """Wait until some of so many may go out; how many, never more than the rate's burst."""
        while not (granted := self._bucket.take(time.monotonic(), count)):
            time.sleep(max(RATE_STEP, self._bucket.wait(time.monotonic())))
        return granted

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Wait for every outcome, then report."""
        while not self.lanes.await_end():
            yield from self._put_aside()
        yield from self._left_ones()
        board = self._factory.board.mark().board
        yield report_batch(TaskReport(self._partition, self._rows, (*self._settled(), *self._bad.values()), board))

    def _settled(self) -> Iterator[LaneTotals]:
        """The totals; what was not sent is left, also what was not even tried."""
        for totals in self.lanes.totals():
            yield replace(totals, overflow=self._left_count[totals.entity], abandoned=0)

    def _put_aside(self) -> Iterator[pa.RecordBatch]:
        """What is bad goes out for quarantine; what nobody takes is left, and what comes after it for that entity."""
        taken = self.lanes.take()
        for aside in taken:
            if aside.table is Table.QUARANTINE:
                row = stored.of_message(aside.entity, aside.message, aside.reason)
                yield unsent_batch(self._partition, [(Table.QUARANTINE, row)])
            elif isinstance(aside.message, Waiting):
                self._leave(aside.message.row, aside.reason)
            else:
                raise TypeError("the lanes hand back other messages than they were fed")
        if taken:
            for totals in self.lanes.totals():
                if (why := totals.error or totals.all_out) is not None:
                    self._out[totals.entity] = str(why)
        if len(self._left) >= LEFT_ROWS or self._left_bytes >= LEFT_BYTES:
            yield from self._left_ones()

    def _leave(self, row: Row, reason: str) -> None:
        self._left.append((row, reason))
        self._left_bytes += len(row.message)
        self._left_count[row.entity] += 1

    def _left_ones(self) -> Iterator[pa.RecordBatch]:
        if self._left:
            yield left_batch(self._left)
        self._left, self._left_bytes = [], 0

    def _quarantine(self, entity: str, message: bytes, reason: str) -> Iterator[pa.RecordBatch]:
        known = self._bad.get(entity, LaneTotals(entity))
        self._bad[entity] = LaneTotals(entity, quarantine=known.quarantine + 1, reasons=known.reasons or (reason,))
        rows: Sequence[tuple[Table, dict[str, Any]]] = [(Table.QUARANTINE, stored.of_message(entity, message, reason))]
        yield unsent_batch(self._partition, rows)


def _rows(rows: pa.RecordBatch) -> Iterator[Row]:
    entity, message, moment = (rows.column(rows.schema.get_field_index(name)) for name in COLUMNS)
    moments = moment.cast(pa.timestamp("ms", moment.type.tz), safe=False).cast(pa.int64())
    yield from map(Row, entity.to_pylist(), message.to_pylist(), moments.to_pylist())
