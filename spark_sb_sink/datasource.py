"""`format("servicebus")`: the sink as a Python data source, for stream and batch writes. Same options, as strings.

Spark gives a data source less than it gives `foreachBatch`: no session to write Delta with, no count of its own, and no
memory from one micro-batch to the next. So `state`, `ledger` and `enable_syphon` are refused, and there are no hints;
what would go to overflow or quarantine fails the micro-batch.
"""

import logging
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from spark_sb_sink.board_records import NotedChange
from spark_sb_sink.errors import OptionError, SendError
from spark_sb_sink.events import BatchFailed, BatchSent, EntityChanged, log
from spark_sb_sink.knowledge import counts_of
from spark_sb_sink.options import Options, Pairing
from spark_sb_sink.outcome import check_conservation, failure_of
from spark_sb_sink.pairing import pair
from spark_sb_sink.pairing_keeper import MAY_PASS
from spark_sb_sink.pairing_marks import pair_once
from spark_sb_sink.receipts import REPORT, TaskReport, read_report
from spark_sb_sink.rows import RowPlan, check_schema, fields_of_spark
from spark_sb_sink.send_task import BatchPlan, executor_folder, run

FORMAT = "servicebus"
_ONLY_FOREACH_BATCH = ("state", "ledger", "enable_syphon")
_LOG = logging.getLogger(__name__)


def register(spark: SparkSession) -> None:
    """Make `format("servicebus")` known to a session."""
    spark.dataSource.register(ServiceBusDataSource)


@dataclass(frozen=True)
class Receipt(WriterCommitMessage):
    """What a task did, and when by its machine's clock; no report where its partition was empty."""

    report: TaskReport | None
    query_id: str
    started: float
    ended: float


class ServiceBusDataSource(DataSource):
    """Writes rows of the row contract to Service Bus. It cannot be read from."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        if overwrite:
            raise OptionError(
                'mode got overwrite, but takes append: what was sent cannot be taken back; use mode("append").'
            )
        options, plan = self._begin(schema)
        try:
            pair(options)
        except MAY_PASS as error:
            if options.pairing is not Pairing.BEST_EFFORT:
                raise
            _LOG.warning("NO BACKLOG: the write goes on, and what fails over may have nowhere to go. %s", error)
        return _BatchWriter(options, plan)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        # `overwrite` is set for the output mode complete, in which each micro-batch has all rows again.
        if overwrite:
            raise OptionError("outputMode got complete, but takes append or update: each micro-batch is sent as it is.")
        options, plan = self._begin(schema)
        pair_once(options)  # Spark calls this for each micro-batch, twice
        return _StreamWriter(options, plan)

    def _begin(self, schema: StructType) -> tuple[Options, RowPlan]:
        """Everything that can be wrong is told here, on the driver, before the first send."""
        given = {key.lower() for key in self.options}
        refused = [name for name in _ONLY_FOREACH_BATCH if name in given]
        if refused:
            raise OptionError(
                *(
                    f'{name} cannot be used with format("{FORMAT}"), which has no session to write Delta with or to '
                    "run a second query in; use df.writeStream.foreachBatch(ServiceBusSink(…))."
                    for name in refused
                )
            )
        options = Options.from_spark(dict(self.options))
        plan = check_schema(fields_of_spark(schema.jsonValue()), options.entity)
        return options, plan


class _Writer:
    def __init__(self, options: Options, plan: RowPlan) -> None:
        self.options = options
        self.plan = plan

    def send(self, query_id: str, batch_id: int, batches: Iterator[pa.RecordBatch]) -> Receipt:
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        batch = BatchPlan(self.plan, query_id, batch_id, keep_unsent=False)
        started = time.time()
        report = None
        for receipt in run(batch, self.options, partition, batches, executor_folder()):
            report = read_report(receipt.column(REPORT)[0].as_py())
        return Receipt(report, query_id, started, time.time())

    def end(self, batch_id: int, messages: Sequence[WriterCommitMessage | None]) -> None:
        receipts = [each for each in messages if isinstance(each, Receipt)]
        if not receipts:  # no partition, so no row
            return
        reports = [each.report for each in receipts if each.report is not None]
        counts = counts_of(reports)
        query_id = receipts[0].query_id
        for noted in _changes_of(receipts):
            told = noted.change
            log(EntityChanged(told.entity, told.before, told.after, told.reason, noted.wall_time, noted.board))
        try:
            check_conservation(sum(report.rows for report in reports), reports, counts)
            failure = failure_of(reports, has_state=False)
            if failure is not None:
                raise failure
        except SendError as error:
            log(BatchFailed(query_id, batch_id, str(error), counts))
            raise
        seconds = max(each.ended for each in receipts) - min(each.started for each in receipts)
        log(BatchSent(query_id, batch_id, sum(report.rows for report in reports), max(0.0, seconds), counts))


def _changes_of(receipts: Sequence[Receipt]) -> list[NotedChange]:
    """What executors learned in this micro-batch: with no memory of the one before it, they tell all that they know."""
    found = {
        (noted.board, noted.number): noted
        for receipt in receipts
        if receipt.report is not None
        for noted in receipt.report.changes
        if noted.wall_time >= receipt.started
    }
    return [found[key] for key in sorted(found)]


class _BatchWriter(DataSourceArrowWriter, _Writer):
    def __init__(self, options: Options, plan: RowPlan) -> None:
        _Writer.__init__(self, options, plan)
        self._run_id = f"write-{uuid.uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Receipt:
        return self.send(self._run_id, 0, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self.end(0, messages)


class _StreamWriter(DataSourceStreamArrowWriter, _Writer):
    def __init__(self, options: Options, plan: RowPlan) -> None:
        _Writer.__init__(self, options, plan)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Receipt:
        # Spark tells a stream writer neither its query nor its batch; the task's properties do.
        context = TaskContext.get()
        query_id = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
        batch_id = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
        if query_id is None or batch_id is None:
            raise RuntimeError(
                "this Spark does not tell its tasks query and batch; message ids would not be repeatable"
            )
        return self.send(query_id, int(batch_id), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self.end(batchId, messages)
