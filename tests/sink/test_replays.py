"""Micro-batches that run again: what Delta keeps of them, and which ids their messages have."""

import threading
from collections import Counter
from collections.abc import Callable

import pytest
from pyspark import InheritableThread
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from spark_sb_sink.broker.faults import Reject
from spark_sb_sink.delta_state import DeltaState, address_of, is_path
from spark_sb_sink.errors import StateError, UnsupportedSparkError
from spark_sb_sink.events import BatchSent, BatchSkipped
from spark_sb_sink.sink import ServiceBusSink
from tests.paired.ground import CALM
from tests.sink import samples
from tests.sink.support import FileStream, SinkGround


class FailsAfter:
    """A foreachBatch function that sends, and then fails before Spark can commit: the next start replays."""

    def __init__(self, sink: Callable[[DataFrame, int], None], times: int = 1) -> None:
        self.sink, self.left = sink, times

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        self.sink(df, batch_id)
        if self.left:
            self.left -= 1
            raise RuntimeError("the driver died after the send")


def fail_once(stream: FileStream) -> None:
    stream.start()
    with pytest.raises(StreamingQueryException, match="the driver died after the send"):
        stream.settle()


def table(ground: SinkGround, name: str) -> DataFrame:
    return ground.spark.read.format("delta").load(str(ground.folder / "state" / name))


def test_a_replay_whose_overflow_differs_loses_nothing_and_doubles_nothing(ground: SinkGround) -> None:
    one, other = ground.entities(2)
    options = {"failover_interval": "0s", "ping_interval": "30m", "state": str(ground.folder / "state")}
    stream = ground.stream(ground.sink(**options), samples.PLAIN_DDL)
    stream.put(ground.rows([one, other], 30))
    ground.primary.hang(Reject(), one)
    for number in range(2):
        ground.secondary.disable(ground.queue(number))
    stream.wrap = FailsAfter(stream.sink)
    fail_once(stream)
    assert {row.entity for row in table(ground, "overflow").collect()} == {one}
    # On the replay the other one is out. A sink of other options has a board of its own, and no memory of the first.
    ground.primary.undo()
    ground.primary.hang(Reject(), other)
    for step, interval in enumerate(("1ms", "2ms")):
        stream.wrap = FailsAfter(ground.sink(**{**options, "failover_interval": interval}))
        fail_once(stream)
        rows = table(ground, "overflow").collect()
        assert Counter(row.entity for row in rows) == {one: 30, other: 30}, f"after replay {step + 1}"
        assert len({row.message_id for row in rows}) == 60
    assert ground.arrived(one).keys() == {f"{one}-{n}" for n in range(30)}


def test_identical_rows_keep_their_number_in_overflow(ground: SinkGround) -> None:
    entity = ground.entity()
    options = {"failover_interval": "0s", "ping_interval": "30m", "state": str(ground.folder / "state")}
    stream = ground.stream(ground.sink(**options), samples.PLAIN_DDL)
    stream.put(ground.spark.sql(f"SELECT '{entity}' AS entity, 'same' AS message_id, 'b' AS body FROM range(7)"))
    ground.primary.hang(Reject(), entity)
    for number in range(2):
        ground.secondary.disable(ground.queue(number))
    stream.wrap = FailsAfter(stream.sink, times=2)
    for _ in range(2):
        fail_once(stream)
        assert table(ground, "overflow").count() == 7


def test_what_one_id_is_given_to_twice_is_kept_twice(ground: SinkGround) -> None:
    entity = ground.entity()
    options = {"failover_interval": "0s", "ping_interval": "30m", "state": str(ground.folder / "state")}
    sink = ground.sink(**options)
    df = ground.spark.sql(
        f"SELECT '{entity}' AS entity, 'same' AS message_id, concat('body ', id) AS body FROM range(3)"
    )
    ground.primary.hang(Reject(), entity)
    for number in range(2):
        ground.secondary.disable(ground.queue(number))
    for _ in range(2):
        sink.write(df, run_id="run")
    assert sorted(bytes(row.body) for row in table(ground, "overflow").collect()) == [b"body 0", b"body 1", b"body 2"]


def test_a_replayed_batch_gives_rows_without_an_id_the_same_ids(ground: SinkGround) -> None:
    entity = ground.entity(requires_duplicate_detection=True)
    stream = ground.stream(ground.sink(**CALM), "entity string, body string")
    stream.put(ground.spark.sql(f"SELECT '{entity}' AS entity, concat('body ', id % 40) AS body FROM range(60)"))
    stream.wrap = FailsAfter(stream.sink)
    fail_once(stream)
    first = ground.primary.tally(entity)
    assert len(first) == 60
    stream.start()
    stream.settle()
    assert ground.primary.counts(entity)["active"] == 60
    assert ground.primary.tally(entity).keys() == first.keys()


