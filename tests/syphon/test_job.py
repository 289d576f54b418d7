"""The syphon as a job and as a command: what is wrong with a call, how a drain is told of, how a signal ends it."""

import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from spark_sb_sink.broker import BrokerProcess
from spark_sb_sink.broker.faults import Reject
from spark_sb_sink.cli import app
from spark_sb_sink.errors import PairingError
from spark_sb_sink.pairing_keeper import PairingKeeper
from spark_sb_sink.syphon.job import run
from tests.conftest import await_that
from tests.sink.support import SinkGround
from tests.sink.test_pipeline import toml

GOOD = """
primary = "Endpoint=sb://alpha.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey=azE="
secondary = "Endpoint=sb://beta.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey=azI="
"""


@pytest.mark.parametrize(
    ("text", "arguments", "told"),
    [
        (None, [], "spark-sb-sink: The options file"),
        ("primary = 7", [], "primary got a int"),
        (GOOD + 'long_pol = "1m"', [], "long_pol"),
        (GOOD, ["--within", "5m"], "--within is a time limit for --until-empty"),
        (GOOD, ["--json"], "--json prints the outcome of --until-empty, and was given without it."),
        (GOOD, ["--until-empty", "--within", "soon"], "--within got 'soon', but takes a duration such as \"10m\"."),
    ],
)
def test_a_wrong_call_is_one_sentence_and_exit_code_2(
    tmp_path: Path, text: str | None, arguments: list[str], told: str
) -> None:
    file = tmp_path / "syphon.toml"
    if text is not None:
        file.write_text(text)
    done = CliRunner().invoke(app, ["syphon", "--conf-file", str(file), *arguments])
    assert done.exit_code == 2
    assert told in done.stderr
    assert "Traceback" not in done.output


def test_the_help_has_an_example() -> None:
    assert "Example: spark-sb-sink syphon --conf-file" in CliRunner().invoke(app, ["syphon", "--help"]).stdout


class Kept:
    """The tests' own session in the place of one that a job makes: it outlives the job."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def __getattr__(self, name: str) -> object:
        return (lambda: None) if name == "stop" else getattr(self._spark, name)


@pytest.fixture
def ground(broker: BrokerProcess, spark: SparkSession, tmp_path: Path) -> Iterator[SinkGround]:
    with SinkGround(broker, tmp_path, spark) as made:
        yield made


def conf(ground: SinkGround, **changed: object) -> str:
    file = ground.folder / "syphon.toml"
    file.write_text(toml({**ground.plain_options(), "settle_time": "0s", "long_poll": "2s", **changed}))
    return str(file)


def drain(ground: SinkGround, file: str, within: str | None, *, as_json: bool = True, until_empty: bool = True) -> int:
    spark = Kept(ground.spark)
    return run(
        file,
        until_empty=until_empty,
        within=within,
        as_json=as_json,
        session=lambda options: spark,  # type: ignore[arg-type,return-value]
        program="syphon.py",
    )


def test_a_drain_tells_what_it_moved_or_what_is_left(ground: SinkGround, capsys: pytest.CaptureFixture[str]) -> None:
    entity = ground.entity()
    fault = ground.primary.hang(Reject(), entity)
    ground.sink(failover_interval="0s", ping_interval="30m").write(ground.rows([entity], 20))
    file = conf(ground, failover_interval="0s", ping_interval="1s")
    assert drain(ground, file, "3s", as_json=False) == 3
    told = capsys.readouterr().out
    assert told.startswith("The time is up; 0 messages were moved, and there are left: 20 in ")
    assert "The overflow was not looked at: set the option state" in told
    ground.primary.undo(fault)
    assert drain(ground, file, "2m") == 0
    assert json.loads(capsys.readouterr().out) == {"empty": True, "moved": 20, "left": {}, "overflow_empty": None}


@pytest.mark.parametrize(
    ("until_empty", "number"), [(True, signal.SIGINT), (False, signal.SIGTERM)], ids=["until empty", "for ever"]
)
def test_a_signal_ends_it_and_what_is_left_is_told(
    ground: SinkGround, capsys: pytest.CaptureFixture[str], until_empty: bool, number: int
) -> None:
    entity = ground.entity()
    fault = ground.primary.hang(Reject(), entity)
    ground.sink(failover_interval="0s", ping_interval="30m").write(ground.rows([entity], 400))
    ground.primary.undo(fault)

    def interrupt() -> None:
        await_that(lambda: ground.accepted(entity) > 0, 60)
        os.kill(os.getpid(), number)

    waiting = threading.Thread(target=interrupt)
    waiting.start()
    code = drain(ground, conf(ground, max_rate=20), None, as_json=False, until_empty=until_empty)
    waiting.join()
    told = capsys.readouterr().out
    if until_empty:
        assert code == 3
        assert told.startswith("Stopped; ")
        assert f"there are left: {400 - ground.accepted(entity)} in " in told
    else:
        assert (code, told) == (0, "")
    assert 0 < ground.accepted(entity) < 400
    assert not sum(ground.secondary.counts(ground.queue(number))["locked"] for number in range(2))


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (PairingError("no queues", namespace="n"), 2, "syphon.py: no queues\n"),
        (RuntimeError("an executor was lost"), 1, "syphon.py: the syphon ended: A turn of the syphon failed: "),
    ],
    ids=["ours", "Spark's"],
)
def test_what_ends_a_turn_ends_it_with_a_sentence(
    ground: SinkGround,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    code: int,
    told: str,
) -> None:
    def fails(keeper: PairingKeeper) -> None:
        raise error

    monkeypatch.setattr(PairingKeeper, "check", fails)
    assert drain(ground, conf(ground), None, as_json=False, until_empty=False) == code
    found = capsys.readouterr().err
    assert told in found
    assert str(error) in found
    assert "Traceback" not in found


def test_a_credential_that_is_refused_ends_it_with_exit_code_1_and_says_which_side_went_first(
    ground: SinkGround, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = re.sub("SharedAccessKey=[^;]+", "SharedAccessKey=d3Jvbmc=", ground.secondary.connection_string)
    assert drain(ground, conf(ground, secondary=wrong, pairing="assume"), None, as_json=False, until_empty=False) == 1
    told = capsys.readouterr().err
    assert "syphon.py: the syphon ended: " in told
    assert "secondary" in told.split("primary")[0]
    assert "d3Jvbmc" not in told
