"""Two namespaces and a Spark for the sink."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_sb_sink.broker import BrokerProcess
from tests.sink.support import SinkGround


@pytest.fixture
def ground(broker: BrokerProcess, spark: SparkSession, tmp_path: Path) -> Iterator[SinkGround]:
    with SinkGround(broker, tmp_path, spark) as made:
        yield made
