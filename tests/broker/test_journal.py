"""The books: what the journal tells of a message, in order, and what the counters bill for it."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus.exceptions import (
    MessageLockLostError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)

from spark_sb_sink.broker import (
    BrokerProcess,
    Busy,
    ControlError,
    FullQuota,
    LoseAck,
    NamespaceHandle,
    Reject,
)
from spark_sb_sink.broker.journal import Entry, Happened, Journal, billed
from tests.broker.faulty import message, quick
from tests.conftest import await_that

one_sdk = pytest.mark.parametrize("open_client", ["aio"], indirect=True)
"""For what the broker writes in its books whichever SDK sent it."""
PING = "application/vnd.ms-servicebus-ping"


@pytest.fixture(scope="module")
def clocked() -> Iterator[NamespaceHandle]:
    """A namespace whose clock and journal a test may change for all."""
    with BrokerProcess("books") as running:
        yield running["books"]
        assert "Traceback" not in running.errors(), running.errors()


def story(namespace: NamespaceHandle, message_id: str) -> list[str]:
    return [f"{entry.what} {entry.detail}".strip() for entry in namespace.journal(message_id)]


def billing(namespace: NamespaceHandle, entity: str) -> dict[str, int]:
    counters = namespace.counters(entity)
    wanted = ("sends", "receives", "empty_receives", "pings", "management")
    assert counters["operations"] == sum(counters[name] for name in wanted)
    return {name: counters[name] for name in wanted if counters[name]}


def take(receiver: Any, count: int = 1) -> list[Any]:
    found: list[Any] = []
    while len(found) < count:
        found += receiver.receive_messages(count - len(found), max_wait_time=20)
    return found


# The journal


def test_a_message_is_followed_from_its_acceptance_to_its_completion(
    client: Any, namespace: NamespaceHandle, queue: str
) -> None:
    with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
        sender.send_messages(message(f"{queue}-1"))
        receiver.abandon_message(take(receiver)[0])
        receiver.complete_message(take(receiver)[0])
    assert story(namespace, f"{queue}-1") == ["accepted", "delivered", "abandoned", "delivered", "completed"]
    entries = namespace.journal(f"{queue}-1")
    assert {entry.entity for entry in entries} == {queue}
    assert [entry.at for entry in entries] == sorted(entry.at for entry in entries)


@one_sdk
def test_a_duplicate_is_told_and_not_stored(client: Any, namespace: NamespaceHandle, name: str) -> None:
    namespace.create_queue(name, requires_duplicate_detection=True)
    with client.get_queue_sender(name) as sender:
        sender.send_messages([message(f"{name}-1"), message(f"{name}-1")])
    assert story(namespace, f"{name}-1") == ["accepted", "duplicate"]
    assert namespace.counters(name)["events"] == {"accepted": 1, "duplicate": 1, "messages-in": 2}
    assert billing(namespace, name) == {"sends": 2}, "a duplicate is billed as what it is: a message that was sent"


def test_dead_letters_are_told_with_their_reason_and_where_they_went(
    client: Any, namespace: NamespaceHandle, name: str
) -> None:
    namespace.create_queue(name, max_delivery_count=1)
    with client.get_queue_sender(name) as sender, client.get_queue_receiver(name) as receiver:
        sender.send_messages([message(f"{name}-told"), message(f"{name}-counted")])
        told, counted = take(receiver, 2)
        receiver.dead_letter_message(told, reason="NoPath", error_description="x-ms-path is missing")
        receiver.abandon_message(counted)
    with client.get_queue_receiver(name, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
        for dead in take(receiver, 2):
            receiver.complete_message(dead)
    ending = ["delivered", "completed"]
    assert story(namespace, f"{name}-told") == ["accepted", "delivered", "dead-lettered NoPath", *ending]
    assert story(namespace, f"{name}-counted") == [
        *("accepted", "delivered", "abandoned", "dead-lettered MaxDeliveryCountExceeded"),
        *ending,
    ]
    assert [entry.entity for entry in namespace.journal(f"{name}-told")[-2:]] == [f"{name}/$DeadLetterQueue"] * 2


def test_a_deferred_message_is_told_until_it_is_received_by_its_number(
    client: Any, namespace: NamespaceHandle, queue: str
) -> None:
    with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
        sender.send_messages(message(f"{queue}-1"))
        [found] = take(receiver)
        receiver.defer_message(found)
        [again] = receiver.receive_deferred_messages([found.sequence_number])
        receiver.complete_message(again)
    assert story(namespace, f"{queue}-1") == ["accepted", "delivered", "deferred", "delivered", "completed"]


def test_scheduled_messages_are_told_when_cancelled_and_when_their_time_comes(clocked: NamespaceHandle) -> None:
    clocked.create_queue("scheduled")

    async def schedule() -> None:
        async with quick(clocked) as client, client.get_queue_sender("scheduled") as sender:
            soon = datetime.now(UTC) + timedelta(hours=1)
            numbers = await sender.schedule_messages([message("cancelled"), message("kept")], soon)
            await sender.cancel_scheduled_messages(numbers[0])

    asyncio.run(schedule())
    assert story(clocked, "cancelled") == ["scheduled", "cancelled"]
    assert story(clocked, "kept") == ["scheduled"]
    assert clocked.counters("scheduled")["events"]["scheduled"] == 2
    assert clocked.counters("scheduled")["events"].get("accepted", 0) == 0
    clocked.advance_clock(3700)
    assert story(clocked, "kept") == ["scheduled", "accepted scheduled time reached"]
    assert clocked.counters("scheduled")["events"]["accepted"] == 1


@pytest.mark.parametrize(
    ("dead_lettering", "end"), [(False, "expired"), (True, "dead-lettered TTLExpiredException")], ids=str
)
def test_a_message_that_runs_out_of_time_is_expired_or_dead_lettered(
    clocked: NamespaceHandle, dead_lettering: bool, end: str
) -> None:
    name = f"ttl-{dead_lettering}"
    clocked.create_queue(name, dead_letter_on_expiration=dead_lettering)

    async def send() -> None:
        async with quick(clocked) as client, client.get_queue_sender(name) as sender:
            await sender.send_messages(ServiceBusMessage(b"x", message_id=name, time_to_live=timedelta(minutes=5)))

    asyncio.run(send())
    assert story(clocked, name) == ["accepted"]
    clocked.advance_clock(301)
    assert story(clocked, name) == ["accepted", end]


def test_a_lock_that_runs_out_is_told(clocked: NamespaceHandle) -> None:
    clocked.create_queue("locks", lock_duration=30)

    async def receive() -> None:
        async with quick(clocked) as client, client.get_queue_sender("locks") as sender:
            await sender.send_messages(message("lock"))
            async with client.get_queue_receiver("locks") as receiver:
                assert await receiver.receive_messages(1, max_wait_time=20)

    asyncio.run(receive())
    clocked.advance_clock(31)
    assert story(clocked, "lock") == ["accepted", "delivered", "lock-expired"]


@one_sdk
def test_what_a_topic_routes_to_nobody_is_told(client: Any, namespace: NamespaceHandle, name: str) -> None:
    namespace.create_topic(name)
    namespace.create_subscription(name, "red", correlation={"subject": "red"})
    with client.get_topic_sender(name) as sender:
        sender.send_messages(ServiceBusMessage(b"x", message_id=f"{name}-blue", subject="blue"))
        sender.send_messages(ServiceBusMessage(b"x", message_id=f"{name}-red", subject="red"))
    assert story(namespace, f"{name}-blue") == ["accepted", "unrouted"]
    assert story(namespace, f"{name}-red") == ["accepted"]


@one_sdk
def test_the_tally_counts_what_happened_on_one_entity_or_on_all(
    client: Any, namespace: NamespaceHandle, name: str
) -> None:
    for entity in (name, f"{name}-other"):
        namespace.create_queue(entity)
        with client.get_queue_sender(entity) as sender:
            sender.send_messages(message(f"{name}-1"))
    assert namespace.tally(name) == {f"{name}-1": {"accepted": 1}}
    assert namespace.tally(name.upper()) == namespace.tally(name)
    assert namespace.tally()[f"{name}-1"] == {"accepted": 2}


def test_a_full_journal_forgets_the_oldest_messages_and_its_tally_says_so(clocked: NamespaceHandle) -> None:
    clocked.create_queue("bounded")

    async def send(*ids: str) -> None:
        async with quick(clocked) as client, client.get_queue_sender("bounded") as sender:
            await sender.send_messages([message(each) for each in ids])

    clocked.configure_journal(limit=3, clear=True)
    try:
        asyncio.run(send("one", "two", "three"))
        assert sorted(clocked.tally()) == ["one", "three", "two"]
        asyncio.run(send("four"))
        assert [story(clocked, each) for each in ("one", "two", "four")] == [[], ["accepted"], ["accepted"]]
        with pytest.raises(ControlError, match="forgotten 1 entries"):
            clocked.tally()
        clocked.configure_journal(limit=1)
        assert story(clocked, "three") == [], "a lower limit holds at once"
        with pytest.raises(ControlError, match="forgotten 3 entries"):
            clocked.tally()
        clocked.configure_journal(clear=True)
        assert clocked.tally() == {}
        clocked.configure_journal(enabled=False)
        asyncio.run(send("unseen"))
        assert story(clocked, "unseen") == []
        assert clocked.counts("bounded")["active"] == 5, "only the journal is off"
        clocked.configure_journal(enabled=True)
        asyncio.run(send("seen"))
        assert story(clocked, "seen") == ["accepted"]
    finally:
        clocked.configure_journal(limit=2_000_000, enabled=True, clear=True)


def test_a_journal_never_holds_more_than_its_limit() -> None:
    journal = Journal(limit=10)
    for number in range(100):
        journal.write(str(number % 7), float(number), "q", Happened.DELIVERED)
        assert sum(len(journal.of(str(each))) for each in range(7)) <= 10
    assert journal.dropped == 100 - sum(len(journal.of(str(each))) for each in range(7))
    journal.write(None, 0.0, "q", Happened.ACCEPTED)  # a message without an id cannot be asked for
    assert journal.of("6")[-1] == Entry(97.0, "q", "delivered")


@one_sdk
def test_what_is_refused_is_told_message_by_message_and_with_its_reason(
    client: Any, namespace: NamespaceHandle, queue: str
) -> None:
    def ids(*names: str) -> list[ServiceBusMessage]:
        return [message(f"{queue}-{each}") for each in names]

    soon = datetime.now(UTC) + timedelta(hours=1)
    with client.get_queue_sender(queue) as sender:
        with namespace.fault(Busy(), queue), pytest.raises(ServiceBusServerBusyError):
            sender.send_messages(ids("one", "two"))
        with namespace.fault(Reject("amqp:not-allowed"), queue):
            with pytest.raises(ServiceBusError):
                sender.send_messages(ids("two"))
            with pytest.raises(ServiceBusError):
                sender.schedule_messages(ids("later", "latest"), soon)
        sender.send_messages(ids("two"))
    busy, no = "rejected com.microsoft:server-busy", "rejected amqp:not-allowed"
    expected = {"one": [busy], "two": [busy, no, "accepted"], "later": [no], "latest": [no]}
    assert {each: story(namespace, f"{queue}-{each}") for each in expected} == expected
    assert namespace.counters(queue)["events"] == {"rejected": 3, "accepted": 1, "messages-in": 1}


@one_sdk
def test_who_comes_with_a_lock_that_is_gone_is_told_of_by_either_way(
    client: Any, namespace: NamespaceHandle, queue: str
) -> None:
    with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
        sender.send_messages(message(f"{queue}-1"))
        [found] = take(receiver)
        namespace.expire_locks(queue)
        for call in (receiver.renew_message_lock, receiver.complete_message):
            with pytest.raises(MessageLockLostError):
                call(found)
    told = story(namespace, f"{queue}-1")
    assert told[:3] == ["accepted", "delivered", "lock-expired"]
    assert told.count("lock-lost") == namespace.counters(queue)["events"]["lock-lost"] >= 2


@one_sdk
def test_messages_that_go_with_their_entity_are_told(client: Any, namespace: NamespaceHandle, name: str) -> None:
    namespace.create_queue(name)
    namespace.create_topic(f"{name}-t")
    namespace.create_subscription(f"{name}-t", "all")
    for entity in (name, f"{name}-t"):
        with client.get_queue_sender(entity) as sender:
            sender.send_messages(message(f"{entity}-1"))
        namespace.delete(entity)
    assert story(namespace, f"{name}-1") == ["accepted", "deleted"]
    assert story(namespace, f"{name}-t-1") == ["accepted", "deleted"]
    assert namespace.journal(f"{name}-t-1")[-1].entity == f"{name}-t/Subscriptions/all"


# The bill


@pytest.mark.parametrize(("size", "steps"), [(0, 1), (1, 1), (65536, 1), (65537, 2), (131073, 3)])
def test_operations_are_billed_in_steps_of_64_kb(size: int, steps: int) -> None:
    assert billed(size) == steps


def test_a_message_of_65_kb_is_two_sends_and_two_receives(client: Any, namespace: NamespaceHandle, queue: str) -> None:
    with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
        sender.send_messages(message(size=65 * 1024))
        receiver.complete_message(take(receiver)[0])
    assert billing(namespace, queue) == {"sends": 2, "receives": 2}


@one_sdk
def test_a_batch_is_billed_message_by_message(client: Any, namespace: NamespaceHandle, queue: str) -> None:
    with client.get_queue_sender(queue) as sender:
        sender.send_messages([message(size=1000) for _ in range(70)])
    assert billing(namespace, queue) == {"sends": 70}


@one_sdk
def test_pings_are_billed_as_pings_and_delivered_only_when_switched(
    client: Any, namespace: NamespaceHandle, queue: str
) -> None:
    ping = {"content_type": PING, "time_to_live": timedelta(seconds=30)}
    with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
        sender.send_messages(ServiceBusMessage(b"", message_id=f"{queue}-1", **ping))
        assert story(namespace, f"{queue}-1") == ["ping"]
        assert billing(namespace, queue) == {"pings": 1}
        namespace.deliver_pings(True)
        try:
            sender.send_messages(ServiceBusMessage(b"", message_id=f"{queue}-2", **ping))
            assert [found.message_id for found in take(receiver)] == [f"{queue}-2"]
        finally:
            namespace.deliver_pings(False)
    assert story(namespace, f"{queue}-2")[:2] == ["accepted", "delivered"]
    assert billing(namespace, queue) == {"pings": 1, "sends": 1, "receives": 1}


@one_sdk
def test_management_calls_are_billed(client: Any, namespace: NamespaceHandle, queue: str) -> None:
    with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
        sender.send_messages(message())
        receiver.peek_messages(1)
        [found] = take(receiver)
        receiver.renew_message_lock(found)
        receiver.complete_message(found)
    assert billing(namespace, queue) == {"sends": 1, "receives": 1, "management": 2}


def test_a_peek_is_billed_by_what_it_brings_in_steps_of_64_kb(
    client: Any, namespace: NamespaceHandle, queue: str
) -> None:
    with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
        sender.send_messages([message(size=30 * 1024) for _ in range(5)])
        assert len(receiver.peek_messages(1)) == 1
        assert billing(namespace, queue) == {"sends": 5, "management": 1}
        assert len(receiver.peek_messages(5, sequence_number=1)) == 5
        assert billing(namespace, queue) == {"sends": 5, "management": 1 + 3}, "150 KB"
        assert receiver.peek_messages(5, sequence_number=99) == []
        assert billing(namespace, queue) == {"sends": 5, "management": 1 + 3 + 1}


def test_each_receive_on_an_empty_queue_is_one_empty_receive(
    client: Any, namespace: NamespaceHandle, queue: str
) -> None:
    with client.get_queue_receiver(queue) as receiver:
        for _ in range(3):
            assert receiver.receive_messages(5, max_wait_time=0.2) == []
    await_that(lambda: billing(namespace, queue) == {"empty_receives": 3})


def test_a_receive_that_brings_fewer_than_it_has_room_for_is_no_empty_receive(
    client: Any, namespace: NamespaceHandle, queue: str
) -> None:
    with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
        sender.send_messages([message() for _ in range(11)])
        found = receiver.receive_messages(20, max_wait_time=20)
        for each in found:
            receiver.complete_message(each)
        receiver.peek_messages(1)
    assert len(found) == 11
    await_that(lambda: namespace.overview()["connections"] == 0)
    assert billing(namespace, queue) == {"sends": 11, "receives": 11, "management": 1}


def test_empty_and_full_receives_are_told_apart_on_one_link(
    client: Any, namespace: NamespaceHandle, queue: str
) -> None:
    with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
        sender.send_messages([message() for _ in range(6)])
        for _ in range(2):
            for each in receiver.receive_messages(3, max_wait_time=20):
                receiver.complete_message(each)
        for _ in range(2):
            assert receiver.receive_messages(3, max_wait_time=0.2) == []
    await_that(lambda: namespace.overview()["connections"] == 0)
    assert billing(namespace, queue) == {"sends": 6, "receives": 6, "empty_receives": 2}


@pytest.mark.parametrize("mode", list(ServiceBusReceiveMode))
def test_with_prefetch_only_what_is_on_the_wire_is_billed(
    client: Any, namespace: NamespaceHandle, queue: str, mode: ServiceBusReceiveMode
) -> None:
    """Calls that the buffer serves are no receives; credit that brought nothing until the link's end is one."""
    with (
        client.get_queue_sender(queue) as sender,
        client.get_queue_receiver(queue, prefetch_count=5, receive_mode=mode) as receiver,
    ):
        sender.send_messages([message() for _ in range(11)])
        found = take(receiver, 11)
        if mode is ServiceBusReceiveMode.PEEK_LOCK:
            for each in found:
                receiver.complete_message(each)
        for _ in range(2):
            assert receiver.receive_messages(3, max_wait_time=0.2) == []
    await_that(lambda: namespace.overview()["connections"] == 0)
    assert billing(namespace, queue) == {"sends": 11, "receives": 11}, "credit 6, all used, and 6, of which 5 were"


