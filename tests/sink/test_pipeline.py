"""A pipeline from a TOML file: what is wrong with a file, what each source sends, how it ends, with which exit code."""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_sb_sink.broker.faults import Refuse, Reject
from spark_sb_sink.errors import OptionError
from spark_sb_sink.pipeline import main, run
from spark_sb_sink.pipeline_options import PipelineOptions
from tests.conftest import await_that
from tests.paired.ground import CALM
from tests.sink.support import SinkGround

ROOT = Path(__file__).resolve().parents[2]
SUBMIT = str(Path(sys.executable).parent / "spark-submit")
SCHEMA = "entity string, message_id string, body string"
NAMESPACES = """
primary = "Endpoint=sb://alpha.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey=azE="
secondary = "Endpoint=sb://beta.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey=azI="
"""
SOURCE, QUERY = '[source]\nformat = "rate"\n', '[query]\ncheckpoint = "/c"\n'


def toml(tables: dict[str, Any]) -> str:
    """JSON's strings, numbers and lists are TOML's too."""
    plain = {key: value for key, value in tables.items() if not isinstance(value, dict)}
    lines = [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in plain.items()]
    for name, table in tables.items():
        if isinstance(table, dict):
            lines += [f"[{name}]", *(f"{json.dumps(key)} = {_value(value)}" for key, value in table.items())]
    return "\n".join(lines)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_value(inner)}" for key, inner in value.items()) + "}"
    return json.dumps(value)


# Options


