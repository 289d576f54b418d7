"""What a row says arrives, read back by the plain SDK: queues, topics, sessions, schedules, lifetimes, properties."""

from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION

from spark_sb_sink.errors import SchemaError
from spark_sb_sink.events import BatchSent, Paired
from spark_sb_sink.failover import Health
from spark_sb_sink.sink import ServiceBusSink
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


def test_columns_of_every_type_that_the_contract_takes_come_through_spark(ground: SinkGround) -> None:
    name = ground.entity()
    types = {
        "a": "interval '1 01:00:00.5' day to second AS time_to_live, map('n', 1Y) AS application_properties",
        "b": "3600.5 AS time_to_live, named_struct('n', 7S, 'f', float(0.5), 'no', NULL) AS application_properties",
        "c": "float(3600.5) AS time_to_live, map('t', timestamp_ntz'2026-03-01 12:00:00') AS application_properties",
        "d": "interval '3' minute AS time_to_live, NULL AS application_properties, char(65) AS subject",
        "e": "NULL AS time_to_live, NULL AS session_id, timestamp_ntz'2020-01-01 00:00:00' AS scheduled_enqueue_time",
        "f": "'key' AS partition_key, map('b', X'00ff') AS application_properties, map_keys(map('x', 1))[0] AS subject",
    }
    sink = ground.sink(entity=name, **CALM)
    for message, columns in types.items():
        sink.write(ground.spark.sql(f"SELECT '{message}' AS message_id, 'ü' AS body, {columns}"))
    found = {message.message_id: message for message in ground.receive(name, len(types))}
    assert {b"".join(message.body) for message in found.values()} == {"ü".encode()}
    lifetimes = [found[message].time_to_live for message in "abcde"]
    seconds = [None if ttl is None else ttl.total_seconds() for ttl in lifetimes]
    assert seconds == [86400 + 3600 + 0.5, 3600.5, 3600.5, 180, None]
    properties = [found[message].application_properties for message in "abcdef"]
    noon = int(datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp() * 1000)
    assert properties == [{b"n": 1}, {b"n": 7, b"f": 0.5}, {b"t": noon}, None, None, {b"b": b"\0\xff"}]
    assert (found["d"].subject, found["f"].subject, found["f"].partition_key) == ("A", "x", "key")


def test_the_option_entity_is_for_all_rows(ground: SinkGround) -> None:
    name = ground.entity()
    ground.sink(entity=name, **CALM).write(ground.spark.sql("SELECT 'm1' AS message_id, 'b' AS body"))
    assert ground.arrived(name) == {"m1": 1}


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