def test_rows_that_were_shuffled_have_the_same_ids_on_a_replay_whatever_adaptive_execution_would_do(
    ground: SinkGround,
) -> None:
    entity = ground.entity()
    stream = ground.stream(ground.sink(**CALM), "key string, body string")
    stream.put(ground.spark.sql("SELECT concat('k', id % 50) AS key, concat('body ', id) AS body FROM range(200)"))
    key = "spark.sql.adaptive.coalescePartitions.enabled"
    found: list[set[str]] = []

    class Shuffled:
        """Rows of a shuffle. With its partitions put together, they would be in others, and have other ids."""

        def __init__(self, coalesce: str) -> None:
            self.coalesce = coalesce

        def __call__(self, df: DataFrame, batch_id: int) -> None:
            df.sparkSession.conf.set(key, self.coalesce)
            rows = df.groupBy("key").count().selectExpr(f"'{entity}' AS entity", "concat(key, ' ', count) AS body")
            assert self.coalesce == "false" or rows.rdd.getNumPartitions() == 1, "Spark would not put them together"
            stream.sink(rows, batch_id)
            assert df.sparkSession.conf.get(key) == self.coalesce

    for coalesce in ("true", "false"):
        stream.wrap = FailsAfter(Shuffled(coalesce))
        fail_once(stream)
        found.append(set(ground.primary.tally(entity)))
    assert len(found[0]) == 50
    assert found[1] == found[0]


def test_with_a_ledger_of_every_batch_a_finished_one_is_not_sent_again(ground: SinkGround) -> None:
    entity = ground.entity()
    state = str(ground.folder / "state")
    stream = ground.stream(ground.sink(state=state, ledger="every-batch", **CALM), samples.PLAIN_DDL)
    stream.put(ground.rows([entity], 10))
    stream.wrap = FailsAfter(stream.sink)
    fail_once(stream)
    assert [row.finished for row in table(ground, "ledger").collect()] == [True]
    # A new driver, and then the same one, which has seen this batch.
    stream.sink = ground.sink(state=state, ledger="every-batch", **CALM)
    for skipped in (1, 2):
        stream.wrap = FailsAfter(stream.sink)
        fail_once(stream)
        assert len(ground.of(BatchSkipped)) == skipped
        assert ground.arrived(entity) == {f"{entity}-{n}": 1 for n in range(10)}
    stream.wrap = None
    stream.start()
    stream.send(ground.rows([entity], 5, tag="next-"))
    assert len(ground.of(BatchSent)) == 2
    assert ground.arrived(entity).total() == 15


def test_each_call_in_a_micro_batch_is_sent_and_each_is_skipped_in_a_replay(ground: SinkGround) -> None:
    entity = ground.entity(requires_duplicate_detection=True)
    options = {"state": str(ground.folder / "state"), "ledger": "every-batch", **CALM}
    stream = ground.stream(ground.sink(**options), "entity string, body string")

    def batch_of(number: int) -> DataFrame:
        return ground.spark.sql(f"SELECT '{entity}' AS entity, concat('body {number} ', id) AS body FROM range(5)")

    def calls_of(one: ServiceBusSink, other: ServiceBusSink) -> Callable[[DataFrame, int], None]:
        def send(df: DataFrame, batch_id: int) -> None:
            one(df, batch_id)
            one(df, batch_id)  # the same rows: they are meant to be sent twice
            other(df.selectExpr("entity", "concat('other ', body) AS body"), batch_id)

        return send

    stream.put(batch_of(0))
    stream.wrap = FailsAfter(calls_of(stream.sink, ground.sink(**options)))
    fail_once(stream)
    assert ground.primary.counts(entity)["active"] == 15
    assert sorted(row.call for row in table(ground, "ledger").collect()) == [0, 1, 2]
    stream.wrap = calls_of(ground.sink(**options), ground.sink(**options))  # a new driver
    stream.start()
    stream.settle()
    assert len(ground.of(BatchSkipped)) == 3
    assert ground.arrived(entity).total() == 15
    stream.send(batch_of(1))
    assert ground.primary.counts(entity)["active"] == 30
    assert len(ground.of(BatchSkipped)) == 3


