"""The sink on the driver: its one job, what it counts, tells, refuses and ships."""

import pickle
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_sb_sink import spark_job
from spark_sb_sink.errors import ConservationError, MisconfiguredSendError, StateError, UnsupportedSparkError
from spark_sb_sink.events import BatchFailed, BatchSent, Paired, Warned
from spark_sb_sink.send_task import SendTask
from tests.conftest import await_that
from tests.paired.ground import CALM
from tests.sink import samples
from tests.sink.support import SinkGround


@pytest.mark.parametrize("with_state", [True, False], ids=["with state", "without"])
def test_a_healthy_micro_batch_is_one_spark_job_and_writes_nothing_to_delta(
    ground: SinkGround, with_state: bool
) -> None:
    names = ground.entities(3)
    state = {"state": str(ground.folder / "state")} if with_state else {}
    stream = ground.stream(ground.sink(**state, **CALM), samples.PLAIN_DDL)
    query = stream.start()
    stream.send(ground.rows(names, 10))
    tracker = ground.spark.sparkContext.statusTracker()
    before = len(tracker.getJobIdsForGroup(query.runId))
    for tag in ("b-", "c-"):
        stream.send(ground.rows(names, 10, tag=tag))
    assert len(tracker.getJobIdsForGroup(query.runId)) == before + 2
    assert [event.rows for event in ground.of(BatchSent)] == [30, 30, 30]
    assert not (ground.folder / "state").exists()


