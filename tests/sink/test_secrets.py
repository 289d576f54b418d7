"""A secret stands nowhere that somebody reads: a grep over everything that Spark and the sink write."""

import base64
import json
import logging

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_sb_sink import datasource
from spark_sb_sink.broker.faults import CbsAnswer, Reject
from spark_sb_sink.connection_strings import parse_connection_string
from spark_sb_sink.errors import MisconfiguredSendError
from tests.paired.ground import CALM
from tests.sink import samples
from tests.sink.app import SinkApp
from tests.sink.support import SinkGround


def keys(ground: SinkGround) -> list[str]:
    found = []
    for side in (ground.primary, ground.secondary):
        [key] = [
            part.partition("=")[2] for part in side.connection_string.split(";") if part.startswith("SharedAccessKey=")
        ]
        assert parse_connection_string(side.connection_string)
        found += [key, base64.b64encode(key.encode()).decode().rstrip("=")[:-2]]
    return found


def assert_clean(ground: SinkGround, what: str, text: str) -> None:
    for secret in keys(ground):
        assert secret not in text, f"a key stands in {what}"
    assert "SharedAccessSignature sr=" not in text, f"a signature stands in {what}"


def test_no_secret_in_plan_event_log_checkpoint_logs_errors_and_delta(ground: SinkGround) -> None:
    entity, refused = ground.entities(2)
    events = ground.folder / "events"
    events.mkdir()
    options = ground.plain_options(state=str(ground.folder / "state"), failover_interval="0s", ping_interval="30m")
    conf = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.sql.ui.explainMode": "extended",  # so that the event log has all that explain(True) shows
        "spark.test.debug": "true",
    }
    with SinkApp(ground.folder, options, samples.PLAIN_DDL, "local[2]", **conf) as app:
        app.start()
        app.send(samples.plain([(entity, "m1")]))
        ground.primary.hang(Reject(), entity)
        app.send(samples.plain([(entity, "m2"), ("never-there", "m3")]))
        ground.primary.hang(CbsAnswer(401), refused)
        app.put(samples.plain([(refused, "m4")]))
        app.await_told("BatchFailed")
        assert_clean(ground, "an event", json.dumps(app.told))
        assert MisconfiguredSendError.__name__ in app.log()
        files = [path for path in app.folder.rglob("*") if path.is_file() and "work" not in path.parts]
        files += [path for folder in (events, ground.folder / "state") for path in folder.rglob("*") if path.is_file()]
        assert "DEBUG:py4j" in app.log(), "the log is at debug level"
        assert any(path.suffix == ".parquet" for path in files)
        assert any("offsets" in path.parts for path in files), "the checkpoint is among them"
        event_log = "".join(path.read_bytes().decode("latin-1") for path in files if events in path.parents)
        assert "== Optimized Logical Plan ==" in event_log
        assert "MapInArrow send_to_service_bus" in event_log
        for path in files:
            assert_clean(ground, str(path), path.read_bytes().decode("latin-1"))


def plans(spark: SparkSession) -> dict[int, str]:
    """What `explain` would show of everything that this Spark has run, by number."""
    found = spark._jsparkSession.sharedState().statusStore().executionsList()
    executions = [found.apply(at) for at in range(found.size())]
    return {execution.executionId(): execution.physicalPlanDescription() for execution in executions}


def test_no_secret_in_a_plan_a_repr_an_error_or_a_log_of_either_way_in(
    ground: SinkGround, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark, entity = ground.spark, ground.entity()
    sink = ground.sink(**CALM)
    assert_clean(ground, "the repr", repr(sink) + str(sink) + repr(sink.options))
    of_other_tests = plans(spark).keys()
    spark.conf.set("spark.sql.ui.explainMode", "extended")
    with caplog.at_level(logging.DEBUG):
        sink.write(ground.rows([entity], 3))
        refusal = ground.primary.hang(CbsAnswer(401), entity)
        ground.primary.cut()
        with pytest.raises(MisconfiguredSendError) as ours:
            sink.write(ground.rows([entity], 3))
    assert_clean(ground, "the log", caplog.text)
    ground.primary.undo(refusal)
    # What stands in the environment of a driver; put there afterwards, as in a test, it goes through py4j and its log.
    for name, side in (("A_PRIMARY", ground.primary), ("A_SECONDARY", ground.secondary)):
        monkeypatch.setitem(spark.sparkContext.environment, name, side.connection_string)
    given = {key: str(value) for key, value in ground.plain_options(**CALM).items() if key != "secondary"} | {
        "primary": "${A_PRIMARY}",
        "secondary.connection_string": "${A_SECONDARY}",
        "secondary.ca_file": str(ground.secondary.ca_file),
    }
    datasource.register(spark)
    ground.rows([entity], 3, tag="source-").write.format("servicebus").mode("append").options(**given).save()
    assert ground.arrived(entity).total() == 6
    ground.primary.hang(CbsAnswer(401), entity)
    ground.primary.cut()
    with pytest.raises(PySparkException) as sparks:
        ground.rows([entity], 3).write.format("servicebus").mode("append").options(**given).save()
    spark.conf.unset("spark.sql.ui.explainMode")
    for error in (ours.value, sparks.value):
        assert_clean(ground, "the error", repr(error) + str(error))
    shown = [plan for number, plan in plans(spark).items() if number not in of_other_tests]
    for way_in in ("MapInArrow send_to_service_bus", "servicebus"):
        assert any(way_in in plan and "== Optimized Logical Plan ==" in plan for plan in shown), way_in
    assert_clean(ground, "a plan", "".join(shown))
