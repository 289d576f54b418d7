"""What a row says arrives, read back by the plain SDK: queues, topics, sessions, schedules, lifetimes, properties."""

from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION
from pyspark.sql import SparkSession

from spark_sb_sink.errors import SchemaError, UnsupportedSparkError
from spark_sb_sink.events import BatchSent, Paired, Warned
from spark_sb_sink.failover import Health
from spark_sb_sink.sink import ServiceBusSink
from tests.conftest import await_that
from tests.paired.ground import CALM
from tests.sink import samples
from tests.sink.app import SinkApp
from tests.sink.support import SinkGround


class Everything:
    """A queue, a queue with sessions, a topic and scheduled messages, and what is sent there."""

    def __init__(self, ground: SinkGround) -> None:
        self.ground = ground
        self.queue, self.later = ground.entities(2)
        self.sessions = ground.entity(requires_session=True)
        self.topic = f"{ground.name}/topic"
        ground.primary.create_topic(self.topic)
        ground.primary.create_subscription(self.topic, "all")
        self.due = datetime.now(UTC).replace(microsecond=0) + timedelta(days=30)
        self.rows = [
            *(samples.row(self.queue, number) for number in range(12)),
            *(samples.row(self.sessions, number, session=True) for number in range(12)),
            *(samples.row(self.topic, number) for number in range(12)),
            *(samples.row(self.later, number, scheduled=self.due) for number in range(3)),
        ]

    def check(self) -> None:
        ground, sent = self.ground, {row["message_id"]: row for row in self.rows}
        found = ground.receive(self.queue, 12)
        found += ground.receive(self.topic, 12, subscription_name="all")
        for _ in range(3):
            found += ground.receive(self.sessions, 4, session_id=NEXT_AVAILABLE_SESSION)
        assert ground.primary.counts(self.later)["scheduled"] == 3
        found += ground.peek(self.later, 3)
        assert sorted(message.message_id for message in found) == sorted(sent)
        for message in found:
            samples.assert_as_sent(message, sent[message.message_id])


def test_every_field_arrives_as_it_was_in_local_mode(ground: SinkGround) -> None:
    everything = Everything(ground)
    df = ground.spark.createDataFrame(samples.table(everything.rows)).repartition(2)
    state = ground.sink(**CALM).write(df)
    assert state.rows == len(everything.rows)
    everything.check()


def test_every_field_arrives_as_it_was_on_two_executors(ground: SinkGround) -> None:
    everything = Everything(ground)
    with SinkApp(ground.folder, ground.plain_options(**CALM), samples.DDL, "local-cluster[2,1,1024]") as app:
        app.start()
        app.send(samples.table(everything.rows))
        everything.check()


def test_a_healthy_micro_batch_is_one_spark_job_and_writes_nothing_to_delta(ground: SinkGround) -> None:
    names = ground.entities(3)
    sink = ground.sink(state=str(ground.folder / "state"), **CALM)
    sink.write(ground.rows(names, 10))
    tracker = ground.spark.sparkContext.statusTracker()
    df = ground.rows(names, 10, tag="again-").localCheckpoint()  # so that no shuffle of the test's own is counted
    for group in ("with state", "without"):
        one = sink if group == "with state" else ground.sink(**CALM)
        one.write(df.limit(0))  # what comes before the first send is no part of a micro-batch
        ground.spark.sparkContext.setJobGroup(group, group)
        one.write(df)
        ground.spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
        await_that(lambda group=group: tracker.getJobIdsForGroup(group))
        assert len(tracker.getJobIdsForGroup(group)) == 1
    assert not (ground.folder / "state").exists()


def test_totals_and_states_can_be_asked_for(ground: SinkGround) -> None:
    names = ground.entities(2)
    sink = ground.sink(**CALM)
    sink.write(ground.rows(names, 5))
    sink.write(ground.rows(names[:1], 2, tag="more-"))
    state = sink.state()
    assert (state.batches, state.rows) == (2, 12)
    assert [(view.entity, view.counts.primary) for view in state.entities] == sorted(zip(names, (7, 5), strict=True))
    assert {view.health for view in state.entities} == {Health.HEALTHY}
    [paired] = ground.of(Paired)
    assert paired.backlog_queues == 2
    assert [event.rows for event in ground.of(BatchSent)] == [10, 2]


def test_a_schema_that_does_not_fit_fails_before_anything_is_sent_or_paired(ground: SinkGround) -> None:
    sink = ground.sink()
    df = ground.spark.sql("SELECT 1 AS body, 'x' AS entity, 'm' AS mesage_id, date'2026-01-01' AS to")
    with pytest.raises(SchemaError) as caught:
        sink.write(df)
    assert [problem.split()[0] for problem in caught.value.problems] == ["body", "mesage_id", "to"]
    assert ground.events == []


def test_the_option_entity_is_for_all_rows(ground: SinkGround) -> None:
    name = ground.entity()
    ground.sink(entity=name, **CALM).write(ground.spark.sql("SELECT 'm1' AS message_id, 'b' AS body"))
    assert ground.arrived(name) == {"m1": 1}


def test_speculative_execution_is_warned_of(ground: SinkGround) -> None:
    name = ground.entity()
    conf = {"spark.speculation": "true", "spark.test.partitions": "1"}
    with SinkApp(ground.folder, ground.plain_options(**CALM), samples.PLAIN_DDL, "local[1]", **conf) as app:
        app.start()
        app.send(samples.plain([(name, "m1")]))
        [warned] = app.of(Warned.__name__)
        assert "spark.speculation is on" in warned["text"]


def test_a_streaming_dataframe_is_not_for_write(ground: SinkGround, spark: SparkSession) -> None:
    with pytest.raises(UnsupportedSparkError, match="foreachBatch"):
        ground.sink().write(spark.readStream.format("rate").load())


def test_what_is_no_classic_dataframe_is_refused_with_the_reason(ground: SinkGround) -> None:
    with pytest.raises(UnsupportedSparkError, match="Spark Connect"):
        ground.sink()([], 0)  # type: ignore[arg-type]


def test_a_sink_is_made_from_a_file_a_dictionary_or_keywords(ground: SinkGround) -> None:
    given = ground.plain_options()
    file = ground.folder / "sink.toml"
    file.write_text(
        "\n".join(f'{key} = "{value}"' for key, value in given.items() if isinstance(value, str))
        + f'\nbacklog_queue_count = 2\n[secondary]\nconnection_string = "{ground.secondary.connection_string}"\n'
        + f'ca_file = "{ground.secondary.ca_file}"\n[source]\nformat = "rate"\n'
    )
    by_dictionary, by_keywords, by_file = ServiceBusSink(given), ServiceBusSink(**given), ServiceBusSink(file)
    assert by_dictionary.options == by_keywords.options == by_file.options
    assert ServiceBusSink(file, entity="orders").options.entity == "orders"
    assert ServiceBusSink(by_file.options, entity="orders").options.entity == "orders"
