"""A Spark session for a job or a command: the one that spark-submit gives, or a local one with Delta."""

import os
import sys
from importlib.util import find_spec

from pyspark.sql import SparkSession

from spark_sb_sink.java import require_java

_DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def job_session(name: str) -> SparkSession:
    """Under spark-submit: what it was told to be."""
    return SparkSession.builder.appName(name).getOrCreate()


def local_session(name: str, *, delta: bool, cores: int = 4, **conf: str) -> SparkSession:
    """In this process, for commands; as quiet as Spark can be. Raises `JavaMissingError` where there is no Java."""
    require_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.log.level": "ERROR",
        "spark.ui.showConsoleProgress": "false",
        # Delta's own tables are read in fifty tasks by default, which on one machine is most of the time they take.
        "spark.databricks.delta.snapshotPartitions": "2",
        **conf,
    }
    builder = SparkSession.builder.appName(name).master(f"local[{cores}]")
    for key, value in {**settings, **(_DELTA if delta else {})}.items():
        builder = builder.config(key, value)
    if delta and find_spec("delta") is not None:
        from delta import configure_spark_with_delta_pip

        builder = configure_spark_with_delta_pip(builder)
    return builder.getOrCreate()
