"""What all tests share: a broker with two namespaces, and helpers that wait for a condition, never for a time."""

import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator

import pytest
from delta import configure_spark_with_delta_pip
from hypothesis import HealthCheck, settings
from pyspark.sql import SparkSession

from spark_sb_sink.broker import BrokerProcess, NamespaceHandle
from spark_sb_sink.java import JavaMissingError, require_java

# A machine that is busy with other things makes each example slow, which is no fault of the test.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

# Spark's Python workers are to be of this environment, also where its folder is not on the path.
os.environ["PYSPARK_PYTHON"] = sys.executable


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Local Spark with Delta."""
    try:
        require_java()
    except JavaMissingError as error:
        pytest.fail(str(error), pytrace=False)
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
    )
    session = configure_spark_with_delta_pip(builder).getOrCreate()
    yield session
    session.stop()


@pytest.fixture(scope="session")
def broker() -> Iterator[BrokerProcess]:
    """One broker for the whole run; each test makes entities of its own."""
    with BrokerProcess("primary", "secondary") as running:
        yield running
        assert running.running, f"the broker died during the tests: {running.errors()}"
        assert "Traceback" not in running.errors(), running.errors()


@pytest.fixture
def namespace(broker: BrokerProcess) -> Iterator[NamespaceHandle]:
    """The primary namespace, without faults, before and after."""
    handle = broker["primary"]
    handle.undo()
    yield handle
    handle.undo()
    handle.start()


@pytest.fixture
def name() -> str:
    """A name for an entity that no other test has."""
    return f"e-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def queue(namespace: NamespaceHandle, name: str) -> str:
    namespace.create_queue(name)
    return name


def await_that(condition: Callable[[], object], within: float = 20.0) -> None:
    """Wait until the condition holds; fail with its source line if it does not in time."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"not within {within} s"
        time.sleep(0.02)