def test_a_prefetching_receiver_of_an_empty_queue_is_one_empty_receive(
    client: Any, namespace: NamespaceHandle, queue: str
) -> None:
    with client.get_queue_receiver(queue, prefetch_count=5) as receiver:
        for _ in range(3):
            assert receiver.receive_messages(3, max_wait_time=0.2) == []
    await_that(lambda: billing(namespace, queue) == {"empty_receives": 1})


def test_a_receive_that_the_broker_ends_by_an_idle_detach_is_not_billed(clocked: NamespaceHandle) -> None:
    """The client takes the rest of its long poll up on a new link; the service has answered nothing yet."""
    clocked.create_queue("idle")

    async def receive() -> None:
        async with quick(clocked) as client:
            async with client.get_queue_receiver("idle") as receiver:
                clocked.idle_detach_after(0.3)
                try:
                    with pytest.raises(Exception, match="idle for too long"):
                        await receiver.receive_messages(1, max_wait_time=20)
                finally:
                    clocked.idle_detach_after(600)
            async with client.get_queue_receiver("idle") as receiver:
                assert await receiver.receive_messages(1, max_wait_time=0.2) == []

    asyncio.run(receive())
    await_that(lambda: billing(clocked, "idle") == {"empty_receives": 1})


@one_sdk
def test_a_discarding_entity_counts_and_keeps_nothing(client: Any, namespace: NamespaceHandle, name: str) -> None:
    namespace.create_queue(name, discard=True)
    with client.get_queue_sender(name) as sender:
        sender.send_messages([message(f"{name}-{n}") for n in range(3)])
        sender.send_messages(message(size=65 * 1024))
        counters = namespace.counters(name)
        assert (counters["sends"], counters["events"]["discarded"], counters["events"]["messages-in"]) == (5, 4, 4)
        assert namespace.counts(name) == {"active": 0, "deferred": 0, "scheduled": 0, "locked": 0}
        assert story(namespace, f"{name}-0") == []
        namespace.configure(name, discard=False)
        sender.send_messages(message())
    assert namespace.counts(name)["active"] == 1


