"""A secret stands nowhere that somebody reads: a grep over everything that Spark and the sink write."""

import base64
import json
import logging
from pathlib import Path

import pytest

from spark_sb_sink.broker.faults import CbsAnswer, Reject
from spark_sb_sink.connection_strings import parse_connection_string
from spark_sb_sink.errors import MisconfiguredSendError
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
        assert [path for path in files if events in path.parents]
        for path in files:
            assert_clean(ground, str(path), path.read_bytes().decode("latin-1"))


def test_no_secret_in_a_plan_a_repr_or_an_error_here(
    ground: SinkGround, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    entity = ground.entity()
    sink = ground.sink()
    assert_clean(ground, "the repr", repr(sink) + str(sink) + repr(sink.options))
    ground.primary.hang(CbsAnswer(401), entity)
    with caplog.at_level(logging.DEBUG), pytest.raises(MisconfiguredSendError) as caught:
        sink.write(ground.rows([entity], 3))
    assert_clean(ground, "the error", repr(caught.value) + str(caught.value))
    assert_clean(ground, "the log", caplog.text)
    ground.rows([entity], 1).explain(True)
    assert_clean(ground, "the plan", capsys.readouterr().out)
