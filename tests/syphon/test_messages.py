"""What arrives is what would have arrived without an outage; what cannot arrive is explained to an operator."""

import time

import pytest

from spark_sb_sink.amqp import (
    Described,
    Float,
    Long,
    Map,
    Short,
    Symbol,
    Timestamp,
    UInt,
    decode_message,
    encode_message,
    encode_value,
)
from spark_sb_sink.amqp.sections import APPLICATION_PROPERTIES, DATA, MESSAGE_ANNOTATIONS, section_prefix
from spark_sb_sink.broker.faults import Reject
from spark_sb_sink.envelope import wrap
from spark_sb_sink.failover import Health
from tests.syphon.field import Field, message

DATA_SECTION = section_prefix(DATA) + b"\xa0\x01x"
HOUR = 3_600_000


def now_ms() -> int:
    return int(time.time() * 1000)


def foreign(properties: dict[str, object]) -> bytes:
    return section_prefix(APPLICATION_PROPERTIES) + encode_value(properties) + DATA_SECTION


def properties(encoded: bytes) -> dict[str, object]:
    found = decode_message(encoded).application_properties
    return {str(key): value for key, value in (found.pairs if isinstance(found, Map) else dict(found or {}).items())}


def test_every_field_and_type_arrives_as_by_a_direct_send(field: Field) -> None:
    direct, home = field.entity(requires_session=False), field.entity(requires_session=False)
    drain = field.drain()
    types = {
        "long": Long(7),
        "uint": UInt(8),
        "short": Short(9),
        "float": Float(0.5),
        "symbol": Symbol("s"),
        "time": Timestamp(1_700_000_000_000),
        "text": "t",
    }
    sent = encode_message(
        b"body",
        message_id="m",
        session_id="s",
        correlation_id="c",
        subject="u",
        content_type="text/plain",
        reply_to="r",
        reply_to_session_id="rs",
        to="t",
        ttl_ms=HOUR,
        created_ms=now_ms(),
        application_properties=types,
    )
    field.primary_send(direct, [sent])
    field.fill([wrap(sent, home)])
    field.until_empty(drain)
    [straight], [moved] = field.arrived(direct), field.arrived(home)
    wanted, found = decode_message(straight), decode_message(moved)
    assert properties(moved) == properties(straight)
    assert found.ttl_ms == wanted.ttl_ms == HOUR
    assert [*found.properties[:8], *found.properties[10:]] == [*wanted.properties[:8], *wanted.properties[10:]]
    assert moved.endswith(b"\xa0\x04body")


def test_messages_that_have_nothing_but_their_path_do_not_hold_up_the_others(field: Field) -> None:
    entity = field.entity()
    drain = field.drain()
    field.fill([wrap(b"", entity), wrap(b"", entity), wrap(message("m"), entity)])
    field.until_empty(drain)
    assert [decode_message(each).message_id for each in field.arrived(entity)] == ["mm"]
    assert len(field.dead_letters()) == 2
    assert drain.factory.board.view(entity).health is Health.HEALTHY


def test_a_session_is_restored_for_an_entity_that_requires_one(field: Field) -> None:
    entity = field.entity(requires_session=True)
    drain = field.drain()
    field.fill([wrap(message(n, session_id=f"s{n % 3}"), entity) for n in range(30)])
    report = field.until_empty(drain)
    assert (report.moved, field.accepted(entity)) == (30, 30)


def test_a_scheduled_time_that_is_past_goes_out_at_once_and_one_ahead_is_kept(field: Field) -> None:
    entity = field.entity()
    drain = field.drain()
    past = message("past", scheduled_ms=now_ms() - HOUR)
    ahead = message("ahead", scheduled_ms=now_ms() + HOUR)
    field.fill([wrap(past, entity), wrap(ahead, entity)])
    field.until_empty(drain)
    counts = field.primary.counts(entity)
    assert (counts["active"], counts["scheduled"]) == (1, 1)


def test_time_in_the_backlog_is_deducted_and_what_has_none_left_is_dead_lettered(field: Field) -> None:
    entity = field.entity()
    drain = field.drain(ttl="deduct")
    field.fill([wrap(message("long", ttl_ms=HOUR, created_ms=now_ms()), entity)])
    field.fill([wrap(message("over", ttl_ms=1, created_ms=now_ms()), entity)])
    field.fill([wrap(message("none"), entity)])
    report = field.until_empty(drain)
    left = {str(decode_message(m).message_id): decode_message(m).ttl_ms for m in field.arrived(entity)}
    assert set(left) == {"mlong", "mnone"}
    assert left["mlong"] is not None
    assert 0 < left["mlong"] < HOUR
    assert (report.moved, report.total("dead_lettered")) == (2, 1)
    [dead] = field.dead_letters()
    assert "time to live" in str(properties(dead)["DeadLetterErrorDescription"])


