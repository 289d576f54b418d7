"""`format("servicebus")` with real Spark and both namespaces: what arrives, and what is refused before that."""

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from spark_sb_sink import datasource
from spark_sb_sink.board_records import NotedChange
from spark_sb_sink.broker.faults import Refuse, Reject
from spark_sb_sink.errors import SecondaryUnreachableError
from spark_sb_sink.failover import Health, StateChange
from spark_sb_sink.lanes import LaneTotals
from spark_sb_sink.options import Options
from spark_sb_sink.pairing_marks import driver_process, pair_once
from spark_sb_sink.receipts import TaskReport
from spark_sb_sink.rows import RowPlan
from tests.sink.support import SinkGround

SCHEMA = "entity string, message_id string, body string"
NOWHERE = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=n;SharedAccessKey=azE=;UseDevelopmentEmulator=true;"


@pytest.fixture
def registered(spark: SparkSession) -> SparkSession:
    datasource.register(spark)
    return spark


@pytest.fixture
def ground(registered: SparkSession, ground: SinkGround) -> SinkGround:
    return ground


def options(ground: SinkGround, **changed: Any) -> dict[str, str]:
    """As strings, with dots for tables."""
    flat: dict[str, str] = {}
    for key, value in ground.plain_options(**changed).items():
        inner = value if isinstance(value, dict) else {"": value}
        flat |= {f"{key}.{name}".rstrip("."): str(each) for name, each in inner.items()}
    return flat


def write(df: DataFrame, given: dict[str, str], mode: str = "append") -> None:
    df.write.format("servicebus").mode(mode).options(**given).save()


def told(error: PySparkException) -> str:
    """Our own words out of Spark's."""
    text = str(error)
    assert "spark_sb_sink.errors." in text, text
    return text[text.rindex("spark_sb_sink.errors.") :]


class Stream:
    """A query over a folder of JSON files, which can be started again."""

    def __init__(self, ground: SinkGround, folder: Path, given: dict[str, str]) -> None:
        self.ground, self.given = ground, given
        self.files, self.checkpoint = folder / "in", folder / "checkpoint"
        self.files.mkdir()

    def put(self, *lines: str) -> None:
        (self.files / f"{uuid.uuid4().hex}.json").write_text("\n".join(lines))

    def start(self, schema: str = SCHEMA) -> StreamingQuery:
        rows = self.ground.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(self.files))
        writer = rows.writeStream.format("servicebus").options(**self.given)
        return writer.option("checkpointLocation", str(self.checkpoint)).start()

    def run(self, *lines: str) -> None:
        """One micro-batch, and the query's end."""
        self.put(*lines)
        query = self.start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()


@pytest.fixture
def stream_of(ground: SinkGround, tmp_path: Path) -> Callable[..., Stream]:
    return lambda **changed: Stream(ground, tmp_path, options(ground, **changed))


def test_rows_of_a_dataframe_arrive_with_their_ids(ground: SinkGround) -> None:
    entities = ground.entities(2)
    write(ground.rows(entities, 10), options(ground))
    for entity in entities:
        assert ground.arrived(entity) == {f"{entity}-{at}": 1 for at in range(10)}
    [message] = ground.receive(entities[0], 1)
    assert b"".join(message.body).decode().startswith("body ")


def test_rows_without_an_id_get_one_and_the_option_entity_is_for_all_rows(ground: SinkGround) -> None:
    entity = ground.entity()
    write(ground.spark.createDataFrame([("a",), ("a",), ("b",)], "body string"), options(ground, entity=entity))
    assert sorted(ground.arrived(entity).values()) == [1, 1, 1]


