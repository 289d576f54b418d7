"""What the service takes from a sender, and what it refuses."""

import datetime
import uuid
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageState
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType
from azure.servicebus.exceptions import (
    MessageNotFoundError,
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
)

from spark_sb_sink.broker import BrokerProcess, FullQuota, NamespaceHandle
from tests.conftest import await_that


def receive(client: Any, path: str, count: int = 1, wait: float = 10, **options: Any) -> list[Any]:
    """Receive and complete exactly so many."""
    with client.get_queue_receiver(path, **options) as receiver:
        found: list[Any] = []
        while len(found) < count:
            messages = receiver.receive_messages(count - len(found), max_wait_time=wait)
            assert messages, f"{len(found)} of {count} messages arrived"
            for message in messages:
                receiver.complete_message(message)
            found += messages
        return found


def send(client: Any, path: str, *messages: Any) -> None:
    with client.get_queue_sender(path) as sender:
        for message in messages:
            sender.send_messages(message)


def test_a_message_arrives_with_every_field_as_it_was_sent(client: Any, queue: str) -> None:
    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=datetime.UTC)
    sent = ServiceBusMessage(
        b"body \x00\xff",
        message_id="id-1",
        session_id="s-1",
        partition_key="s-1",
        correlation_id="c-1",
        subject="subject",
        content_type="text/plain",
        reply_to="answers",
        reply_to_session_id="answers-1",
        to="there",
        time_to_live=datetime.timedelta(minutes=5),
        application_properties={
            "text": "ü",
            "number": 7,
            "long": {"TYPE": "LONG", "VALUE": 2**40},
            "yes": True,
            "half": 0.5,
            "id": uuid.UUID(int=5),
            "when": moment,
        },
    )
    send(client, queue, sent)
    [got] = receive(client, queue)
    assert b"".join(got.body) == b"body \x00\xff"
    assert (got.message_id, got.session_id, got.partition_key) == ("id-1", "s-1", "s-1")
    assert (got.correlation_id, got.subject, got.content_type) == ("c-1", "subject", "text/plain")
    assert (got.reply_to, got.reply_to_session_id, got.to) == ("answers", "answers-1", "there")
    assert got.time_to_live == datetime.timedelta(minutes=5)
    assert got.application_properties == {
        b"text": "ü".encode(),
        b"number": 7,
        b"long": 2**40,
        b"yes": True,
        b"half": 0.5,
        b"id": uuid.UUID(int=5),
        b"when": int(moment.timestamp() * 1000),
    }
    assert got.sequence_number == 1
    assert got.delivery_count == 0
    assert got.state == ServiceBusMessageState.ACTIVE
    assert abs((got.enqueued_time_utc - datetime.datetime.now(datetime.UTC)).total_seconds()) < 60


@pytest.mark.parametrize(
    ("kind", "body"),
    [("value_body", {"a": 1}), ("sequence_body", [[1, 2], [b"x"]]), ("data_body", [b"one", b"two"])],
)
def test_all_three_kinds_of_body_pass(client: Any, queue: str, kind: str, body: Any) -> None:
    send(client, queue, AmqpAnnotatedMessage(**{kind: body}))
    [got] = receive(client, queue)
    assert got.body_type == AmqpMessageBodyType[kind.removesuffix("_body").upper()]
    found = list(got.body) if kind != "value_body" else got.body
    assert found == ({b"a": 1} if kind == "value_body" else body)


def test_the_messages_of_a_batch_arrive_one_by_one_and_in_order(client: Any, queue: str) -> None:
    with client.get_queue_sender(queue) as sender:
        batch = sender.create_message_batch()
        for number in range(1000):
            batch.add_message(ServiceBusMessage(str(number), message_id=f"m{number}"))
        sender.send_messages(batch)
    assert [str(message) for message in receive(client, queue, 1000)] == [str(number) for number in range(1000)]


def test_a_message_whose_body_is_itself_a_message_is_not_taken_for_a_batch(client: Any, queue: str) -> None:
    inner = b"\x00\x53\x75\xa0\x05inner"
    send(client, queue, ServiceBusMessage(inner, message_id="outer"))
    [got] = receive(client, queue)
    assert (b"".join(got.body), got.message_id) == (inner, "outer")


def test_a_batch_of_more_than_one_frame_arrives_whole(client: Any, queue: str) -> None:
    send(client, queue, [ServiceBusMessage(bytes([n]) * 3000) for n in range(70)])
    assert [b"".join(m.body)[:1] for m in receive(client, queue, 70)] == [bytes([n]) for n in range(70)]


def test_names_may_have_slashes_and_any_case(client: Any, namespace: NamespaceHandle, name: str) -> None:
    namespace.create_queue(f"{name}/x-servicebus-transfer/0")
    send(client, f"{name}/X-ServiceBus-Transfer/0", ServiceBusMessage("there"))
    assert str(receive(client, f"{name}/x-servicebus-transfer/0")[0]) == "there"


