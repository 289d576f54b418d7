"""Where benchmarks with Spark stand: a local Spark, a broker with both namespaces, and rows that are kept in memory."""

import contextlib
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from delta import configure_spark_with_delta_pip
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_sb_sink.broker import BrokerProcess, NamespaceHandle
from spark_sb_sink.options import Options
from spark_sb_sink.sink import ServiceBusSink
from tests.bench.processes import SparkProcesses

CORES = 2


@dataclass
class Ground:
    """One run of a benchmark."""

    spark: SparkSession
    broker: BrokerProcess
    folder: Path
    processes: SparkProcesses

    @property
    def primary(self) -> NamespaceHandle:
        return self.broker["primary"]

    @property
    def secondary(self) -> NamespaceHandle:
        return self.broker["secondary"]

    def entities(self, count: int, **settings: Any) -> list[str]:
        """New queues in the primary."""
        names = [f"e{number:03}-{uuid.uuid4().hex[:8]}" for number in range(count)]
        for name in names:
            self.primary.create_queue(name, **settings)
        return names

    def options(self, **changed: Any) -> Options:
        secondary = {"connection_string": self.secondary.connection_string, "ca_file": str(self.secondary.ca_file)}
        name = f"p-{uuid.uuid4().hex[:8]}"
        given = {"primary": self.primary.connection_string, "secondary": secondary, "primary_name": name}
        return Options.from_dict({**given, **changed})

    def fresh_workers(self) -> None:
        """From here on other Python workers, so that memory is that of one case: a process gives little of it back."""
        old = self.processes.workers()
        # Spark has a pool of workers for each environment that a function is made with.
        self.spark.sparkContext.environment["BENCH_WORKERS"] = uuid.uuid4().hex
        for pid in old:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    @contextlib.contextmanager
    def sink(self, **changed: Any) -> Iterator[ServiceBusSink]:
        with contextlib.closing(ServiceBusSink(self.options(**changed), listeners=())) as made:
            yield made

    @contextlib.contextmanager
    def rows(self, entities: Sequence[str], size: int, count: int) -> Iterator[DataFrame]:
        """Rows with entity, message id and a body of that size, held in memory by Spark: the source costs nothing."""
        names = F.array(*map(F.lit, entities))
        df = self.spark.range(0, count, numPartitions=CORES).select(
            F.element_at(names, (F.col("id") % len(entities) + 1).cast("int")).alias("entity"),
            F.format_string("%032x", "id").alias("message_id"),
            F.rpad(F.col("id").cast("string"), size, "x").cast("binary").alias("body"),
        )
        df = df.persist(StorageLevel.MEMORY_ONLY)
        try:
            assert df.count() == count
            yield df
        finally:
            df.unpersist(blocking=True)


@contextlib.contextmanager
def ground(*, delta: bool = False, memory: str = "3g") -> Iterator[Ground]:
    # Spark's workers are to be of this environment, also where its folder is not on the path, and find this package.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    here = str(Path(__file__).resolve().parents[2])
    os.environ["PYTHONPATH"] = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, BrokerProcess("primary", "secondary") as broker:
        builder = (
            SparkSession.builder.master(f"local[{CORES}]")
            .config("spark.sql.warehouse.dir", f"{folder}/warehouse")
            .config("spark.sql.shuffle.partitions", str(CORES))
            .config("spark.driver.memory", memory)
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.log.level", "ERROR")
        )
        if delta:
            builder = configure_spark_with_delta_pip(
                builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension").config(
                    "spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog"
                )
            )
        spark = builder.getOrCreate()
        try:
            for side in broker.namespaces.values():
                side.configure_journal(enabled=False)
            yield Ground(spark, broker, Path(folder), SparkProcesses.find())
        finally:
            spark.stop()
