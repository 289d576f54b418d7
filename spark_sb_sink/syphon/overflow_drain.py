"""The overflow table on the driver: whether it has something new, and the stream that brings it home.

The stream's checkpoint lies in the table's own folder, so whoever drains next goes on where the last one ended. What it
reads is sent by `overflow`; what is bad goes to quarantine, and what nobody takes to `overflow_left`, which is tried
again after the stream: an entity that is out holds up no other.
"""

import contextlib
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from pyspark import InheritableThread, StorageLevel
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from spark_sb_sink.delta_state import LEFT, DeltaState
from spark_sb_sink.errors import OverflowLeftError, StateError
from spark_sb_sink.events import RouteCounts
from spark_sb_sink.knowledge import counts_of
from spark_sb_sink.lanes import Table
from spark_sb_sink.options import Options
from spark_sb_sink.outcome import check_conservation
from spark_sb_sink.receipts import DDL, TaskReport
from spark_sb_sink.spark_job import reports_of, unsent_of
from spark_sb_sink.syphon.lease import Lease
from spark_sb_sink.syphon.overflow import overflow_task
from spark_sb_sink.syphon.overflow_left import COLUMNS, Left, Portion, in_groups, left_of
from spark_sb_sink.syphon.rate import Shares

CHECKPOINT = "_syphon"
"""Below the table's folder; Delta passes over names that begin like that."""
FINISH_WITHIN = 5.0
"""Seconds for a micro-batch under way to end after a stop."""
AT_ONCE = "32m"
"""What a micro-batch reads, about: so much is sent again after one that was cut off."""
AT_ONCE_BYTES = 32 * 2**20
"""The same of what was left."""


@dataclass(frozen=True, slots=True)
class OverflowSent:
    """What a micro-batch of the overflow became. By entity: when the oldest row was stored, and the bytes moved."""

    rows: int
    entities: tuple[RouteCounts, ...]
    oldest_ms: Mapping[str, int | None]
    bytes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Sent:
    """What became of some rows, and the receipts, which hold those that were not sent."""

    rows: int
    reports: Sequence[TaskReport]
    counts: tuple[RouteCounts, ...]
    receipts: DataFrame


