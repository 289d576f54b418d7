"""A whole pipeline from one TOML file: source → sink, until it is told to stop. What `jobs/pipeline.py` runs.

Exit codes: 0 stopped by SIGTERM or SIGINT, or all that was available is sent; 1 the query failed, also while it was
stopped; 2 the file or what it names is wrong, and nothing was sent. Where spark-submit's JVM got the SIGTERM, the code
is its own, 143.
"""

import argparse
import contextlib
import logging
import re
import signal
import sys
import threading
import time
from collections.abc import Sequence

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from spark_sb_sink.errors import (
    ClosedError,
    OptionError,
    PairingError,
    SchemaError,
    SparkSbSinkError,
    StateError,
    UnsupportedSparkError,
    told,
)
from spark_sb_sink.jvm_shutdown import held_back
from spark_sb_sink.pipeline_options import AVAILABLE_NOW, PipelineOptions, SourceOptions
from spark_sb_sink.rows import check_schema, fields_of_spark
from spark_sb_sink.sessions import job_session
from spark_sb_sink.sink import ServiceBusSink
from spark_sb_sink.stopping import caught

_LOG = logging.getLogger(__name__)
LOOK_EVERY = 0.2
AND_END = 10.0
"""Seconds for the query to end after its last micro-batch."""
_WRONG = (OptionError, SchemaError, StateError, PairingError, UnsupportedSparkError)
_PACKAGES = {
    "kafka": "org.apache.spark:spark-sql-kafka-0-10_{scala}:{spark}",
    "delta": "io.delta:delta-spark_{minor}_{scala}:4.4.0",
}


def main(argv: Sequence[str] | None = None, *, spark: SparkSession | None = None) -> int:
    """Run the pipeline of a file; the exit code."""
    parser = argparse.ArgumentParser(
        prog="pipeline.py",
        description="Send a stream to Service Bus.",
        epilog="Example: spark-submit jobs/pipeline.py --conf-file conf/pipeline.toml",
    )
    parser.add_argument("--conf-file", required=True, help="a TOML file with [source], [query] and the sink's options")
    arguments = parser.parse_args(argv)
    try:
        options = PipelineOptions.from_toml(arguments.conf_file)
    except OptionError as error:
        return _wrong(error)
    stop = threading.Event()
    with caught(stop, signal.SIGTERM):
        session = spark or job_session(options.query.name or "spark_sb_sink pipeline")
        try:
            # A new session takes SIGINT for itself, and where the JVM came first, SIGTERM goes to the JVM.
            with caught(stop, signal.SIGINT), held_back(session, stop, options.query.stop_within + AND_END):
                return run(session, options, stop)
        finally:
            if spark is None:
                session.stop()


def run(spark: SparkSession, options: PipelineOptions, stop: threading.Event) -> int:
    """Run until the query ends or `stop` is set."""
    sink = ServiceBusSink(options.sink)
    errors: list[Exception] = []
    cut_off = threading.Event()

    def send(df: DataFrame, batch_id: int) -> None:
        try:
            sink(df, batch_id)
        except Exception as error:  # what Spark makes of it is a text with two stack traces
            if not (cut_off.is_set() or isinstance(error, ClosedError)):
                errors.append(error)
            raise

    try:
        rows = read(spark, options.source)
        check_schema(fields_of_spark(rows.schema.jsonValue()), options.sink.entity)
        writer = rows.writeStream.foreachBatch(send).option("checkpointLocation", options.query.checkpoint)
        if options.query.name:
            writer = writer.queryName(options.query.name)
        if options.query.trigger == AVAILABLE_NOW:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{options.query.trigger} seconds")
        query = writer.start()
    except (SparkSbSinkError, PySparkException, Py4JJavaError) as error:
        sink.close()
        return _wrong(error, _missing(spark, options.source.format, told(error)))
    try:
        failure = _until_the_end(query, sink, stop, options.query.stop_within, cut_off)
        if errors and (failure is None or isinstance(errors[-1], SparkSbSinkError)):
            failure = errors[-1]
        if failure is None:
            return 0
        # What was wrong before the first send is the user's to mend, and trying again will not help.
        if isinstance(failure, _WRONG) and not sink.has_sent:
            return _wrong(failure)
        print(f"pipeline.py: the query failed: {told(failure)}", file=sys.stderr)
        return 1
    finally:
        query.stop()
        sink.close()


def read(spark: SparkSession, source: SourceOptions) -> DataFrame:
    """The source as a streaming DataFrame of messages."""
    reader = spark.readStream.format(source.format).options(
        **{key: _option(value) for key, value in source.options.items()}
    )
    if source.columns is not None:
        reader = reader.schema(source.columns)
    if source.table is not None:
        rows = reader.table(source.table)
    else:
        rows = reader.load(source.path) if source.path is not None else reader.load()
    if source.where is not None:
        rows = rows.where(source.where)
    return rows.selectExpr(*source.select) if source.select else rows


def _option(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _until_the_end(
    query: StreamingQuery, sink: ServiceBusSink, stop: threading.Event, within: float, cut_off: threading.Event
) -> Exception | None:
    """Wait for the end of the query, or bring it about; what Spark says of a query that failed by itself."""
    try:
        while not stop.is_set():
            if query.awaitTermination(LOOK_EVERY):
                _LOG.info("the query ended: all that was available is sent")
                return None
    except StreamingQueryException as error:
        return error  # type: ignore[no-any-return]
    return _stop_gently(query, sink, within, cut_off)


def _stop_gently(
    query: StreamingQuery, sink: ServiceBusSink, within: float, cut_off: threading.Event
) -> Exception | None:
    """Let the micro-batch under way end and be committed, then stop: a restart begins with the next one.

    `cut_off` is set where it is not let: what it fails with then is no news.
    """
    deadline = time.monotonic() + within
    _LOG.info("told to stop; the micro-batch under way may take %g s", within)
    in_time = sink.pause(within)
    if not in_time:
        _LOG.warning(
            "the micro-batch did not end in %g s; it is cut off, and replayed when the query is restarted", within
        )
    while query.isActive and not sink.waiting and time.monotonic() < deadline:
        if not query.status["isTriggerActive"]:
            break
        time.sleep(LOOK_EVERY / 4)
    failed = None if query.isActive else query.exception()
    if in_time:
        sink.close()  # a micro-batch that has come meanwhile waits for that, and `stop` for it
    else:
        cut_off.set()
    query.stop()
    return failed


def _missing(spark: SparkSession, source: str, text: str) -> str | None:
    """What to do where Spark does not know the source."""
    if source not in _PACKAGES:
        return None
    # Spark finds no such source, or Java finds a class that the source needs in another jar.
    if not (re.search("find.*data source", text, re.IGNORECASE) or "NoClassDefFound" in text):
        return None
    package = _PACKAGES[source].format(spark=spark.version, minor=spark.version.rpartition(".")[0], scala=_scala(spark))
    return (
        f"source.format got {source!r}, but this Spark has no such source: start it with spark-submit --packages "
        f"{package}, or put that jar and what it needs on the class path."
    )


def _scala(spark: SparkSession) -> str:
    with contextlib.suppress(Exception):
        full = str(spark.sparkContext._jvm.scala.util.Properties.versionNumberString())
        return ".".join(full.split(".")[:2])
    return "2.13"


def _wrong(error: Exception, instead: str | None = None) -> int:
    print(f"pipeline.py: {instead or told(error)}", file=sys.stderr)
    return 2