def test_an_entity_that_is_not_there_is_not_found(client: Any, namespace: NamespaceHandle, name: str) -> None:
    with pytest.raises(MessagingEntityNotFoundError):
        send(client, name, ServiceBusMessage("x"))
    with pytest.raises(MessagingEntityNotFoundError):
        receive(client, name)


# Limits


def test_the_link_tells_the_limits_of_the_standard_tier(client: Any, queue: str) -> None:
    with client.get_queue_sender(queue) as sender:
        assert sender.create_message_batch().max_size_in_bytes == 256 * 1024
        link = sender._handler._link
        assert link.remote_max_message_size == 256 * 1024
        assert link.remote_properties == {b"com.microsoft:max-message-batch-size": 256 * 1024}


def test_a_message_above_256_kb_is_refused_and_one_just_below_is_taken(client: Any, queue: str) -> None:
    with pytest.raises(MessageSizeExceededError):
        send(client, queue, ServiceBusMessage(b"x" * (256 * 1024)))
    send(client, queue, ServiceBusMessage(b"y" * (256 * 1024 - 200)))
    assert len(b"".join(receive(client, queue)[0].body)) == 256 * 1024 - 200


def test_a_transfer_that_the_client_did_not_check_is_refused_by_the_broker(client: Any, queue: str) -> None:
    with client.get_queue_sender(queue) as sender:
        sender.create_message_batch()
        sender._handler._link.remote_max_message_size = None  # the client's own check, switched off
        with pytest.raises(MessageSizeExceededError) as caught:
            sender.send_messages(ServiceBusMessage(b"x" * (256 * 1024 + 1)))
    assert "exceeds the limit" in str(caught.value)


def test_the_premium_tier_takes_a_megabyte_and_an_entity_may_take_more(open_client: Any) -> None:
    with BrokerProcess("big", tier="premium") as broker:
        namespace = broker["big"]
        namespace.create_queue("q")
        namespace.create_queue("large", max_message_kb=2048)
        client = open_client(namespace.connection_string)
        with client.get_queue_sender("q") as sender:
            assert sender.create_message_batch().max_size_in_bytes == 1024 * 1024
            sender.send_messages(ServiceBusMessage(b"x" * 1_000_000))
            with pytest.raises(MessageSizeExceededError):
                sender.send_messages(ServiceBusMessage(b"x" * 1_100_000))
        send(client, "large", ServiceBusMessage(b"z" * 2_000_000))
        assert len(b"".join(receive(client, "large")[0].body)) == 2_000_000
        assert len(b"".join(receive(client, "q")[0].body)) == 1_000_000


def test_a_batch_of_more_than_4500_messages_is_refused_whole(
    client: Any, namespace: NamespaceHandle, queue: str
) -> None:
    with client.get_queue_sender(queue) as sender:
        batch = sender.create_message_batch()
        for _ in range(4501):
            batch._message[5].append(b"\x00\x53\x75\xa0\x01x")  # smaller than any that the SDK would make
        batch._count = 4501
        with pytest.raises(ServiceBusError, match="4501 messages"):
            sender.send_messages(batch)
    assert namespace.counts(queue)["active"] == 0


def test_a_full_entity_refuses_messages_but_takes_pings(client: Any, namespace: NamespaceHandle, queue: str) -> None:
    with namespace.fault(FullQuota(), queue):
        with pytest.raises(ServiceBusQuotaExceededError):
            send(client, queue, ServiceBusMessage("x"))
        send(client, queue, ServiceBusMessage(b"", content_type="application/vnd.ms-servicebus-ping"))
    assert namespace.counts(queue)["active"] == 0


# Duplicates, keys, sessions


def test_duplicates_are_dropped_within_the_window_and_taken_after_it(open_client: Any) -> None:
    with BrokerProcess("ns") as broker:
        namespace = broker["ns"]
        namespace.create_queue("q", requires_duplicate_detection=True, duplicate_window=600)
        client = open_client(namespace.connection_string)
        twice = [ServiceBusMessage("a", message_id="1"), ServiceBusMessage("b", message_id="1")]
        send(client, "q", *twice, ServiceBusMessage("c", message_id="2"))
        assert [str(message) for message in receive(client, "q", 2)] == ["a", "c"]
        assert [entry.what for entry in namespace.journal("1")] == ["accepted", "duplicate", "delivered", "completed"]
        namespace.advance_clock(500)
        send(client, "q", ServiceBusMessage("d", message_id="1"))
        assert namespace.counts("q")["active"] == 0
        namespace.advance_clock(101)
        send(client, "q", ServiceBusMessage("e", message_id="1"))
        assert [str(message) for message in receive(client, "q")] == ["e"]


def test_a_partition_key_other_than_the_session_id_is_refused(
    client: Any, namespace: NamespaceHandle, queue: str
) -> None:
    message = ServiceBusMessage("x", session_id="s")
    message._raw_amqp_message.annotations = {b"x-opt-partition-key": "other"}  # the SDK's own check is passed by
    with pytest.raises(ServiceBusError, match="PartitionKey") as caught:
        send(client, queue, message)
    assert caught.value._condition == "com.microsoft:argument-error"
    assert namespace.counts(queue)["active"] == 0


