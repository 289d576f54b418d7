"""The pins fit together: this Spark, this Delta and this Java write and read a table."""

from importlib.metadata import version
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession


def test_the_versions_are_those_whose_jars_can_be_had() -> None:
    assert pyspark.__version__ == "4.2.0"
    assert version("delta-spark") == "4.4.0"


def test_spark_writes_a_delta_table_and_reads_it_back(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    spark.range(10).write.format("delta").save(path)
    spark.range(10, 15).write.format("delta").mode("append").save(path)
    assert spark.read.format("delta").load(path).count() == 15
