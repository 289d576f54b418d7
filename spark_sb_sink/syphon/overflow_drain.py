"""The overflow table on the driver: whether it has something new, and the stream that brings it home.

The stream's checkpoint lies in the table's own folder, so whoever drains next goes on where the last one ended. What it
reads is sent by `overflow`; what is bad goes to quarantine.
"""

import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark import StorageLevel
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from spark_sb_sink.delta_state import DeltaState
from spark_sb_sink.errors import StateError
from spark_sb_sink.events import RouteCounts
from spark_sb_sink.knowledge import counts_of
from spark_sb_sink.lanes import Table
from spark_sb_sink.options import Options
from spark_sb_sink.outcome import check_conservation, failure_of
from spark_sb_sink.receipts import DDL
from spark_sb_sink.spark_job import reports_of, unsent_of
from spark_sb_sink.syphon.lease import RENEW_AFTER, Lease
from spark_sb_sink.syphon.overflow import COLUMNS, overflow_task

CHECKPOINT = "_syphon"
"""Below the table's folder; Delta passes over names that begin like that."""


@dataclass(frozen=True, slots=True)
class Aged:
    """Of one entity's rows in a micro-batch of the overflow: when the oldest was stored, and their bytes."""

    oldest_ms: int | None
    bytes: int


@dataclass(frozen=True, slots=True)
class OverflowSent:
    """What a micro-batch of the overflow became."""

    rows: int
    entities: tuple[RouteCounts, ...]
    aged: Mapping[str, Aged]


class OverflowDrain:
    """One syphon's share in the overflow. For one thread."""

    def __init__(
        self,
        spark: SparkSession,
        options: Options,
        options_on_executors: Callable[[], Options],
        told: Callable[[OverflowSent], None],
        holder: str | None = None,
    ) -> None:
        if options.state is None:
            raise ValueError("without state there is no overflow")
        self._spark = spark
        self._state = DeltaState(spark, options.state)
        self._options = options
        self._shipped = options_on_executors
        self._told = told
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

    def drain(self) -> bool:
        """Send what is there. False where another syphon does, or where the lease was lost meanwhile."""
        version = self._version()
        if version < 0:
            return True
        if not self.lease.take():
            return False
        try:
            drained = self._stream()
        finally:
            self.lease.give_back()
        if drained:
            self._drained_version = version
        return drained

    def _stream(self) -> bool:
        detail = self._state.delta_table(Table.OVERFLOW.value).detail().first()
        location = str(detail.location)
        query = (
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
            asked = time.monotonic()
            while not query.awaitTermination(1):
                if time.monotonic() >= asked + RENEW_AFTER:
                    asked = time.monotonic()
                    if not self.lease.take():
                        return False
        finally:
            query.stop()
        return True

    def _batch(self, df: DataFrame, batch_id: int) -> None:
        if self._done[0] == batch_id:
            # It failed for an entity that refuses us: what the others have got is not sent again.
            df = df.where(~F.col("entity").isin(sorted(self._done[1])))
        if self._options.max_rate is not None:
            df = df.coalesce(1)  # one task keeps the rate, many would have to share it
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
            self._told(OverflowSent(rows, counts, _aged(df)))
        failure = failure_of(reports, has_state=True)
        if failure is not None:
            before = self._done[1] if self._done[0] == batch_id else frozenset()
            self._done = (batch_id, before | {count.entity for count in counts if not count.abandoned})
            raise failure


def _aged(df: DataFrame) -> dict[str, Aged]:
    size, oldest = F.sum(F.length("message")), F.unix_millis(F.min("stored_at"))
    rows = df.groupBy("entity").agg(size.alias("bytes"), oldest.alias("oldest")).collect()
    return {row["entity"]: Aged(row["oldest"], row["bytes"] or 0) for row in rows}


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

    def stop(self, within: float = 20.0) -> None:
        self._stop.set()
        self._thread.join(within)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                if self._drain.pending():
                    self.drained.clear()
                    if self._drain.drain() and not self._drain.pending():
                        self.drained.set()
                else:
                    self.drained.set()
                self.looks += 1
            except Exception as error:  # noqa: BLE001 - told, and tried again: an outage must not end it
                self.drained.clear()
                self._failed(error)
            self._stop.wait(self._every)
