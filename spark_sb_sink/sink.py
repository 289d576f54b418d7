"""The sink on the driver: `df.writeStream.foreachBatch(ServiceBusSink(options))`.

For each micro-batch one Spark job sends (`send_task`), and its reports decide: conservation is checked against Spark's
own count, what was not sent goes to Delta, and what one executor learned is a hint for the others. Knows no links.
"""

import os
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from spark_sb_sink.calls import CALLS
from spark_sb_sink.delta_state import DeltaState, LedgerEntry
from spark_sb_sink.driver_loop import DriverLoop
from spark_sb_sink.errors import ConservationError, UnsupportedSparkError, told
from spark_sb_sink.events import (
    BatchFailed,
    BatchSent,
    BatchSkipped,
    EntityChanged,
    Event,
    Listener,
    Paired,
    RouteCounts,
    Warned,
    log,
    tell,
)
from spark_sb_sink.knowledge import Knowledge, SinkState, counts_of
from spark_sb_sink.lanes import Table
from spark_sb_sink.options import Ledger, Options
from spark_sb_sink.outcome import check_conservation, failure_of
from spark_sb_sink.pairing_keeper import PairingKeeper
from spark_sb_sink.receipts import DDL, REPORT_DDL
from spark_sb_sink.rows import check_schema, fields_of_spark
from spark_sb_sink.send_task import BatchPlan, SendTask
from spark_sb_sink.shipping import Shipping
from spark_sb_sink.spark_job import (
    function_of,
    kept,
    query_and_run_of,
    reports_of,
    require_classic,
    shuffled_before,
    steady_partitions,
    type_of,
    unsent_of,
)
from spark_sb_sink.syphon.beside import SyphonBeside
from spark_sb_sink.turns import Turns

_NEITHER_ID_NOR_PARTITION = (
    "The query shuffles its rows before the sink gets them, with adaptive execution on, and they bring no message_id: "
    "a replayed micro-batch may be partitioned differently, and what is then sent twice has two ids. Give each row a "
    "message_id, or set spark.sql.adaptive.coalescePartitions.enabled to false before the query is started."
)