@one_sdk
def test_a_discarding_entity_has_pings_and_a_quota_like_any_other(
    client: Any, namespace: NamespaceHandle, name: str
) -> None:
    namespace.create_queue(name, discard=True)
    with client.get_queue_sender(name) as sender:
        with namespace.fault(FullQuota(), name):
            sender.send_messages(ServiceBusMessage(b"", content_type=PING))
            for refused in (message(), [message(), message()]):
                with pytest.raises(ServiceBusQuotaExceededError):
                    sender.send_messages(refused)
        sender.send_messages([message(), message()])
    assert billing(namespace, name) == {"pings": 1, "sends": 2}


def test_counters_are_kept_for_the_entity_and_for_the_namespace_and_can_be_reset(clocked: NamespaceHandle) -> None:
    for name in ("counted", "counted-too"):
        clocked.create_queue(name)
    clocked.reset_counters()
    assert clocked.counters()["operations"] == 0

    async def send() -> None:
        async with quick(clocked) as client:
            for name in ("counted", "counted-too"):
                async with client.get_queue_sender(name) as sender:
                    await sender.send_messages([message(), message()])

    asyncio.run(send())
    assert (clocked.counters("counted")["sends"], clocked.counters()["sends"]) == (2, 4)
    assert clocked.counters()["bytes_in"] == 2 * clocked.counters("counted")["bytes_in"] > 0
    clocked.reset_counters()
    assert clocked.counters("counted")["operations"] == clocked.counters()["operations"] == 0


def test_a_lost_acknowledgement_is_billed_like_any_send(namespace: NamespaceHandle, queue: str) -> None:
    async def send() -> None:
        async with quick(namespace) as client, client.get_queue_sender(queue) as sender:
            namespace.hang(LoseAck(count=1), queue)
            with pytest.raises(Exception, match="socket-error"):
                await sender.send_messages(message())

    asyncio.run(send())
    assert billing(namespace, queue) == {"sends": 1}