def load(folder: Path, text: str) -> PipelineOptions:
    file = folder / "p.toml"
    file.write_text(NAMESPACES + text)
    return PipelineOptions.from_toml(file)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (QUERY, "source is missing; it takes a table [source]."),
        (SOURCE, "query is missing; it takes a table [query]."),
        (QUERY + "[source]\n", "source.format is missing; it takes one of kafka, delta, rate, parquet, json, csv, "),
        (QUERY + '[source]\nformat = "kafak"', "source.format got 'kafak', but takes one of kafka, delta, rate, "),
        (QUERY + '[source]\nformat = "json"', "source needs path with format = 'json', the folder that the files"),
        (
            QUERY + '[source]\nformat = "parquet"\npath = "/in"',
            "source needs columns with format = 'parquet', as a stream does not guess them.",
        ),
        (QUERY + '[source]\nformat = "delta"', "source needs either path or table with format = 'delta'."),
        (
            QUERY + '[source]\nformat = "delta"\npath = "/t"\ntable = "t"',
            "source needs either path or table with format = 'delta'.",
        ),
        (
            QUERY + '[source]\nformat = "kafka"\npath = "/t"',
            "source takes no path, table or columns with format = 'kafka'.",
        ),
        (QUERY + SOURCE + "select = 7", "source.select got 7, but takes a list of SQL expressions with the columns"),
        (QUERY + SOURCE + "options = 7", "source.options got 7, but takes a table of Spark options of that source."),
        (QUERY + SOURCE + 'wher = "x"', "source.wher is no option; did you mean source.where?"),
        (SOURCE + "[query]\n", "query.checkpoint is missing; it takes a path that outlives the job, one for each"),
        (
            SOURCE + QUERY + 'trigger = "once"',
            'query.trigger got \'once\', but takes a duration such as "10s", or "available-now".',
        ),
        (SOURCE + QUERY + "trigger = -1", 'query.trigger got -1, but takes a duration such as "10s", or "available-'),
        (SOURCE + QUERY + 'stop_within = "2h"', "query.stop_within got '2h', but takes a duration"),
        (SOURCE + QUERY + 'name = ""', "query.name got '', but takes a name."),
        (SOURCE + QUERY + "[qeury]\n", "qeury is no option"),
    ],
    ids=lambda value: value[:60].replace("\n", " "),
)
def test_what_is_wrong_with_a_file_is_one_sentence(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(OptionError) as caught:
        load(tmp_path, text)
    [sentence] = caught.value.problems
    assert sentence.startswith(told)
    assert sentence.endswith((".", "?"))


def test_values_are_understood_as_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKERS", "k1:9092")
    read = load(
        tmp_path,
        SOURCE.replace("rate", "kafka")
        + 'where = "a > 1"\nselect = ["b body"]\n'
        + '[source.options]\nsubscribe = "t"\nkafka.bootstrap.servers = "${BROKERS}"\n"kafka.group.id" = "g"\n'
        + QUERY
        + 'trigger = "10s"\nstop_within = "2m"\nname = "q"\n',
    )
    assert (read.source.where, read.source.select) == ("a > 1", ("b body",))
    assert read.source.options == {"subscribe": "t", "kafka.bootstrap.servers": "k1:9092", "kafka.group.id": "g"}
    assert (read.query.trigger, read.query.stop_within, read.query.name) == (10.0, 120.0, "q")
    assert read.sink.primary.host == "alpha.servicebus.windows.net"
    assert load(tmp_path, SOURCE + QUERY).query.trigger == 0.0
    assert load(tmp_path, SOURCE + QUERY + 'trigger = "available-now"').query.trigger == "available-now"


# Sources, in this process


class Pipeline:
    """The file of a pipeline over the ground's namespaces."""

    def __init__(self, ground: SinkGround, **sink: Any) -> None:
        self.ground = ground
        self.files = ground.folder / "in"
        self.files.mkdir()
        self.checkpoint = ground.folder / "checkpoint"
        self.sink = ground.plain_options(**{**CALM, **sink})

    def file(self, source: dict[str, Any], **query: Any) -> str:
        query = {"checkpoint": str(self.checkpoint), "trigger": "available-now"} | query
        path = self.ground.folder / "pipeline.toml"
        path.write_text(toml({**self.sink, "source": source, "query": query}))
        return str(path)

    def json_source(self, **more: Any) -> dict[str, Any]:
        return {"format": "json", "path": str(self.files), "columns": SCHEMA, **more}

    def put(self, entity: str, *ids: str) -> None:
        made = self.ground.folder / f"{ids[0]}.json"
        made.write_text("\n".join(json.dumps({"entity": entity, "message_id": id_, "body": "b"}) for id_ in ids))
        made.rename(self.files / made.name)


@pytest.fixture
def pipeline(ground: SinkGround) -> Pipeline:
    return Pipeline(ground)


def run_here(spark: SparkSession, file: str) -> int:
    return main(["--conf-file", file], spark=spark)


def test_files_are_sent_as_their_select_makes_them_and_the_job_ends_with_0(pipeline: Pipeline) -> None:
    entity = pipeline.ground.entity()
    pipeline.put(entity, "m1", "m2", "m3")
    source = pipeline.json_source(
        where="message_id != 'm2'",
        select=["entity", "message_id", "'new' body", "named_struct('n', 1) as application_properties"],
    )
    assert run_here(pipeline.ground.spark, pipeline.file(source)) == 0
    assert pipeline.ground.arrived(entity) == {"m1": 1, "m3": 1}
    [message] = pipeline.ground.receive(entity, 1)
    assert (b"".join(message.body), message.application_properties) == (b"new", {b"n": 1})


def test_parquet_and_delta_tables_by_path_and_by_name_are_sources(pipeline: Pipeline) -> None:
    ground, entity = pipeline.ground, pipeline.ground.entity()
    folder = ground.folder
    ground.rows([entity], 2, tag="p").write.parquet(str(folder / "parquet"))
    ground.rows([entity], 2, tag="d").write.format("delta").save(str(folder / "delta"))
    ground.rows([entity], 2, tag="t").write.format("delta").saveAsTable("pipeline_source")
    sources: list[dict[str, Any]] = [
        {"format": "parquet", "path": str(folder / "parquet"), "columns": SCHEMA, "options": {"maxFilesPerTrigger": 1}},
        {"format": "delta", "path": str(folder / "delta"), "options": {"ignoreChanges": True}},
        {"format": "delta", "table": "pipeline_source"},
    ]
    for number, source in enumerate(sources):
        assert run_here(ground.spark, pipeline.file(source, checkpoint=str(folder / f"c{number}"))) == 0
    assert ground.arrived(entity) == {f"{tag}{entity}-{at}": 1 for tag in "pdt" for at in range(2)}


def test_a_rate_is_sent_until_it_is_told_to_stop(pipeline: Pipeline) -> None:
    ground, entity = pipeline.ground, pipeline.ground.entity()
    source = {"format": "rate", "select": ["string(value) body", f"'{entity}' entity"], "options": {"rowsPerSecond": 5}}
    options = PipelineOptions.from_toml(pipeline.file(source, trigger="100ms"))
    stop = threading.Event()

    def stop_when_some_arrived() -> None:
        try:
            await_that(lambda: len(ground.arrived(entity)) > 5, 60)
        finally:
            stop.set()

    threading.Thread(target=stop_when_some_arrived).start()
    assert run(ground.spark, options, stop) == 0
    assert len(ground.arrived(entity)) > 5
    assert set(ground.arrived(entity).values()) == {1}


def test_what_is_wrong_with_source_schema_or_pairing_is_told_in_our_words_with_exit_2(
    pipeline: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    ground, entity = pipeline.ground, pipeline.ground.entity()
    pipeline.put(entity, "m1")
    kafka = {"format": "kafka", "options": {"subscribe": "t", "kafka.bootstrap.servers": "localhost:1"}}
    wrong: list[tuple[dict[str, Any], str]] = [
        (kafka, "source.format got 'kafka', but this Spark has no such source: start it with spark-submit --packages "),
        (pipeline.json_source(path=f"{ground.folder}/none"), "none"),
        (pipeline.json_source(path="nowhere://there/in"), 'No FileSystem for scheme "nowhere"'),
        (pipeline.json_source(select=["nothing body", "entity"]), "`nothing`"),
        (pipeline.json_source(select=["body", "entity", "1 x"]), "x is no column of a message"),
        (pipeline.json_source(select=["boddy"], where="and"), "and"),
    ]
    for source, told in wrong:
        assert run_here(ground.spark, pipeline.file(source)) == 2
        error = capsys.readouterr().err
        [line] = [line for line in error.splitlines() if line.startswith("pipeline.py: ")]
        assert told in error[error.index(line) :]
        assert "Traceback" not in error
        assert "JVM" not in error
    assert f"spark-sql-kafka-0-10_2.13:{ground.spark.version}" in run_and_read(pipeline, kafka, capsys)
    ground.secondary.hang(Refuse())
    line = run_and_read(pipeline, pipeline.json_source(), capsys).splitlines()[0]
    assert "could not be reached to find or make the backlog queues" in line
    assert line.endswith('set pairing = "best-effort".')
    assert ground.arrived(entity) == {}


def test_a_batch_that_fails_after_it_has_sent_ends_the_job_with_1_whatever_it_fails_for(
    pipeline: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    ground, entity = pipeline.ground, pipeline.ground.entity()
    state = ground.folder / "state"
    (state / "quarantine").mkdir(parents=True)
    (state / "quarantine" / "_delta_log").write_text("in the way")
    pipeline.sink["state"] = str(state)
    pipeline.put(entity, "good", "bad")
    source = pipeline.json_source(select=["entity", "message_id", "nullif(message_id, 'bad') as body"])
    assert run_here(ground.spark, pipeline.file(source)) == 1
    assert f"the query failed: The Delta tables under state = '{state}' cannot be used" in capsys.readouterr().err
    assert ground.arrived(entity) == {"good": 1}


def test_a_batch_that_fails_while_it_is_let_end_is_told_with_exit_1(
    pipeline: Pipeline, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    ground, entity = pipeline.ground, pipeline.ground.entity()
    pipeline.put(entity, "m1")
    ground.primary.hang(Reject(), entity)
    options = PipelineOptions.from_toml(pipeline.file(pipeline.json_source(), trigger="0s"))
    stop = threading.Event()

    def let_it_fail() -> None:
        try:
            await_that(lambda: ground.primary.counters(entity)["events"].get("rejected"), 60)
            stop.set()
            await_that(lambda: "told to stop" in caplog.text)
            ground.primary.undo()
            ground.primary.hang(Reject("amqp:unauthorized-access", "Send claim(s) are required"), entity)
        finally:
            stop.set()

    threading.Thread(target=let_it_fail).start()
    with caplog.at_level(logging.INFO, "spark_sb_sink"):
        assert run(ground.spark, options, stop) == 1
    assert f"pipeline.py: the query failed: {entity} in namespace" in capsys.readouterr().err


def run_and_read(pipeline: Pipeline, source: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> str:
    """The last thing that the job says, with exit 2."""
    assert run_here(pipeline.ground.spark, pipeline.file(source)) == 2
    error = capsys.readouterr().err
    return error[error.index("pipeline.py: ") :]


# The job itself, in a process of its own


class Job:
    """jobs/pipeline.py as a child process."""

    def __init__(self, file: str, folder: Path, *command: str) -> None:
        self._log = folder / "log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [*(command or (sys.executable,)), str(ROOT / "jobs" / "pipeline.py"), "--conf-file", file],
                env={
                    **os.environ,
                    "PYSPARK_PYTHON": sys.executable,
                    "PYSPARK_SUBMIT_ARGS": "--master local[2] --conf spark.ui.enabled=false pyspark-shell",
                    "SPARK_LOCAL_IP": "127.0.0.1",
                },
                cwd=folder,
                stderr=log,
                stdout=log,
                start_new_session=True,
            )

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def running(self) -> bool:
        return self._process.poll() is None

    def tell(self, number: int) -> None:
        os.kill(self._process.pid, number)

    def exit_code(self) -> int:
        return self._process.wait(120)

    def kill(self) -> None:
        if self.running():
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(20)


@pytest.fixture
def jobs() -> Iterator[list[Job]]:
    made: list[Job] = []
    yield made
    for job in made:
        job.kill()


@pytest.mark.parametrize(
    ("command", "number", "code"),
    [
        ((), signal.SIGTERM, 0),
        ((), signal.SIGINT, 0),
        ((SUBMIT, "--master", "local[2]"), signal.SIGTERM, 128 + signal.SIGTERM),
    ],
    # Where the JVM came first, the signal is for the JVM, and so is the exit code.
    ids=["python SIGTERM", "python SIGINT", "spark-submit SIGTERM"],
)
def test_a_micro_batch_that_is_under_way_at_a_signal_ends_and_is_not_sent_again_after_a_restart(
    pipeline: Pipeline, jobs: list[Job], command: tuple[str, ...], number: int, code: int
) -> None:
    ground, entity = pipeline.ground, pipeline.ground.entity()
    commits = pipeline.checkpoint / "commits"
    source = pipeline.json_source(options={"maxFilesPerTrigger": 1})
    pipeline.put(entity, "m0")
    job = Job(pipeline.file(source, trigger="0s", stop_within="1m"), ground.folder, *command)
    jobs.append(job)
    await_that(lambda: (commits / "0").exists() or not job.running(), 90)
    assert job.running(), job.log()
    ground.primary.hang(Reject(), entity)
    pipeline.put(entity, "m1", "m2")
    await_that(lambda: ground.primary.counters(entity)["events"].get("rejected"), 60)
    pipeline.put(entity, "m3")
    job.tell(number)
    await_that(lambda: "told to stop" in job.log())
    ground.primary.undo()
    assert job.exit_code() == code, job.log()
    assert (commits / "1").exists()
    assert ground.arrived(entity) == {"m0": 1, "m1": 1, "m2": 1}

    assert run_here(ground.spark, pipeline.file(source)) == 0
    assert ground.arrived(entity) == {"m0": 1, "m1": 1, "m2": 1, "m3": 1}


def test_a_query_that_fails_ends_the_job_with_1_and_a_file_that_is_wrong_with_2_and_no_secret_is_told(
    ground: SinkGround, jobs: list[Job]
) -> None:
    entity, other = ground.entities(2)
    primary = ground.primary.add_policy(f"send-{other}", ["Send"], other)
    key = primary.split("SharedAccessKey=")[1].split(";")[0]
    pipeline = Pipeline(ground, primary=primary)
    source = {"format": "rate", "select": [f"'{entity}' entity", "string(value) body"]}
    job = Job(pipeline.file(source, trigger="0s"), ground.folder, SUBMIT, "--master", "local[2]")
    jobs.append(job)
    assert job.exit_code() == 1, job.log()
    last = job.log()[job.log().rindex("pipeline.py: the query failed: ") :]
    assert f"{entity} in namespace" in last
    assert "lacks the Send claim" in last
    assert last.splitlines()[0].endswith("then start the query again.")
    assert "Traceback" not in last
    assert key not in job.log()

    pipeline.sink["failover_intervall"] = "1m"
    wrong = Job(pipeline.file(source), ground.folder)
    jobs.append(wrong)
    assert wrong.exit_code() == 2
    assert wrong.log() == "pipeline.py: failover_intervall is no option; did you mean failover_interval?\n"
    nothing = Job(f"{ground.folder}/none.toml", ground.folder)
    jobs.append(nothing)
    assert nothing.exit_code() == 2
    assert nothing.log().endswith("none.toml could not be read: No such file or directory.\n")
