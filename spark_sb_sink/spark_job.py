"""How the sink's Spark job runs: partitioned as a replay will be, and once, however often its receipts are read."""

import contextlib
import functools
import re
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_sb_sink.errors import UnsupportedSparkError
from spark_sb_sink.lanes import Table
from spark_sb_sink.receipts import KIND, PACKED, REPORT, UNSENT_DDL, TaskReport, read_report, unpack
from spark_sb_sink.send_task import SendTask

# What gives a replay other partitions than the first try, and so rows without an id of their own other ids.
_STEADY = {
    "spark.sql.adaptive.coalescePartitions.enabled": "false",
    "spark.sql.adaptive.localShuffleReader.enabled": "false",
    "spark.sql.adaptive.skewJoin.enabled": "false",
    "spark.sql.adaptive.optimizeSkewsInRebalancePartitions.enabled": "false",
}


def function_of(task: SendTask) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The task as a function, under the name that Spark shows in its plans."""

    def send_to_service_bus(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from task(batches)

    return send_to_service_bus


@functools.cache
def type_of(ddl: str) -> StructType:
    """Read by the JVM, once: it is the same for all micro-batches."""
    return StructType.fromDDL(ddl)


_ADAPTIVE = (
    "spark.sql.adaptive.enabled",
    "spark.sql.adaptive.coalescePartitions.enabled",
    "spark.sql.adaptive.streaming.stateless.enabled",
)


def shuffled_before(df: DataFrame) -> bool:
    """Whether adaptive execution has had its way with the partitions of a micro-batch before it came to the sink.

    Spark runs the shuffles of a streaming query itself, then calls foreachBatch: too late for `steady_partitions`.
    """
    if any(df.sparkSession.conf.get(key, "true") != "true" for key in _ADAPTIVE):
        return False
    leaves = df._jdf.queryExecution().logical().collectLeaves()
    found = (leaves.apply(at) for at in range(leaves.size()))
    return any(
        "ShuffledRowRDD" in leaf.rdd().toDebugString() for leaf in found if leaf.getClass().getSimpleName() == _RAN
    )


_RAN = "LogicalRDD"
"""What a micro-batch is in the plan of a DataFrame: rows of a query that is running already."""


_NARROW = frozenset(
    f"{_RAN} Range Project Filter SubqueryAlias View Relation LocalRelation OneRowRelation CollectMetrics".split()
)
"""What keeps the partitions that it is given. Anything else may be one that shuffles."""
_NODE = re.compile(r"[\s:+|-]*'?(\w*)")


def may_shuffle(df: DataFrame) -> bool:
    """Whether there is something in the plan of the DataFrame that could. A micro-batch of a stream has run already."""
    lines = df._jdf.queryExecution().analyzed().toString().splitlines()
    return any(found is None or found[1] not in _NARROW for found in map(_NODE.match, lines))


@contextlib.contextmanager
def steady_partitions(df: DataFrame) -> Iterator[None]:
    """Within the block what is shuffled for the sink keeps its partitions."""
    if not may_shuffle(df):  # each setting is a call into the JVM, for each micro-batch
        yield
        return
    spark = df.sparkSession
    before = {key: spark.conf.get(key, None) for key in _STEADY}
    for key, value in _STEADY.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, value)


def reports_of(receipts: DataFrame, *, alone: bool = False) -> list[TaskReport]:
    """What the tasks report; `alone` where nothing else can come. What was not sent does not come to the driver."""
    found = receipts if alone else receipts.select(REPORT)  # a filter would cost more than the nulls do
    return [read_report(row[0]) for row in found.collect() if row[0] is not None]


def unsent_of(receipts: DataFrame, table: Table) -> DataFrame:
    """The messages for one of the tables."""
    return receipts.where(F.col(KIND) == table.value).select(PACKED).mapInArrow(unpack, type_of(UNSENT_DDL))


@contextlib.contextmanager
def kept(receipts: DataFrame, wanted: bool) -> Iterator[None]:
    """While they are kept, what reads the receipts does not send again."""
    if not wanted:
        yield
        return
    receipts.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield
    finally:
        receipts.unpersist()


def require_classic(df: object) -> None:
    """Raises an `UnsupportedSparkError` for anything but a DataFrame of classic Spark."""
    if not isinstance(df, DataFrame) or type(df).__module__.startswith("pyspark.sql.connect"):
        raise UnsupportedSparkError(
            f"The sink got a {type(df).__module__}.{type(df).__name__}, but takes a DataFrame of classic Spark: with "
            "Spark Connect it learns neither the query's id nor where an executor keeps its files. Run the query in "
            'the driver itself (spark-submit, a dedicated cluster), or use format("servicebus").'
        )


def query_and_run_of(df: DataFrame) -> tuple[str, str]:
    """The ids of the streaming query and of its run, which Spark tells to the thread that calls foreachBatch only."""
    context = df.sparkSession.sparkContext
    query_id, run_id = (context.getLocalProperty(key) for key in ("sql.streaming.queryId", "spark.jobGroup.id"))
    if query_id is None or run_id is None:
        raise UnsupportedSparkError(
            "The sink was called where Spark tells neither the query nor its run, and a replay could not be told from "
            "a new micro-batch. Call it in the thread that Spark calls foreachBatch in, or in a "
            "pyspark.InheritableThread; a plain DataFrame is for sink.write(df)."
        )
    return query_id, run_id