def test_a_partitioned_entity_refuses_a_batch_of_mixed_keys(client: Any, namespace: NamespaceHandle, name: str) -> None:
    namespace.create_queue(name, partitioned=True)
    mixed = [ServiceBusMessage("1", partition_key="a"), ServiceBusMessage("2", partition_key="b")]
    with pytest.raises(ServiceBusError, match="same session id or partition key"):
        send(client, name, mixed)
    send(client, name, [ServiceBusMessage("3", partition_key="a"), ServiceBusMessage("4", partition_key="a")], mixed[1])
    found = receive(client, name, 3)
    assert sorted(str(message) for message in found) == ["2", "3", "4"]
    assert len({message.sequence_number >> 48 for message in found}) == 2


def test_an_entity_with_sessions_refuses_a_message_without_one(
    client: Any, namespace: NamespaceHandle, name: str
) -> None:
    namespace.create_queue(name, requires_session=True)
    with pytest.raises(ServiceBusError, match="SessionId"):
        send(client, name, ServiceBusMessage("x"))


# Time


def test_a_message_expires_and_is_dead_lettered_where_the_entity_says_so(open_client: Any) -> None:
    with BrokerProcess("ns") as broker:
        namespace = broker["ns"]
        namespace.create_queue("keeps", dead_letter_on_expiration=True)
        namespace.create_queue("drops")
        namespace.create_queue("short", default_ttl=10)
        client = open_client(namespace.connection_string)
        for queue in ("keeps", "drops", "short"):
            message = ServiceBusMessage(queue, message_id=queue, time_to_live=datetime.timedelta(seconds=60))
            send(client, queue, message)
        namespace.advance_clock(11)
        await_that(lambda: namespace.counts("short")["active"] == 0)
        assert namespace.counts("keeps")["active"] == 1
        namespace.advance_clock(50)
        await_that(lambda: namespace.counts("keeps/$DeadLetterQueue")["active"] == 1)
        [dead] = receive(client, "keeps", sub_queue="deadletter")
        assert dead.dead_letter_reason == "TTLExpiredException"
        assert dead.dead_letter_source == "keeps"
        assert namespace.counts("drops")["active"] == namespace.counts("drops/$DeadLetterQueue")["active"] == 0
        assert [entry.what for entry in namespace.journal("drops")] == ["accepted", "expired"]


def test_scheduled_messages_come_when_their_time_has_come(open_client: Any) -> None:
    with BrokerProcess("ns") as broker:
        namespace = broker["ns"]
        namespace.create_queue("q")
        client = open_client(namespace.connection_string)
        at = datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=10)
        send(client, "q", ServiceBusMessage("by property", scheduled_enqueue_time_utc=at))
        with client.get_queue_sender("q") as sender:
            numbers = sender.schedule_messages([ServiceBusMessage("by call"), ServiceBusMessage("cancelled")], at)
            sender.cancel_scheduled_messages(numbers[1])
            with pytest.raises(MessageNotFoundError):
                sender.cancel_scheduled_messages(numbers[1])
        assert namespace.counts("q") == {"active": 0, "deferred": 0, "scheduled": 2, "locked": 0}
        with client.get_queue_receiver("q") as receiver:
            peeked = receiver.peek_messages(10)
            assert [message.state for message in peeked] == [ServiceBusMessageState.SCHEDULED] * 2
            assert receiver.receive_messages(1, max_wait_time=0.5) == []
        namespace.advance_clock(601)
        found = receive(client, "q", 2)
        assert [str(message) for message in found] == ["by property", "by call"]
        assert found[0].sequence_number > peeked[1].sequence_number
        assert found[0].enqueued_sequence_number == peeked[0].sequence_number


def test_the_time_to_live_of_a_scheduled_message_starts_at_its_time(open_client: Any) -> None:
    with BrokerProcess("ns") as broker:
        namespace = broker["ns"]
        namespace.create_queue("q")
        client = open_client(namespace.connection_string)
        at = datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=10)
        ttl = datetime.timedelta(minutes=1)
        send(client, "q", ServiceBusMessage("x", scheduled_enqueue_time_utc=at, time_to_live=ttl))
        namespace.advance_clock(605)
        assert str(receive(client, "q")[0]) == "x"


# Pings


def test_a_ping_is_accepted_billed_and_never_delivered_unless_switched(
    client: Any, namespace: NamespaceHandle, queue: str
) -> None:
    def ping() -> ServiceBusMessage:
        return ServiceBusMessage(b"", content_type="application/vnd.ms-servicebus-ping", session_id=str(uuid.uuid4()))

    send(client, queue, ping(), ServiceBusMessage("real"))
    assert [str(message) for message in receive(client, queue)] == ["real"]
    assert namespace.counters(queue)["pings"] == 1
    assert namespace.counters(queue)["sends"] == 1
    namespace.deliver_pings(True)
    try:
        send(client, queue, ping())
        assert receive(client, queue)[0].content_type == "application/vnd.ms-servicebus-ping"
    finally:
        namespace.deliver_pings(False)
    assert namespace.counters(queue)["pings"] == 1