def test_each_call_in_a_micro_batch_has_its_rows_in_overflow_and_the_same_ids_in_a_replay(ground: SinkGround) -> None:
    entity = ground.entity()
    options = {"failover_interval": "0s", "ping_interval": "30m", "state": str(ground.folder / "state")}
    sink = ground.sink(**options)
    stream = ground.stream(sink, samples.PLAIN_DDL)
    stream.put(ground.rows([entity], 7))
    ground.primary.hang(Reject(), entity)
    for number in range(2):
        ground.secondary.disable(ground.queue(number))

    def send(df: DataFrame, batch_id: int) -> None:
        for columns in (["*"], ["*"], ["entity", "body"], ["entity", "body"]):
            sink(df.select(*columns), batch_id)

    stream.wrap = FailsAfter(send, times=2)
    found = []
    for _ in range(2):
        fail_once(stream)
        found.append(Counter((row.call, row.message_id) for row in table(ground, "overflow").collect()))
    assert Counter(call for call, _ in found[0]) == {0: 7, 1: 7, 2: 7, 3: 7}
    assert len({message_id for call, message_id in found[0] if call > 1}) == 14, "two messages share an id"
    assert found[1] == found[0]


def test_a_call_that_spark_does_not_know_of_or_that_is_made_beside_another_is_refused(ground: SinkGround) -> None:
    entity = ground.entity()
    sink = ground.sink(**CALM)
    stream = ground.stream(sink, samples.PLAIN_DDL)
    told: list[str] = []

    def send(df: DataFrame, batch_id: int) -> None:
        def call() -> None:
            try:
                sink(df, batch_id)
            except UnsupportedSparkError as error:
                told.append(str(error))

        for kind in (threading.Thread, InheritableThread):
            sink(df, batch_id)
            thread = kind(target=call)
            thread.start()
            thread.join()

    stream.wrap = send
    stream.start()
    stream.send(ground.rows([entity], 1))
    assert ["InheritableThread" in told[0], "in one thread, one after the other" in told[1]] == [True, True]
    with pytest.raises(UnsupportedSparkError, match=r"sink\.write"):
        sink(ground.rows([entity], 1), 0)
    assert ground.arrived(entity) == {f"{entity}-0": 2}


def test_a_write_tried_again_under_the_same_run_id_has_the_same_ids(ground: SinkGround) -> None:
    entity = ground.entity()
    sink = ground.sink(**CALM)
    df = ground.spark.sql(f"SELECT '{entity}' AS entity, concat('body ', id) AS body FROM range(10)").repartition(2)
    sink.write(df, run_id="monday")
    sink.write(df, run_id="monday")
    assert set(ground.arrived(entity).values()) == {2}
    sink.write(df)
    assert len(ground.arrived(entity)) == 20


def test_state_that_delta_cannot_use_is_an_error_before_the_first_send(ground: SinkGround) -> None:
    entity = ground.entity()
    sink = ground.sink(state="no_such_catalog.no_such_schema.sb", **CALM)
    with pytest.raises(StateError, match="no_such_catalog"):
        sink.write(ground.rows([entity], 1))
    assert ground.arrived(entity) == {}


def test_state_that_could_be_read_but_not_made_is_an_error_before_the_first_send(
    ground: SinkGround, spark: SparkSession
) -> None:
    entity = ground.entity()
    bare = spark.newSession()
    bare.conf.unset("spark.sql.catalog.spark_catalog")  # Delta's jar is there, its two settings are not
    rows = bare.createDataFrame([(entity, "b")], "entity string, body string")
    for state in (str(ground.folder / "state"), "sb", "default.sb"):
        with pytest.raises(StateError, match="spark_catalog is not set"):
            ground.sink(state=state, **CALM).write(rows)
    assert ground.arrived(entity) == {}
    assert not (ground.folder / "state").exists()


def test_state_is_a_path_or_a_prefix_of_tables(spark: SparkSession) -> None:
    assert [is_path(state) for state in ("/mnt/sb", "abfss://c@a/x", "dbfs:/x", "./sb", "main.ops.sb", "sb_")] == [
        True,
        True,
        True,
        True,
        False,
        False,
    ]
    assert address_of("/mnt/sb/", "ledger") == "/mnt/sb/ledger"
    assert [address_of(state, "ledger") for state in ("ops.sb", "ops.", "sb_")] == [
        "ops.sb_ledger",
        "ops.ledger",
        "sb_ledger",
    ]
    assert not DeltaState(spark, "/nowhere/at/all").exists("ledger")