def forgets_a_row(task: SendTask) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A send task with a fault: it never sees the first row of a batch."""

    def send(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from task(batch.slice(1) for batch in batches)

    return send


def test_rows_are_counted_by_spark_so_that_one_that_our_code_never_saw_fails_the_batch(
    ground: SinkGround, monkeypatch: pytest.MonkeyPatch
) -> None:
    entity = ground.entity()
    monkeypatch.setattr("spark_sb_sink.sink.function_of", forgets_a_row)
    with pytest.raises(ConservationError, match="counted 10 rows in this micro-batch, but 9 have an outcome"):
        ground.sink(**CALM).write(ground.rows([entity], 10, partitions=1))
    [failed] = ground.of(BatchFailed)
    assert "counted 10 rows" in failed.error


def test_a_batch_that_fails_is_told_with_what_became_of_its_rows(ground: SinkGround) -> None:
    entity, refusing = ground.entities(2)
    primary = ground.primary.add_policy(f"send-{entity}", ["Send"], entity)
    with pytest.raises(MisconfiguredSendError):
        ground.sink(primary=primary, **CALM).write(ground.rows([entity, refusing], 5))
    [failed] = ground.of(BatchFailed)
    assert refusing in failed.error
    assert {counts.entity: (counts.primary, counts.abandoned) for counts in failed.entities} == {
        entity: (5, 0),
        refusing: (0, 5),
    }


def test_a_batch_whose_rows_cannot_be_kept_in_delta_fails_and_is_told(ground: SinkGround) -> None:
    entity = ground.entity()
    state = ground.folder / "state"
    (state / "quarantine").mkdir(parents=True)
    (state / "quarantine" / "_delta_log").write_text("in the way")
    df = ground.spark.sql(f"SELECT '{entity}' AS entity, if(id = 0, NULL, 'b') AS body FROM range(3)")
    with pytest.raises(StateError) as caught:
        ground.sink(state=str(state), **CALM).write(df)
    [failed] = ground.of(BatchFailed)
    assert failed.error == str(caught.value)
    assert [(counts.primary, counts.quarantine) for counts in failed.entities] == [(0, 1), (2, 0)] or [
        (counts.primary, counts.quarantine) for counts in failed.entities
    ] == [(2, 1)]


def test_a_sink_ships_its_options_and_nothing_else_and_is_made_again_from_them(ground: SinkGround) -> None:
    entity = ground.entity()
    sink = ground.sink(**CALM)
    sink.write(ground.rows([entity], 1, tag="before-"))  # now it holds locks, a loop, a broadcast
    again = pickle.loads(pickle.dumps(sink))
    assert again.options == sink.options
    assert len(pickle.dumps(sink)) < len(pickle.dumps(sink.options)) + 300
    try:
        assert again.write(ground.rows([entity], 1)).rows == 1
    finally:
        again.close()
    assert ground.arrived(entity).total() == 2


def test_with_best_effort_the_pair_is_told_of_when_it_is_there_at_last(
    ground: SinkGround, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_sb_sink.pairing_keeper.TRY_AGAIN", 0.2)
    entity = ground.entity()
    sink = ground.sink(pairing="best-effort", **CALM)
    ground.secondary.stop()
    sink.write(ground.rows([entity], 1))
    assert ground.of(Paired) == []
    ground.secondary.start()
    await_that(lambda: ground.of(Paired))
    [paired] = ground.of(Paired)
    assert paired.backlog_queues == 2


def test_speculative_execution_is_warned_of(ground: SinkGround) -> None:
    entity = ground.entity()
    conf = ground.spark.sparkContext._conf
    conf.set("spark.speculation", "true")
    try:
        sink = ground.sink(**CALM)
        sink.write(ground.rows([entity], 1))
    finally:
        conf._jconf.remove("spark.speculation")
    [warned] = ground.of(Warned)
    assert "spark.speculation is on" in warned.text
    ground.sink(**CALM).write(ground.rows([entity], 1))
    assert ground.of(Warned) == [warned]


def test_a_query_that_shuffles_rows_without_an_id_before_the_sink_gets_them_is_warned_of(ground: SinkGround) -> None:
    """Spark has put the partitions together by then, and may do so differently on a replay."""
    entity = ground.entity()
    folder = str(ground.folder / "in")
    ground.rows([entity], 20).write.parquet(folder)
    key = "spark.sql.adaptive.coalescePartitions.enabled"

    def warned_of(*columns: str, coalesce: str = "true", shuffle: bool = True) -> bool:
        ground.spark.conf.set(key, coalesce)
        rows = ground.spark.readStream.schema(samples.PLAIN_DDL).parquet(folder)
        rows = (rows.repartition("body") if shuffle else rows).selectExpr(*columns)
        writer = rows.writeStream.foreachBatch(ground.sink(**CALM)).trigger(availableNow=True)
        try:
            query = writer.option("checkpointLocation", str(ground.folder / uuid.uuid4().hex)).start()
            query.awaitTermination()
        finally:
            ground.spark.conf.unset(key)
        told = [event.text for event in ground.of(Warned)]
        ground.events.clear()
        return any("The query shuffles its rows before the sink" in text and key in text for text in told)

    assert warned_of("entity", "body")
    assert warned_of("entity", "body", "NULL AS message_id")
    assert not warned_of("entity", "body", "message_id")
    assert not warned_of("entity", "body", coalesce="false")
    assert not warned_of("entity", "body", shuffle=False)


def test_a_streaming_dataframe_is_not_for_write(ground: SinkGround, spark: SparkSession) -> None:
    with pytest.raises(UnsupportedSparkError, match="foreachBatch"):
        ground.sink().write(spark.readStream.format("rate").load())


def of_spark_connect() -> Any:
    """Its DataFrame is one of pyspark.sql too, and has none of what the sink needs."""
    kind = type("DataFrame", (DataFrame,), {"__module__": "pyspark.sql.connect.dataframe"})
    return object.__new__(kind)


@pytest.mark.parametrize("df", [of_spark_connect(), []], ids=["Spark Connect", "a list"])
def test_what_is_no_classic_dataframe_is_refused_with_the_reason(ground: SinkGround, df: Any) -> None:
    for send in (lambda sink: sink(df, 0), lambda sink: sink.write(df)):
        with pytest.raises(UnsupportedSparkError, match="Spark Connect"):
            send(ground.sink())


def test_what_lets_spark_change_partitions_is_off_for_the_job_and_as_it_was_after_it(spark: SparkSession) -> None:
    keys = list(spark_job._STEADY)
    before = {key: spark.conf.get(key, None) for key in keys}
    spark.conf.set(keys[0], "true")
    try:
        with spark_job.steady_partitions(spark.range(4).repartition(2)):
            assert {spark.conf.get(key) for key in keys} == {"false"}
        assert spark.conf.get(keys[0]) == "true"
    finally:
        spark.conf.unset(keys[0])
    assert {key: spark.conf.get(key, None) for key in keys} == before


def test_only_a_plan_that_could_shuffle_is_given_steady_partitions(spark: SparkSession) -> None:
    table = spark.range(4).selectExpr("id", "id % 2 AS key")
    table.createOrReplaceTempView("narrow")
    for narrow in (table, table.where("id > 1"), spark.sql("SELECT id FROM narrow"), spark.createDataFrame([(1,)])):
        assert not spark_job.may_shuffle(narrow)
        with spark_job.steady_partitions(narrow):
            assert spark.conf.get("spark.sql.adaptive.coalescePartitions.enabled") == "true"
    wide = [
        table.repartition(3),
        table.groupBy("key").count().select("key"),
        table.join(table.withColumnRenamed("id", "other"), "key"),
        table.orderBy("id").where("id > 1"),
        table.distinct(),
        spark.sql("SELECT id, (SELECT max(key) FROM narrow) AS most FROM narrow"),
    ]
    assert [df for df in wide if not spark_job.may_shuffle(df)] == []
    seen: list[bool] = []
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load().repartition(3)
    query = stream.writeStream.trigger(once=True)
    query.foreachBatch(lambda df, _: seen.append(spark_job.may_shuffle(df))).start().awaitTermination(120)
    assert seen == [False], "its shuffle has run before the sink is called"
