"""What all tests share: the fixtures that users get too (`spark_sb_sink.testing`), and a Spark with Delta."""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from delta import configure_spark_with_delta_pip
from hypothesis import HealthCheck, settings
from pyspark.sql import SparkSession

from spark_sb_sink.broker import BrokerProcess, NamespaceHandle
from spark_sb_sink.java import JavaMissingError, require_java
from tests import jvm

pytest.register_assert_rewrite("spark_sb_sink.testing")  # before it is imported here, as pytest asks for plugins
from spark_sb_sink.testing import ServiceBusPair, await_that  # noqa: E402

__all__ = ["await_that"]

pytest_plugins = ["spark_sb_sink.testing"]

# A machine that is busy with other things makes each example slow, which is no fault of the test.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

# Spark's Python workers are to be of this environment, also where its folder is not on the path.
os.environ["PYSPARK_PYTHON"] = sys.executable


_making = pytest.StashKey[subprocess.Popen[bytes]]()


def pytest_configure(config: pytest.Config) -> None:
    """Once for a run, before its workers start: how JVMs begin."""
    if hasattr(config, "workerinput") or jvm.OPTIONS in os.environ:
        return
    cache = getattr(config, "cache", None)  # a run can go without
    archive = None if cache is None else jvm.archive_in(cache.mkdir("jvm"))
    os.environ[jvm.OPTIONS] = jvm.options(archive)
    if archive is not None and not archive.exists() and config.getoption("numprocesses", None):
        config.stash[_making] = jvm.begin(archive)


def pytest_unconfigure(config: pytest.Config) -> None:
    making = config.stash.get(_making, None)
    if making is not None and making.poll() is None:
        os.killpg(making.pid, signal.SIGKILL)
        making.wait()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from tests.scheduling import Together

    return Together(config, log)


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
        .config("spark.databricks.delta.snapshotPartitions", "2")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
    )
    session = configure_spark_with_delta_pip(builder).getOrCreate()
    yield session
    session.stop()


@pytest.fixture(scope="session")
def broker(servicebus_broker: BrokerProcess) -> BrokerProcess:
    """One broker for the whole run; each test makes entities of its own."""
    return servicebus_broker


@pytest.fixture
def namespace(servicebus: ServiceBusPair) -> NamespaceHandle:
    """The primary namespace, without faults, before and after."""
    return servicebus.primary


@pytest.fixture
def name() -> str:
    """A name for an entity that no other test has."""
    return f"e-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def queue(namespace: NamespaceHandle, name: str) -> str:
    namespace.create_queue(name)
    return name