def test_a_backlog_of_the_old_net_sdk_is_drained(field: Field) -> None:
    # Made by hand. Names of the properties and what they hold:
    #   https://learn.microsoft.com/azure/service-bus-messaging/service-bus-paired-namespaces
    # (it misprints the last one; this is the name that WindowsAzure.ServiceBus has for it, Microsoft.ServiceBus.dll).
    # A TimeSpan is the described type com.microsoft:timespan over a long of ticks, a DateTime a timestamp:
    #   https://learn.microsoft.com/azure/service-bus-messaging/service-bus-amqp-dotnet
    entity = field.entity()
    later = field.entity(requires_session=True)
    drain = field.drain()
    aliases = {
        "x-ms-sessionid": "s1",
        "x-ms-timetolive": Described(Symbol("com.microsoft:timespan"), Long(HOUR * 10_000)),
        "mine": Long(5),
    }
    ahead = Timestamp(now_ms() + HOUR)
    past = Timestamp(now_ms() - HOUR)
    field.fill([foreign({**aliases, "x-ms-path": entity, "x-ms-scheduledenqueuetimeutc": past})])
    field.fill([foreign({**aliases, "x-ms-path": later, "x-ms-scheduledenqueuetimeutc": ahead})])
    report = field.until_empty(drain)
    assert report.moved == 2
    assert field.primary.counts(later)["scheduled"] == 1
    [moved] = field.arrived(entity)
    found = decode_message(moved)
    assert found.ttl_ms == HOUR
    assert found.session_id == "s1"
    assert properties(moved) == {"mine": Long(5)}
    assert isinstance(properties(moved)["mine"], Long)
    assert b"x-ms-" not in moved
    assert moved.endswith(DATA_SECTION)


UNMOVABLE = {
    "no path": (foreign({"a": 1}), "SyphonCannotRestore", "x-ms-path"),
    "path of a wrong type": (foreign({"x-ms-path": Long(1)}), "SyphonCannotRestore", "x-ms-path"),
    "a ttl of a wrong type": (foreign({"x-ms-path": "e", "x-ms-timetolive": "1"}), "SyphonCannotRestore", "timetolive"),
    "a session of a wrong type": (foreign({"x-ms-path": "e", "x-ms-sessionid": 1}), "SyphonCannotRestore", "sessionid"),
}


@pytest.mark.parametrize("case", UNMOVABLE)
def test_what_can_never_be_moved_is_dead_lettered_with_a_reason(field: Field, case: str) -> None:
    entity = field.entity()
    drain = field.drain()
    encoded, reason, told = UNMOVABLE[case]
    field.fill([encoded])
    ids = field.backlog_for(entity, 5)
    report = field.until_empty(drain)
    assert (report.moved, report.total("dead_lettered")) == (5, 1)
    assert field.taken(entity) == dict.fromkeys(ids, 1)
    [dead] = field.dead_letters()
    assert properties(dead)["DeadLetterReason"] == reason
    assert told in str(properties(dead)["DeadLetterErrorDescription"])


def test_what_the_entity_refuses_is_found_in_its_batch_and_dead_lettered(field: Field) -> None:
    entity = field.entity(requires_session=True)
    drain = field.drain()
    field.fill([wrap(message(n, **({} if n == 17 else {"session_id": "s"})), entity) for n in range(40)])
    report = field.until_empty(drain)
    assert (report.moved, report.total("dead_lettered")) == (39, 1)
    [dead] = field.dead_letters()
    assert decode_message(dead).message_id == "m17"
    assert properties(dead)["DeadLetterReason"] == "SyphonRefusedByEntity"
    assert entity in str(properties(dead)["DeadLetterErrorDescription"])


def test_one_that_is_refused_alone_is_dead_lettered(field: Field) -> None:
    entity = field.entity()
    drain = field.drain()
    field.primary.hang(Reject("amqp:not-allowed", "not this one", count=1), entity)
    field.fill([wrap(message("bad"), entity)])
    assert field.until_empty(drain).total("dead_lettered") == 1
    [dead] = field.dead_letters()
    assert "not this one" in str(properties(dead)["DeadLetterErrorDescription"])


def test_annotations_of_the_sender_survive_and_the_aliases_are_gone(field: Field) -> None:
    entity = field.entity()
    drain = field.drain()
    own = section_prefix(MESSAGE_ANNOTATIONS) + encode_value(Map(((Symbol("x-mine"), Long(1)),)))
    field.fill([wrap(own + message("a", application_properties={"p": 1}), entity)])
    field.until_empty(drain)
    [moved] = field.arrived(entity)
    assert b"x-mine" in moved
    assert b"x-ms-" not in moved
    assert set(properties(moved)) == {"p"}