def test_connection_strings_come_from_the_environment(
    ground: SinkGround, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    entity = ground.entity()
    monkeypatch.setitem(spark.sparkContext.environment, "A_PRIMARY", ground.primary.connection_string)
    datasource.register(spark)
    write(ground.rows([entity], 1), options(ground) | {"primary": "${A_PRIMARY}"})
    assert ground.arrived(entity) == {f"{entity}-0": 1}
    with pytest.raises(AnalysisException) as caught:
        write(ground.rows([entity], 1), options(ground) | {"primary": "${NOT_SET}"})
    assert "primary takes its value from the environment variable NOT_SET, which is not set." in told(caught.value)


def test_what_is_wrong_with_a_batch_write_is_told_before_the_first_send(ground: SinkGround) -> None:
    entity = ground.entity()
    rows = ground.rows([entity], 2)
    good = options(ground)
    plain = "Endpoint=sb://alpha.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey=dG9wLXNlY3JldA=="
    wrong: list[tuple[DataFrame, dict[str, str], str, tuple[str, ...]]] = [
        (rows, good, "overwrite", ("mode got overwrite, but takes append",)),
        (rows, good | {"primary": plain}, "append", ("primary got a secret in plain text", "${PRIMARY}")),
        (
            rows,
            good | {"state": "/tmp/x", "ledger": "auto", "enable_syphon": "true"},
            "append",
            tuple(f'{name} cannot be used with format("servicebus")' for name in ("state", "ledger", "enable_syphon")),
        ),
        (rows, good | {"backlog_queues": "3"}, "append", ("backlog_queues is no option; did you mean",)),
        (
            rows.selectExpr("entity", "body", "message_id messageid", "1 x"),
            good,
            "append",
            ("nothing was sent", "messageid is no column of a message; did you mean message_id", "x is no column"),
        ),
        (rows, good | {"secondary.connection_string": NOWHERE}, "append", ("127.0.0.1:1 could not be reached",)),
    ]
    for df, given, mode, sentences in wrong:
        with pytest.raises(AnalysisException) as caught:
            write(df, given, mode)
        for sentence in sentences:
            assert sentence in told(caught.value)
        assert "dG9wLXNlY3JldA" not in str(caught.value)
    assert ground.arrived(entity) == {}


def test_bad_rows_fail_the_write_with_their_reasons_after_the_others_are_sent(ground: SinkGround) -> None:
    entity = ground.entity()
    bad = ground.spark.createDataFrame([(entity, "x", None), (None, "y", "b")], SCHEMA)
    with pytest.raises(PySparkException) as caught:
        write(ground.rows([entity], 3).unionAll(bad), options(ground))
    text = told(caught.value)
    assert f"1 rows for {entity} cannot be sent (1 for quarantine)" in text
    assert "1 rows without an entity cannot be sent" in text
    assert "body is null" in text
    assert ground.arrived(entity) == {f"{entity}-{at}": 1 for at in range(3)}


def test_where_no_backlog_queue_takes_anything_the_write_fails_and_lists_them_all(ground: SinkGround) -> None:
    entity = ground.entity()
    given = options(ground, failover_interval="0s")
    ground.primary.hang(Reject(), entity)
    for number in range(2):
        ground.secondary.hang(Reject(), ground.queue(number))
    with pytest.raises(PySparkException) as caught:
        write(ground.rows([entity], 3), given)
    for sentence in (f"{entity} is failed over", "none of the 2 backlog queues", ground.queue(0), ground.queue(1)):
        assert sentence in told(caught.value)


def test_with_best_effort_a_write_goes_on_without_its_secondary(ground: SinkGround) -> None:
    entity = ground.entity()
    given = options(ground, pairing="best-effort") | {"secondary.connection_string": NOWHERE}
    write(ground.rows([entity], 3), given)
    assert sum(ground.arrived(entity).values()) == 3


def test_a_stream_sends_each_micro_batch_once_and_pairs_once_also_when_the_secondary_is_out_later(
    ground: SinkGround, stream_of: Callable[..., Stream]
) -> None:
    entity = ground.entity()
    stream = stream_of()
    query = stream.start()
    try:
        stream.put(f'{{"entity": "{entity}", "message_id": "m0", "body": "b"}}')
        query.processAllAvailable()
        before = ground.secondary.counters()["management"]
        stream.put(f'{{"entity": "{entity}", "message_id": "m1", "body": "b"}}')
        query.processAllAvailable()
        assert ground.secondary.counters()["management"] == before
        ground.secondary.hang(Refuse())
        stream.put(f'{{"entity": "{entity}", "message_id": "m2", "body": "b"}}')
        query.processAllAvailable()
    finally:
        query.stop()
    assert ground.arrived(entity) == {"m0": 1, "m1": 1, "m2": 1}


def test_a_replayed_micro_batch_gives_the_same_derived_ids(
    ground: SinkGround, stream_of: Callable[..., Stream]
) -> None:
    good, refusing = ground.entities(2)
    primary = ground.primary.add_policy(f"send-{good}", ["Send"], good)
    stream = stream_of(primary=primary)
    rows = [f'{{"entity": "{entity}", "body": "{body}"}}' for entity in (good, refusing) for body in "aab"]
    for _ in range(2):  # the second time it is the replay of the first
        with pytest.raises(PySparkException) as caught:
            stream.run(*rows)
        assert f"{refusing} in namespace" in str(caught.value)
        assert "Send claim" in str(caught.value)
        rows = []
    assert sorted(ground.arrived(good).values()) == [2, 2, 2]
    assert ground.arrived(refusing) == {}
    # With the claim the third try ends well, and the next micro-batch has other ids for the same rows.
    stream.given = options(ground)
    stream.run()
    stream.run(f'{{"entity": "{good}", "body": "a"}}')
    assert sorted(ground.arrived(good).values()) == [1, 3, 3, 3]
    assert sorted(ground.arrived(refusing).values()) == [1, 1, 1]


def test_a_stream_in_output_mode_complete_or_with_a_wrong_schema_is_refused(
    ground: SinkGround, stream_of: Callable[..., Stream]
) -> None:
    entity = ground.entity()
    stream = stream_of()
    stream.put(f'{{"entity": "{entity}", "body": "b", "titel": "t"}}')
    query = stream.start("entity string, body string, titel string")
    with pytest.raises(PySparkException, match="titel is no column of a message"):
        query.processAllAvailable()
    rows = ground.spark.readStream.schema(SCHEMA).json(str(stream.files)).groupBy("entity").count()
    counted = rows.selectExpr("entity", "string(count) body")
    writer = counted.writeStream.format("servicebus").outputMode("complete").options(**stream.given)
    query = writer.option("checkpointLocation", f"{stream.checkpoint}-2").start()
    with pytest.raises(PySparkException, match="outputMode got complete, but takes append or update"):
        query.processAllAvailable()
    assert ground.arrived(entity) == {}


# What its end tells, without Spark


def test_a_failover_is_logged_once_by_the_micro_batch_that_it_came_in(
    ground: SinkGround, caplog: pytest.LogCaptureFixture
) -> None:
    def noted(number: int, at: float) -> NotedChange:
        return NotedChange("board", number, StateChange("orders", Health.SUSPECT, Health.FAILED_OVER, "gone", 1.0), at)

    report = TaskReport(0, 3, (LaneTotals("orders", backlog=3),), "board", (noted(1, 50.0), noted(2, 150.0)))
    receipts = [datasource.Receipt(found, "query-1", 100.0, 104.5) for found in (report, report, None)]
    writer = datasource._Writer(flat_options(ground), RowPlan(()))
    with caplog.at_level("INFO", "spark_sb_sink"):
        writer.end(7, receipts)
    assert [record.getMessage() for record in caplog.records] == [
        "orders: suspect → failed over (gone)",
        "batch 7 of query-1: 6 rows in 4.50 s: 6 backlog",
    ]


# Pairing once for a driver, without Spark


def flat_options(ground: SinkGround, **changed: Any) -> Options:
    return Options.from_dict(ground.plain_options(**changed))


def test_a_driver_pairs_once_and_another_driver_for_itself(ground: SinkGround, tmp_path: Path) -> None:
    given = flat_options(ground)
    before = ground.secondary.counters()["management"]
    pair_once(given, tmp_path, "one")
    once = ground.secondary.counters()["management"] - before
    assert once > 0
    pair_once(given, tmp_path, "one")
    assert ground.secondary.counters()["management"] - before == once
    pair_once(given, tmp_path, "other")
    assert ground.secondary.counters()["management"] - before == 2 * once


def test_a_driver_that_could_not_pair_tries_again_and_one_that_has_paired_goes_on(
    ground: SinkGround, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_sb_sink.pairing_marks.LOOK_AGAIN", 0.0)
    given = flat_options(ground)
    out = ground.secondary.hang(Refuse())
    for _ in range(2):
        with pytest.raises(SecondaryUnreachableError):
            pair_once(given, tmp_path, "one")
    ground.secondary.undo(out)
    pair_once(given, tmp_path, "one")
    ground.secondary.hang(Refuse())
    pair_once(given, tmp_path, "one")


def test_with_best_effort_a_secondary_that_is_out_is_not_asked_for_each_micro_batch(
    ground: SinkGround, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = flat_options(ground, pairing="best-effort")
    ground.secondary.hang(Refuse())
    for _ in range(3):
        pair_once(given, tmp_path, "one")
    assert len([record for record in caplog.records if "NO BACKLOG" in record.getMessage()]) == 1


def test_marks_of_drivers_that_are_gone_are_cleared_away(ground: SinkGround, tmp_path: Path) -> None:
    (tmp_path / "999999999-1-digest").write_text("paired")
    pair_once(flat_options(ground), tmp_path)
    [mark] = tmp_path.iterdir()
    assert mark.name.startswith(driver_process())
