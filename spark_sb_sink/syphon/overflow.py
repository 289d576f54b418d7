"""What went to the overflow table, sent at last: a Delta stream into the pair, never written back to that table.

A message whose entity is still out goes to the backlog where that is up again, and the syphon moves it on from there;
while nothing takes it, it is left for a later micro-batch. Which of many syphons drains is decided by `lease`.
"""

import time
from collections import Counter
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
from spark_sb_sink.syphon.rate import OVERFLOW_SHARE, Bucket

_ENQUEUED = b"\xa3\x13x-opt-enqueued-time"
COLUMNS = ("entity", "message", "stored_at")
PATIENCE = 4.0
"""Seconds without any progress after which a task leaves the rest for later. Spark does not end a Python task that was
cancelled while it waits: it would wait on, unseen, and send once it can."""
AT_ONCE = 200
"""Messages that are made ready before they are handed to the lanes."""
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


def overflow_task(
    options: Callable[[], Options],
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What `mapInArrow` calls with rows of the overflow table."""

    def send_overflow(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        yield from send(options(), context.partitionId() if context is not None else 0, batches, executor_folder())

    return send_overflow


def send(
    options: Options,
    partition: int,
    batches: Iterable[pa.RecordBatch],
    folder: str,
    *,
    again: bool = True,
) -> Iterator[pa.RecordBatch]:
    """Send the messages of one partition. What is bad comes out for quarantine; what nobody takes is tried again."""
    task: _Task | None = None
    try:
        for rows in batches:
            if rows.num_rows:
                task = task or _Task(options, partition, folder, again=again)
                yield from task.send(rows)
        if task is not None:
            yield from task.finish()
    finally:
        if task is not None:
            task.lanes.cancel()


class _Task:
    def __init__(self, options: Options, partition: int, folder: str, *, again: bool) -> None:
        self._options = options
        self._factory = factory_for(options, folder)
        self._partition = partition
        self._again = again
        self._ttl: TtlPolicy = "deduct" if options.ttl is Ttl.DEDUCT else "full"
        self._rows = 0
        self._bad: dict[str, LaneTotals] = {}
        self._left: Counter[str] = Counter()
        self._accepted, self._since = 0, time.monotonic()
        self._bucket = Bucket(None if options.max_rate is None else options.max_rate * OVERFLOW_SHARE)
        self.lanes = Lanes(self._factory, options.max_in_flight, keep_unsent=True)

    def send(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Hand the rows to the lanes, some at a time, waiting for room."""
        for start in range(0, rows.num_rows, AT_ONCE):
            ready: dict[str, list[bytes]] = {}
            for entity, message, stored_ms in _cells(rows.slice(start, AT_ONCE)):
                self._rows += 1
                now = int(time.time() * 1000)
                try:
                    found = dated(message, entity, now if stored_ms is None else stored_ms, now, self._ttl)
                except CodecError as error:
                    yield from self._quarantine(entity, message, f"it cannot be sent: {error}")
                    continue
                if found.expired:
                    yield from self._quarantine(entity, message, EXPIRED)
                else:
                    ready.setdefault(entity, []).append(found.message)
            self._await_rate(sum(map(len, ready.values())))
            for entity, messages in ready.items():
                while not self.lanes.await_room(sum(map(len, messages))):
                    yield from self._put_aside()
                self.lanes.feed(entity, messages)
        yield from self._put_aside()

    def _await_rate(self, count: int) -> None:
        """Wait until so many may go out."""
        while count:
            granted = self._bucket.take(time.monotonic(), count)
            count -= granted
            if not granted:
                time.sleep(self._bucket.wait(time.monotonic()))

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Wait for every outcome, then report."""
        while not self.lanes.await_end():
            yield from self._put_aside()
        board = self._factory.board.mark().board
        yield report_batch(TaskReport(self._partition, self._rows, (*self._settled(), *self._bad.values()), board))

    def _settled(self) -> Iterator[LaneTotals]:
        """The totals without those that came back and were fed again."""
        for totals in self.lanes.totals():
            yield replace(totals, overflow=self._left[totals.entity]) if self._again else totals

    def _put_aside(self) -> Iterator[pa.RecordBatch]:
        """What is bad goes out for quarantine; what nobody takes goes back into its lane, after a while."""
        back: dict[str, list[bytes]] = {}
        for aside in self.lanes.take():
            if aside.table is Table.QUARANTINE:
                row = stored.of_message(aside.entity, aside.message, aside.reason)
                yield unsent_batch(self._partition, [(Table.QUARANTINE, row)])
            elif self._again:
                back.setdefault(aside.entity, []).append(aside.message)
        self._leave(back)
        if back:
            time.sleep(min(self._options.backlog_cooldown, self._options.ping_interval, PATIENCE))
            for entity, messages in back.items():
                self.lanes.feed(entity, messages)

    def _leave(self, back: dict[str, list[bytes]]) -> None:
        """Once nothing has moved for a while, entities of which nothing was sent are left: nothing is sent twice so."""
        accepted = {totals.entity: totals.primary + totals.backlog for totals in self.lanes.totals()}
        if (total := sum(accepted.values())) != self._accepted:
            self._accepted, self._since = total, time.monotonic()
        if time.monotonic() < self._since + PATIENCE:
            return
        for entity in [entity for entity in back if not accepted.get(entity)]:
            self._left[entity] += len(back.pop(entity))

    def _quarantine(self, entity: str, message: bytes, reason: str) -> Iterator[pa.RecordBatch]:
        known = self._bad.get(entity, LaneTotals(entity))
        self._bad[entity] = LaneTotals(entity, quarantine=known.quarantine + 1, reasons=known.reasons or (reason,))
        rows: Sequence[tuple[Table, dict[str, Any]]] = [(Table.QUARANTINE, stored.of_message(entity, message, reason))]
        yield unsent_batch(self._partition, rows)


def _cells(rows: pa.RecordBatch) -> Iterator[tuple[str, bytes, int | None]]:
    entity, message, moment = (rows.column(rows.schema.get_field_index(name)) for name in COLUMNS)
    moments = moment.cast(pa.timestamp("ms", moment.type.tz), safe=False).cast(pa.int64())
    yield from zip(entity.to_pylist(), message.to_pylist(), moments.to_pylist(), strict=True)
