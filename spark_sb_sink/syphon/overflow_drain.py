"""The overflow table on the driver: whether it has something new, and the stream that brings it home.

The stream's checkpoint lies in the table's own folder, so whoever drains next goes on where the last one ended. What it
reads is sent by `overflow`; what is bad goes to quarantine.
"""

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pyspark import StorageLevel
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from spark_sb_sink.delta_state import DeltaState
from spark_sb_sink.errors import SendError, StateError, UnsendableError
from spark_sb_sink.events import RouteCounts
from spark_sb_sink.knowledge import counts_of
from spark_sb_sink.lanes import Table
from spark_sb_sink.options import Options
from spark_sb_sink.outcome import check_conservation, failure_of
from spark_sb_sink.receipts import DDL, TaskReport
from spark_sb_sink.spark_job import reports_of, unsent_of
from spark_sb_sink.syphon.lease import Lease
from spark_sb_sink.syphon.overflow import COLUMNS, overflow_task
from spark_sb_sink.syphon.rate import Shares

CHECKPOINT = "_syphon"
"""Below the table's folder; Delta passes over names that begin like that."""
FINISH_WITHIN = 5.0
"""Seconds for a micro-batch under way to end after a stop."""
STOP_WITHIN = 30.0
"""Seconds for all of a stop. Spark kills a Python task two seconds after it was cancelled."""


@dataclass(frozen=True, slots=True)
class OverflowSent:
    """What a micro-batch of the overflow became. By entity: when the oldest row was stored, and the bytes moved."""

    rows: int
    entities: tuple[RouteCounts, ...]
    oldest_ms: Mapping[str, int | None]
    bytes: Mapping[str, int]


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
        self._state = DeltaState(spark, options.state)
        self._options = options
        self._shipped = options_on_executors
        self._told = told
        self._shares = shares or Shares(None, 1)
        self._query: StreamingQuery | None = None
        self.lease = Lease(spark, self._state, holder or uuid.uuid4().hex)
        self._drained_version = -1
        self._done: tuple[int, frozenset[str]] = (-1, frozenset())
        """A micro-batch that failed, and the entities whose rows in it are all sent."""

    def pending(self) -> bool:
        """Whether the table has had anything added since we found it drained. One look at Delta's log."""
        return self._version() > self._drained_version

    def _version(self) -> int:
        if not self._state.exists(Table.OVERFLOW.value):
            return -1
        history = self._state.delta_table(Table.OVERFLOW.value).history(1).first()
        return int(history.version)

    def drain(self, stop: threading.Event | None = None) -> bool:
        """Send what is there. False where another syphon does, where the lease was lost, or where `stop` came first."""
        stop = stop or threading.Event()
        version = self._version()
        if version < 0:
            return True
        if not self.lease.take():
            return False
        try:
            with self._shares.for_overflow(stop) as mine:
                drained = mine and self.lease.take() and self._stream(stop)
        finally:
            if self._query is None or not self._query.isActive:  # else it may still send
                self.lease.give_back()
        if drained:
            self._drained_version = version
        return drained

    def _stream(self, stop: threading.Event) -> bool:
        detail = self._state.delta_table(Table.OVERFLOW.value).detail().first()
        location = str(detail.location)
        self._query = query = (
            self._spark.readStream.format("delta")
            # A person may delete what was drained; that is no news.
            .option("skipChangeCommits", "true")
            .load(location)
            .select(*COLUMNS)
            .writeStream.foreachBatch(self._batch)
            .option("checkpointLocation", f"{location}/{CHECKPOINT}")
            .trigger(availableNow=True)
            .queryName(f"spark-sb-sink-overflow-{uuid.uuid4().hex[:8]}")
            .start()
        )
        try:
            stopped: float | None = None
            while not query.awaitTermination(1):
                if not self.lease.take():
                    return False
                if stop.is_set():
                    stopped = stopped or time.monotonic()
                    if time.monotonic() >= stopped + FINISH_WITHIN:
                        return False
        finally:
            query.stop()
        return True

    def _batch(self, df: DataFrame, batch_id: int) -> None:
        if self._done[0] == batch_id:
            # It failed for an entity that refuses us: what the others have got is not sent again.
            df = df.where(~F.col("entity").isin(sorted(self._done[1])))
        # One task: while its messages are sent, or wait for that, a slot is all that the overflow may hold.
        df = df.coalesce(1)
        counted = Observation()
        rows_in = df.observe(counted, F.count(F.lit(1)).alias("rows"))
        receipts = rows_in.mapInArrow(overflow_task(self._shipped), DDL).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            reports = reports_of(receipts)
            counts = counts_of(reports)
            rows = int(counted.get.get("rows", 0))
            check_conservation(rows, reports, counts)
            bad = sum(count.quarantine for count in counts)
            if bad:
                name = f"overflow-{df.sparkSession.sparkContext.getLocalProperty('sql.streaming.queryId')}"
                kept = DeltaState(df.sparkSession, str(self._options.state)).add(
                    Table.QUARANTINE, unsent_of(receipts, Table.QUARANTINE), name, batch_id
                )
                if kept != bad:
                    raise StateError(
                        state=str(self._options.state), detail=f"{kept} of {bad} rows reached the quarantine"
                    )
        finally:
            receipts.unpersist()
        if rows:  # a commit that only deletes makes a micro-batch too
            self._told(OverflowSent(rows, counts, _oldest(df), bytes_moved(reports)))
        failure = failure_of(reports, has_state=True) or _still_out(reports)
        if failure is not None:
            before = self._done[1] if self._done[0] == batch_id else frozenset()
            done = {count.entity for count in counts if not (count.abandoned or count.overflow)}
            self._done = (batch_id, before | done)
            raise failure


def _still_out(reports: Sequence[TaskReport]) -> SendError | None:
    """Why a micro-batch is tried again: nothing took some of its messages."""
    for lane in (lane for report in reports for lane in report.entities if lane.overflow):
        if lane.all_out is not None:
            return lane.all_out
        return UnsendableError(entity=lane.entity, overflow=lane.overflow, quarantine=0, reasons=lane.reasons)
    return None


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


class OverflowThread:
    """Looks after the overflow now and then, beside the syphon's turns."""

    def __init__(self, drain: OverflowDrain, every: float, failed: Callable[[Exception], None]) -> None:
        self._drain = drain
        self._every = every
        self._failed = failed
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spark-sb-sink-overflow", daemon=True)
        self.drained = threading.Event()
        """Set while the last look found nothing left."""
        self.looks = 0

    def start(self) -> None:
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Begin to stop: a micro-batch has some seconds to end, then it is cut off, and sent again by the next one."""
        self._stop.set()

    def stop(self, within: float = STOP_WITHIN) -> bool:
        """Stop and wait for that; whether it came to its end in time."""
        self._stop.set()
        self._thread.join(within)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                if self._drain.pending():
                    self.drained.clear()
                    if self._drain.drain(self._stop) and not self._drain.pending():
                        self.drained.set()
                else:
                    self.drained.set()
                self.looks += 1
            except Exception as error:  # noqa: BLE001 - told, and tried again: an outage must not end it
                self.drained.clear()
                self._failed(error)
            self._stop.wait(self._every)