class ServiceBusSink:
    """A function of a micro-batch and its number, for `foreachBatch`; `write` sends a plain DataFrame."""

    def __init__(
        self,
        options: Options | Mapping[str, Any] | str | os.PathLike[str] | None = None,
        *,
        listeners: Sequence[Listener] = (log,),
        **keywords: Any,
    ) -> None:
        """`options`: an `Options`, a dictionary, or the path of a TOML file. Keywords go before what stands there."""
        self.options = _options_of(options, keywords)
        self._listeners = tuple(listeners)
        self._prepare()

    def _prepare(self) -> None:
        self._turns = Turns()
        self._loop: DriverLoop | None = None
        self._keeper: PairingKeeper | None = None
        self._syphon: SyphonBeside | None = None
        self._shipping = Shipping(self.options)
        self._knowledge = Knowledge()
        self._begun: set[str] = set()
        self._last: dict[tuple[str, int], int] = {}
        self._has_sent = False
        self._counts: tuple[RouteCounts, ...] = ()
        self._quiet_batches = self._quiet_rows = 0

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.options = state["options"]
        self._listeners = (log,)
        self._prepare()

    def __repr__(self) -> str:
        return f"ServiceBusSink({self.options.primary.host} → {self.options.secondary.host})"

    # What users call

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Send a micro-batch. Returns when each row is acknowledged on one of the four routes, or raises."""
        require_classic(df)
        query_id, run_id = query_and_run_of(df)
        with CALLS.one(query_id, run_id, int(batch_id), df) as call, self._turns.one():
            self._batch(df, query_id, int(batch_id), call)

    def write(self, df: DataFrame, *, run_id: str | None = None) -> SinkState:
        """Send a plain DataFrame, once. To try a failed one again with the same ids, give the same `run_id`."""
        require_classic(df)
        if df.isStreaming:
            raise UnsupportedSparkError(
                "write takes a plain DataFrame; for a streaming one use df.writeStream.foreachBatch(sink).start()."
            )
        query_id = run_id or f"write-{uuid.uuid4()}"
        try:
            with self._turns.one():
                self._batch(df, query_id, 0, 0)
        finally:
            if run_id is None:  # it never comes again
                self._begun.discard(query_id)
                self._last.pop((query_id, 0), None)
        return self.state()

    def state(self) -> SinkState:
        """States of the entities and totals so far."""
        return self._knowledge.state()

    def pause(self, within: float | None = None) -> bool:
        """Begin no further micro-batch; whether the one under way ended in time. For a graceful stop.

        One that comes meanwhile waits for `close`, or ends with a `ClosedError` where this is False: `query.stop()`
        would wait for it.
        """
        return self._turns.pause(within)

    @property
    def waiting(self) -> bool:
        """Whether a micro-batch has come since `pause` and waits: the one before it is committed."""
        return self._turns.waiting

    @property
    def has_sent(self) -> bool:
        """Whether a job that sends was ever begun."""
        return self._has_sent

    def close(self) -> None:
        """Let go of what the driver holds. Workers keep their connections until Spark ends them."""
        self._turns.refuse()
        if self._syphon is not None:
            self._syphon.stop()
            self._syphon = None
        if self._loop is not None:
            if self._keeper is not None:
                self._loop.run(self._keeper.stop())
            self._loop.close()
            self._loop = None
        self._shipping.close()

    # A micro-batch

    def _batch(self, df: DataFrame, query_id: str, batch_id: int, call: int) -> None:
        plan = check_schema(fields_of_spark(df.schema.jsonValue()), self.options.entity)
        spark = df.sparkSession
        state = None if self.options.state is None else DeltaState(spark, self.options.state)
        if query_id not in self._begun:
            self._begin(spark, state)
            self._begun.add(query_id)
            if not plan.brings("message_id") and shuffled_before(df):
                self._tell(Warned(_NEITHER_ID_NOR_PARTITION))
        if self._keeper is not None:
            self._keeper.check()
        if self._syphon is not None:
            self._syphon.look_after(spark)
        last = self._last.get((query_id, call))
        self._last[query_id, call] = batch_id
        # Spark replays the last micro-batch of a run only: the first that we see, or one that we have seen.
        replay = last is None or batch_id <= last
        every_batch = self.options.ledger is Ledger.EVERY_BATCH
        if replay and state and every_batch and state.finished(query_id, batch_id, call):
            self._tell(BatchSkipped(query_id, batch_id))
            return
        hints, known = self._knowledge.hints(), self._knowledge.known()
        batch = BatchPlan(plan, query_id, batch_id, state is not None, hints, known, call)
        self._counts = ()
        try:
            self._send(df, batch, state)
        except Exception as error:
            self._tell(BatchFailed(query_id, batch_id, told(error), self._counts))
            raise

    def _begin(self, spark: SparkSession, state: DeltaState | None) -> None:
        """Before the first send of a query: what has to be there is there, or nothing is sent."""
        if state is not None:
            state.check()
        if spark.sparkContext.getConf().get("spark.speculation", "false") == "true":
            self._tell(
                Warned(
                    "spark.speculation is on: Spark may run a send task twice, and both send. Duplicates carry the "
                    "same MessageId; switch it off to avoid them."
                )
            )
        if self._keeper is None:
            self._loop = self._loop or DriverLoop("spark-sb-sink-driver")
            self._keeper = PairingKeeper(
                self.options,
                on_paired=lambda paired: self._tell(Paired(paired.namespace, paired.count, len(paired.created))),
            )
            try:
                self._loop.run(self._keeper.start())
            except BaseException:
                self._keeper = None
                raise
        if self.options.enable_syphon and self._syphon is None:
            syphon = SyphonBeside(self.options, self._listeners)
            syphon.start(spark)
            self._syphon = syphon

    def _send(self, df: DataFrame, batch: BatchPlan, state: DeltaState | None) -> None:
        started = time.monotonic()
        counted = Observation()
        rows_in = df.observe(counted, F.count(F.lit(1)).alias("rows"))
        task = SendTask(batch, self._shipping.to(df.sparkSession))
        receipts = rows_in.mapInArrow(function_of(task), type_of(REPORT_DDL if state is None else DDL))
        with steady_partitions(df), kept(receipts, state is not None):
            self._has_sent = True
            reports = reports_of(receipts, alone=state is None)
            counts = self._counts = counts_of(reports)
            rows = int(counted.get.get("rows", 0))
            changes = self._knowledge.learn(reports, batch.hints)
            for noted in changes:
                change = noted.change
                self._tell(
                    EntityChanged(
                        change.entity, change.before, change.after, change.reason, noted.wall_time, noted.board
                    )
                )
            missed = sum({report.board: report.missed for report in reports}.values())
            if missed:
                self._tell(
                    Warned(f"{missed} changes of entities are not told: an executor had forgotten them by then.")
                )
            check_conservation(rows, reports, counts)
            if state is not None:
                self._keep_unsent(receipts, counts, batch, state)
        failure = failure_of(reports, has_state=state is not None)
        self._knowledge.count(rows, counts)
        seconds = time.monotonic() - started
        entry = LedgerEntry(
            batch.query_id,
            batch.batch_id,
            time.time(),
            failure is None,
            rows,
            seconds,
            counts,
            tuple(changes),
            None if failure is None else str(failure),
            call=batch.call,
        )
        if state is not None:
            try:
                self._note(entry, state)
            except Exception as error:  # it must not hide why the micro-batch fails
                if failure is None:
                    raise
                self._tell(Warned(f"The ledger has no entry of the micro-batch that fails now: {told(error)}"))
        if failure is not None:
            raise failure
        self._tell(BatchSent(batch.query_id, batch.batch_id, rows, seconds, counts))

    def _keep_unsent(
        self, receipts: DataFrame, counts: Sequence[RouteCounts], batch: BatchPlan, state: DeltaState
    ) -> None:
        """From where Spark keeps the receipts straight to Delta: what was not sent does not come to the driver."""
        for table in Table:
            wanted = sum(getattr(count, table.value) for count in counts)
            if wanted:
                stored = state.add(table, unsent_of(receipts, table), batch.query_id, batch.batch_id, batch.call)
                if stored != wanted:
                    raise ConservationError(
                        rows=wanted,
                        accounted=stored,
                        detail=f"for {table.value}; an executor was lost meanwhile and its task ran again",
                    )

    def _note(self, entry: LedgerEntry, state: DeltaState) -> None:
        wanted = self.options.ledger is Ledger.EVERY_BATCH or entry.changes or not entry.finished
        if not wanted and all(counts.primary == counts.total for counts in entry.entities):
            self._quiet_batches += 1
            self._quiet_rows += entry.rows
            return
        state.note(replace(entry, quiet_batches=self._quiet_batches, quiet_rows=self._quiet_rows))
        self._quiet_batches = self._quiet_rows = 0

    def _tell(self, event: Event) -> None:
        tell(self._listeners, event)


def _options_of(
    options: Options | Mapping[str, Any] | str | os.PathLike[str] | None, keywords: Mapping[str, Any]
) -> Options:
    if isinstance(options, Options):
        if not keywords:
            return options
        return Options(**{**{name: getattr(options, name) for name in options.model_fields_set}, **keywords})
    if options is None or isinstance(options, Mapping):
        return Options.from_dict({**(options or {}), **keywords})
    return Options.from_toml(options, changes=keywords)
