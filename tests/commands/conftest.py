"""A pair of namespaces per test, and a file with its options."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_sb_sink.broker import BrokerProcess
from spark_sb_sink.testing import ServiceBusPair
from tests.commands.support import toml
from tests.commands.tables import Tables
from tests.syphon.field import Field

ConfFile = Callable[..., Path]


@pytest.fixture
def conf_file(servicebus: ServiceBusPair, tmp_path: Path) -> ConfFile:
    """Writes the options of the pair, changed as told, into a file."""

    def write(**changes: Any) -> Path:
        path = tmp_path / "pair.toml"
        path.write_text(toml(servicebus.options(**changes)))
        return path

    return write


@pytest.fixture
def field(broker: BrokerProcess, tmp_path: Path) -> Iterator[Field]:
    """Backlogs that a test fills by hand, and drains of them."""
    with Field(broker, tmp_path) as made:
        yield made


@pytest.fixture
def tables(spark: SparkSession, tmp_path: Path) -> Tables:
    """The Delta tables of a state of its own."""
    return Tables(spark, str(tmp_path / "state"))