class OverflowDrain:
    """One syphon's share in the overflow. For one thread."""

    def __init__(
        self,
        spark: SparkSession,
        options: Options,
        options_on_executors: Callable[[], Options],
        told: Callable[[OverflowSent], None],
        holder: str | None = None,
        shares: Shares | None = None,
    ) -> None:
        """`holder`: a name that nobody had before, who asks for the lease as the last one did has it at once."""
        if options.state is None:
            raise ValueError("without state there is no overflow")
        self._spark = spark
        self._address = options.state
        self._state = DeltaState(spark, options.state)
        self._shipped = options_on_executors
        self._told = told
        self._shares = shares or Shares(None, 1)
        self._query: StreamingQuery | None = None
        self._thread: threading.Thread | None = None
        self.lease = Lease(spark, self._state, holder or uuid.uuid4().hex)
        self._left = Left(self._state, options.state)
        self._streamed = self._cleared = -1
        """The versions up to which the overflow was read, and at which nothing was left."""
        self._stuck: dict[str, tuple[int, str]] = {}
        """Entities of which something was left in this drain: how much, and why."""

    def pending(self) -> bool:
        """Whether anything was added since we found it drained, or left. One look at Delta's log for each table."""
        return self._version(Table.OVERFLOW.value) > self._streamed or self._version(LEFT) > self._cleared

    def _version(self, table: str) -> int:
        if not self._state.exists(table):
            return -1
        history = self._state.delta_table(table).history(1).first()
        return int(history.version)

    def drain(self, stop: threading.Event | None = None) -> bool:
        """Send what is there. False where another syphon does, where the lease was lost, or where `stop` came first.

        Raises an `OverflowLeftError` where all was tried and something is left.
        """
        stop = stop or threading.Event()
        version = self._version(Table.OVERFLOW.value)
        if version <= self._streamed and self._version(LEFT) <= self._cleared:
            return True
        if not self.lease.take():
            return False
        try:
            with self._shares.for_overflow(stop) as mine:
                return mine and self.lease.take() and self._drain(version, stop)
        finally:
            if not self._at_work():  # else it may still send
                self.lease.give_back()

    def _at_work(self) -> bool:
        streams = self._query is not None and self._query.isActive
        return bool(streams or (self._thread is not None and self._thread.is_alive()))

    def _drain(self, version: int, stop: threading.Event) -> bool:
        self._stuck = {}
        if version > self._streamed:
            if not self._stream(stop):
                return False
            self._streamed = version
        if not self._once_more(stop):
            return False
        if self._stuck:
            raise OverflowLeftError(state=self._address, table=LEFT, entities=self._stuck)
        return True

    def _stream(self, stop: threading.Event) -> bool:
        detail = self._state.delta_table(Table.OVERFLOW.value).detail().first()
        location = str(detail.location)
        self._query = query = (
            self._spark.readStream.format("delta")
            # A person may delete what was drained; that is no news.
            .option("skipChangeCommits", "true")
            .option("maxBytesPerTrigger", AT_ONCE)
            .load(location)
            .select(*COLUMNS)
            .writeStream.foreachBatch(self._batch)
            .option("checkpointLocation", f"{location}/{CHECKPOINT}")
            .trigger(availableNow=True)
            .queryName(f"spark-sb-sink-overflow-{uuid.uuid4().hex[:8]}")
            .start()
        )
        try:
            return self._may_end(query.awaitTermination, stop)
        finally:
            query.stop()

    def _may_end(self, ended: Callable[[float], bool | None], stop: threading.Event) -> bool:
        """Wait for the end of something; False where it is to be cut off, for want of the lease or for `stop`."""
        stopped: float | None = None
        while not ended(1):
            if not self.lease.take():
                return False
            if stop.is_set():
                stopped = stopped or time.monotonic()
                if time.monotonic() >= stopped + FINISH_WITHIN:
                    return False
        return True

    def _batch(self, df: DataFrame, batch_id: int) -> None:
        name = f"overflow-{df.sparkSession.sparkContext.getLocalProperty('sql.streaming.queryId')}"
        with self._sent(df) as sent:
            self._keep_bad(sent, name, batch_id)
            if sent.rows:  # a commit that only deletes makes a micro-batch too
                self._tell(df, sent)
            self._left.add(left_of(sent.receipts), sum(count.overflow for count in sent.counts))

    # What was left

    def _once_more(self, stop: threading.Event) -> bool:
        """Try what was left, but for entities of which something was left in this drain already."""
        while True:
            version = self._version(LEFT)
            if version == self._cleared:
                return True
            there = self._left.portions()
            if not there:
                self._cleared = version
                return True
            wanted = [portion for portion in there if portion.entity not in self._stuck]
            if not wanted:
                return True
            for group in in_groups(wanted, AT_ONCE_BYTES):
                still = [portion for portion in group if portion.entity not in self._stuck]
                if still and not self._in_a_thread(partial(self._send_left, still), stop):
                    return False

    def _in_a_thread(self, work: Callable[[], None], stop: threading.Event) -> bool:
        """Run it where it can be cut off; whether it came to its end."""
        context, group = self._spark.sparkContext, f"spark-sb-sink-overflow-{uuid.uuid4().hex[:8]}"
        failed: list[Exception] = []

        def run() -> None:
            try:
                context.setJobGroup(group, "what was left of the overflow", interruptOnCancel=True)
                work()
            except Exception as error:  # noqa: BLE001 - raised where it is waited for
                failed.append(error)

        def ended(within: float) -> bool:
            thread.join(within)
            return not thread.is_alive()

        self._thread = thread = InheritableThread(target=run, name="spark-sb-sink-overflow-left", daemon=True)
        thread.start()
        if not self._may_end(ended, stop):
            context.cancelJobGroup(group)
            ended(FINISH_WITHIN)
            return False
        if failed:
            raise failed[0]
        return True

    def _send_left(self, portions: Sequence[Portion]) -> None:
        df = self._left.rows(portions)
        with self._sent(df) as sent:
            self._keep_bad(sent, f"overflow-left-{uuid.uuid4().hex}", 0)
            changed = [count for count in sent.counts if count.overflow < count.total]
            if not changed:
                return
            self._tell(df, sent)
            # What is left of an entity of which something was sent goes into a part of its own: rows are added, then
            # taken away, and whoever dies in between sends twice rather than never.
            partly = {count.entity: count.overflow for count in changed if count.overflow}
            rows = left_of(sent.receipts).where(F.col("entity").isin(sorted(partly)))
            self._left.add(rows, sum(partly.values()))
            self._left.remove(portions, [count.entity for count in changed])

    # Both

    @contextlib.contextmanager
    def _sent(self, df: DataFrame) -> Iterator[_Sent]:
        """Send all rows; within the block the receipts are kept."""
        counted = Observation()
        # One task: while its messages are sent, or wait for that, a slot is all that the overflow may hold.
        rows_in = df.coalesce(1).observe(counted, F.count(F.lit(1)).alias("rows"))
        receipts = rows_in.mapInArrow(overflow_task(self._shipped), DDL).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            reports = reports_of(receipts)
            counts = counts_of(reports)
            rows = int(counted.get.get("rows", 0))
            check_conservation(rows, reports, counts)
            yield _Sent(rows, reports, counts, receipts)
            self._note_stuck(reports)
        finally:
            receipts.unpersist()

    def _keep_bad(self, sent: _Sent, query_id: str, batch_id: int) -> None:
        bad = sum(count.quarantine for count in sent.counts)
        if bad:
            state = DeltaState(sent.receipts.sparkSession, self._address)
            kept = state.add(Table.QUARANTINE, unsent_of(sent.receipts, Table.QUARANTINE), query_id, batch_id)
            if kept != bad:
                raise StateError(state=self._address, detail=f"{kept} of {bad} rows reached the quarantine")

    def _tell(self, df: DataFrame, sent: _Sent) -> None:
        self._told(OverflowSent(sent.rows, sent.counts, _oldest(df), bytes_moved(sent.reports)))

    def _note_stuck(self, reports: Sequence[TaskReport]) -> None:
        for lane in (lane for report in reports for lane in report.entities if lane.overflow):
            before, _ = self._stuck.get(lane.entity, (0, ""))
            why = lane.error or lane.all_out or "; ".join(lane.reasons)
            self._stuck[lane.entity] = (before + lane.overflow, str(why))


def _oldest(df: DataFrame) -> dict[str, int | None]:
    rows = df.groupBy("entity").agg(F.unix_millis(F.min("stored_at")).alias("oldest")).collect()
    return {row["entity"]: row["oldest"] for row in rows}


def bytes_moved(reports: Sequence[TaskReport]) -> Counter[str]:
    """By entity; what a report tells of one may stand in two places."""
    found: Counter[str] = Counter()
    for report in reports:
        for lane in report.entities:
            found[lane.entity] += lane.primary_bytes
    return found
