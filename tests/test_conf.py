"""Every file in conf/ is one that works."""

from pathlib import Path

import pytest

from spark_sb_sink.option_loading import PIPELINE_TABLES, read_toml
from spark_sb_sink.option_page import page
from spark_sb_sink.options import Options, Pairing
from spark_sb_sink.pipeline_options import PipelineOptions
from spark_sb_sink.rows.contract import TAKES

CONF = Path(__file__).parent.parent / "conf"
FILES = sorted(CONF.glob("*.toml"))
PIPELINES = [path for path in FILES if PIPELINE_TABLES[0] in read_toml(path)]
ENVIRONMENT = {
    f"SERVICEBUS_{side}": f"Endpoint=sb://{side.lower()}.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey=azE="
    for side in ("PRIMARY", "SECONDARY")
} | {"KAFKA_BROKERS": "k1:9092,k2:9092"}


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


def test_there_is_an_example_for_each_situation() -> None:
    assert {path.stem for path in FILES} >= {
        "connection-strings",
        "managed-identity",
        "topics-with-sessions",
        "no-delta",
        "databricks",
        "pipeline",
        "syphon",
    }


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_an_example_loads_as_it_is(path: Path) -> None:
    assert Options.from_toml(path, ENVIRONMENT).backlog_queue_count == 10


@pytest.mark.parametrize("path", PIPELINES, ids=lambda path: path.name)
@pytest.mark.usefixtures("environment")
def test_an_example_with_a_source_is_a_whole_pipeline_whose_columns_are_those_of_a_message(path: Path) -> None:
    options = PipelineOptions.from_toml(path)
    assert options.sink == Options.from_toml(path)
    columns = {expression.rpartition(" as ")[2] for expression in options.source.select}
    assert columns <= TAKES.keys()
    assert "body" in columns
    assert "entity" in columns or options.sink.entity is not None


def test_the_examples_say_what_their_comments_say() -> None:
    strings = Options.from_toml(CONF / "connection-strings.toml", ENVIRONMENT)
    assert (strings.failover_interval, strings.pairing) == (60.0, Pairing.REQUIRED)
    assert strings.backlog_path == "primary/x-servicebus-transfer/"
    identity = Options.from_toml(CONF / "managed-identity.toml", {})
    assert identity.pairing is Pairing.ASSUME
    assert identity.backlog_path == "contoso-west/x-servicebus-transfer/"
    topics = Options.from_toml(CONF / "topics-with-sessions.toml", ENVIRONMENT)
    assert (topics.partitioned, topics.state) == (("orders",), "/var/lib/spark/servicebus")
    no_delta = Options.from_toml(CONF / "no-delta.toml", ENVIRONMENT)
    assert (no_delta.state, no_delta.entity, no_delta.pairing) == (None, "orders", Pairing.BEST_EFFORT)
    databricks = Options.from_toml(CONF / "databricks.toml", ENVIRONMENT)
    assert databricks.state == "main.messaging.servicebus"


@pytest.mark.usefixtures("environment")
def test_the_kafka_example_passes_its_options_on_to_spark() -> None:
    source = PipelineOptions.from_toml(CONF / "pipeline.toml").source
    assert source.format == "kafka"
    assert source.options["kafka.bootstrap.servers"] == ENVIRONMENT["KAFKA_BROKERS"]
    assert source.options["maxOffsetsPerTrigger"] == 100_000


def test_the_page_of_options_is_the_one_that_the_code_makes() -> None:
    assert (CONF.parent / "docs" / "options.md").read_text() == page()
