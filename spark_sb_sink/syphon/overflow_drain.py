"""The overflow table on the driver: whether it has something new, and the stream that brings it home.

The stream's checkpoint lies in the table's own folder, so whoever drains next goes on where the last one ended. What it
reads is sent by `overflow`; what is bad goes to quarantine.
"""

import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

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
from spark_sb_sink.receipts import DDL, KIND, PAYLOAD, REPORT, read_report
from spark_sb_sink.syphon.lease import RENEW_AFTER, Lease
from spark_sb_sink.syphon.overflow import COLUMNS, overflow_task

CHECKPOINT = "_syphon"
"""Below the table's folder; Delta passes over names that begin like that."""


@dataclass(frozen=True, slots=True)
class OverflowSent:
    """What a micro-batch of the overflow became."""

    rows: int
    entities: tuple[RouteCounts, ...]


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
        detail = self._state.delta_table(Table.OVERFLOW.value).detail().first()
        location = str(detail.location)
        query = (
            self._spark.readStream.format("delta")
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
        self._drained_version = version
        return True

    def _batch(self, df: DataFrame, batch_id: int) -> None:
        counted = Observation()
        rows_in = df.observe(counted, F.count(F.lit(1)).alias("rows"))
        receipts = rows_in.mapInArrow(overflow_task(self._shipped), DDL).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            found = receipts.where(F.col(KIND) == REPORT).select(PAYLOAD).collect()
            reports = [read_report(row[0]) for row in found]
            counts = counts_of(reports)
            rows = int(counted.get.get("rows", 0))
            check_conservation(rows, reports, counts)
            bad = sum(count.quarantine for count in counts)
            if bad:
                name = f"overflow-{df.sparkSession.sparkContext.getLocalProperty('sql.streaming.queryId')}"
                kept = DeltaState(df.sparkSession, str(self._options.state)).add(
                    Table.QUARANTINE, receipts.where(F.col(KIND) == Table.QUARANTINE.value), name, batch_id
                )
                if kept != bad:
                    raise StateError(
                        state=str(self._options.state), detail=f"{kept} of {bad} rows reached the quarantine"
                    )
        finally:
            receipts.unpersist()
        self._told(OverflowSent(rows, counts))
        failure = failure_of(reports, has_state=True)
        if failure is not None:
            raise failure


def transfers_of(sent: Sequence[OverflowSent]) -> list[tuple[str, dict[str, Any]]]:
    """As rows of the table `transfers`: the entity, and its counts."""
    rows: list[tuple[str, dict[str, Any]]] = []
    for each in sent:
        rows += [
            (count.entity, {"moved": count.primary + count.backlog, "dead_lettered": count.quarantine})
            for count in each.entities
        ]
    return rows


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
