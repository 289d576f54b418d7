"""What faults do to messages and to time: what is stored, what is refused, what comes later, what is lost."""

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import (
    MessageLockLostError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusServerBusyError,
)

from spark_sb_sink.broker import (
    BlackHole,
    BrokerProcess,
    Busy,
    CutMidBatch,
    FullQuota,
    LateVisible,
    LoseAck,
    ManagementAnswer,
    NamespaceHandle,
    Reject,
    Shape,
)
from tests.broker.faulty import PATIENCE, Came, Links, message, outcome, quick, two_open, words
from tests.broker.sdk import QUICK, HastyClient
from tests.conftest import await_that

CUT = "ServiceBusConnectionError amqp:socket-error"
DETACHED = "ServiceBusConnectionError amqp:unknown-error"
"""What the SDK makes of a link that is detached under a send: it drops the error that the detach came with."""
DISABLED = "MessagingEntityDisabledError com.microsoft:entity-disabled"
GONE = "MessagingEntityNotFoundError amqp:not-found"
PING = "application/vnd.ms-servicebus-ping"


@pytest.fixture(scope="module")
def clocked() -> Iterator[NamespaceHandle]:
    """A namespace whose clock a test may move: moving it moves the whole broker's."""
    with BrokerProcess("clocked") as running:
        yield running["clocked"]
        assert "Traceback" not in running.errors(), running.errors()


def story(namespace: NamespaceHandle, message_id: str) -> list[str]:
    return [entry.what for entry in namespace.journal(message_id)]


async def send(client: ServiceBusClient, queue: str, *messages: ServiceBusMessage) -> str:
    async with client.get_queue_sender(queue) as sender:
        await sender.send_messages(list(messages))
    return "sent"


async def received(client: ServiceBusClient, queue: str, wait: float = 20) -> list[Any]:
    async with client.get_queue_receiver(queue) as receiver:
        found = await receiver.receive_messages(10, max_wait_time=wait)
        for each in found:
            await receiver.complete_message(each)
    return found


# Lost acknowledgements and cut batches


async def test_a_message_whose_acknowledgement_is_lost_is_stored_and_its_resend_is_dropped_as_a_duplicate(
    namespace: NamespaceHandle, name: str
) -> None:
    namespace.create_queue(name, requires_duplicate_detection=True)
    async with quick(namespace) as client, client.get_queue_sender(name) as sender:
        namespace.hang(LoseAck(count=1), name)
        with pytest.raises(ServiceBusConnectionError):
            await sender.send_messages(message(f"{name}-1"))
        assert namespace.faults() == []
        assert story(namespace, f"{name}-1") == ["accepted", "ack-lost"]
        await sender.send_messages(message(f"{name}-1"))
        assert story(namespace, f"{name}-1") == ["accepted", "ack-lost", "duplicate"]
        assert [str(found.message_id) for found in await received(client, name)] == [f"{name}-1"]


async def test_without_duplicate_detection_the_resend_after_a_lost_acknowledgement_makes_two(
    namespace: NamespaceHandle, queue: str
) -> None:
    async with quick(namespace) as client:
        with namespace.fault(LoseAck(), queue):
            assert await outcome(send(client, queue, message("same"))) == CUT
        await send(client, queue, message("same"))
    assert namespace.counts(queue)["active"] == 2


async def test_a_batch_that_is_cut_in_the_middle_of_its_frames_leaves_nothing(
    namespace: NamespaceHandle, queue: str
) -> None:
    batch = [message(f"{queue}-{n}", size=30_000) for n in range(6)]  # three frames of 64 KB
    async with quick(namespace) as client:
        with namespace.fault(CutMidBatch(after_bytes=70_000), queue):
            assert await outcome(send(client, queue, *batch)) == CUT
            assert await send(client, queue, message()) == "sent", "smaller than what it takes to be cut"
        assert namespace.counts(queue)["active"] == 1
        assert [story(namespace, f"{queue}-{n}") for n in range(6)] == [[]] * 6
        assert await send(client, queue, *batch) == "sent"
    assert namespace.counts(queue)["active"] == 7


async def test_connections_are_cut_once_for_one_entity_or_for_all(namespace: NamespaceHandle, name: str) -> None:
    async with quick(namespace) as client:
        one, other = await two_open(client, namespace, name)
        assert namespace.cut(one.queue) == 2  # a sender and a receiver, each a connection of its own
        assert await one.try_all(Came()) == Came(open_send=CUT, open_receive=CUT)
        assert await other.try_all(Came()) == Came()
        assert namespace.cut() >= 2
        assert await outcome(other.send()) == CUT


# Throttling and quota


async def test_busy_refuses_exactly_the_next_n_messages(namespace: NamespaceHandle, name: str) -> None:
    async with quick(namespace) as client:
        one, other = await two_open(client, namespace, name)
        namespace.hang(Busy(count=3), one.queue)
        assert await other.send() == "sent"
        busy = "ServiceBusServerBusyError com.microsoft:server-busy"
        assert [await outcome(one.send()) for _ in range(5)] == [busy] * 3 + ["sent"] * 2
    assert namespace.counters(one.queue)["events"]["rejected"] == 3


async def test_busy_above_a_rate_lets_the_rate_pass_and_a_namespace_shares_it(
    namespace: NamespaceHandle, name: str
) -> None:
    async with quick(namespace) as client:
        one, other = await two_open(client, namespace, name)
        namespace.hang(Busy(above_rate=4))
        started = time.monotonic()
        found = [await outcome(links.send()) for _ in range(4) for links in (one, other)]
        allowed = 4 + 4 * (time.monotonic() - started)
        assert found[:4] == ["sent"] * 4
        assert 4 <= found.count("sent") <= allowed
        assert set(found) <= {"sent", "ServiceBusServerBusyError com.microsoft:server-busy"}
        namespace.undo()
        assert [await one.send() for _ in range(8)] == ["sent"] * 8


async def test_what_is_above_a_rate_is_taken_once_the_sender_has_waited(clocked: NamespaceHandle, name: str) -> None:
    clocked.create_queue(name)
    async with quick(clocked) as client, client.get_queue_sender(name) as sender:
        with clocked.fault(Busy(above_rate=0.05), name):
            await sender.send_messages([message() for _ in range(30)])  # into a full allowance: it is owed, 600 s of it
            with pytest.raises(ServiceBusServerBusyError):
                await sender.send_messages(message())
            clocked.advance_clock(300)
            with pytest.raises(ServiceBusServerBusyError):
                await sender.send_messages(message())
            clocked.advance_clock(310)
            await sender.send_messages(message())
    assert clocked.counts(name)["active"] == 31


async def test_a_full_entity_still_takes_pings(namespace: NamespaceHandle, queue: str) -> None:
    async with quick(namespace) as client, client.get_queue_sender(queue) as sender:
        namespace.hang(FullQuota(), queue)
        await sender.send_messages(
            ServiceBusMessage(b"", content_type=PING, time_to_live=timedelta(seconds=1), message_id=f"{queue}-ping")
        )
        assert story(namespace, f"{queue}-ping") == ["ping"]
        with pytest.raises(Exception, match="maximum entity size"):
            await sender.send_messages(message())


async def test_a_request_is_answered_with_the_error_that_hangs_there_and_others_are_served(
    namespace: NamespaceHandle, queue: str
) -> None:
    async with quick(namespace) as client, client.get_queue_receiver(queue) as receiver:
        await send(client, queue, message())
        namespace.hang(ManagementAnswer(503, "com.microsoft:server-busy", operation="peek-message", count=1), queue)
        [found] = await receiver.receive_messages(1, max_wait_time=20)
        await receiver.renew_message_lock(found)
        with pytest.raises(ServiceBusServerBusyError):
            await receiver.peek_messages()
        assert len(await receiver.peek_messages(sequence_number=1)) == 1


# Latency, bandwidth, late visibility


async def _took(call: Any) -> float:
    started = time.monotonic()
    await call
    return time.monotonic() - started


@pytest.mark.parametrize("whole", [False, True], ids=["for one entity", "for the namespace"])
async def test_latency_is_added_to_every_round_trip_on_open_and_new_links(
    namespace: NamespaceHandle, name: str, whole: bool
) -> None:
    async with quick(namespace) as client:
        one, other = await two_open(client, namespace, name)
        with namespace.fault(Shape(latency=0.4), None if whole else one.queue):
            slow, beside = await asyncio.gather(_took(one.send()), _took(other.send()))
            anew = await _took(one.send_anew())
    assert slow >= 0.4
    assert anew >= 0.4
    assert beside >= 0.4 or not whole


async def test_bandwidth_is_limited_in_each_direction(namespace: NamespaceHandle, queue: str) -> None:
    async with quick(namespace) as client:
        links = await Links(client, queue).open()
        large = message(f"{queue}-large", size=40_000)
        with namespace.fault(Shape(bandwidth=100_000), queue):
            assert await _took(links.sender.send_messages(large)) >= 0.4

            async def until_large() -> None:
                ids: list[str] = []
                while f"{queue}-large" not in ids:
                    ids += [str(found.message_id) for found in await links.receiver.receive_messages(1, 20)]

            assert await _took(until_large()) >= 0.4


@pytest.mark.parametrize("shape", [Shape(latency=3600), Shape(bandwidth=0.1)], ids=["latency", "bandwidth"])
async def test_the_end_of_a_shape_sets_free_what_it_has_held_back_and_it_touches_no_other_entity(
    namespace: NamespaceHandle, name: str, shape: Shape
) -> None:
    async with quick(namespace) as client:
        one, other = await two_open(client, namespace, name)
        namespace.hang(Shape(latency=0.001, bandwidth=1e9))  # which goes on, and hides nothing
        with namespace.fault(shape, one.queue):
            held = asyncio.create_task(one.send())
            assert await other.send() == "sent"
            assert await other.send() == "sent"
            assert not held.done()
        assert await asyncio.wait_for(held, 30) == "sent"
        assert await one.send() == "sent", "and what comes after is as fast as ever"


async def test_a_message_that_is_late_is_neither_received_nor_peeked_until_its_time(clocked: NamespaceHandle) -> None:
    clocked.create_queue("late")
    clocked.create_queue("prompt")
    async with quick(clocked) as client, client.get_queue_receiver("late") as receiver:

        async def peeked() -> list[str]:
            return [str(found.message_id) for found in await receiver.peek_messages(10, sequence_number=1)]

        with clocked.fault(LateVisible(seconds=600), "late"):
            await asyncio.gather(send(client, "late", message("late-1")), send(client, "prompt", message("prompt-1")))
        assert len(await received(client, "prompt")) == 1
        assert await receiver.receive_messages(1, max_wait_time=0.5) == []
        assert await peeked() == []
        assert story(clocked, "late-1") == ["accepted"], "the sender was told at once"
        await send(client, "late", message("late-2"))
        assert await peeked() == ["late-2"], "what comes after the undo is seen at once"
        clocked.advance_clock(400)
        assert await peeked() == ["late-2"]
        clocked.advance_clock(200)
        assert await peeked() == ["late-1", "late-2"]
        with clocked.fault(LateVisible(seconds=600)):
            await asyncio.gather(send(client, "late", message("late-3")), send(client, "prompt", message("prompt-2")))
        assert await peeked() == ["late-1", "late-2"]
        clocked.advance_clock(600)
        assert await peeked() == ["late-1", "late-2", "late-3"]
        assert [str(found.message_id) for found in await received(client, "prompt")] == ["prompt-2"]


# Entities that are disabled, deleted, made again


async def test_a_disabled_entity_turns_away_open_and_new_links_until_it_is_enabled(
    namespace: NamespaceHandle, name: str
) -> None:
    async with quick(namespace) as client:
        one, other = await two_open(client, namespace, name)
        namespace.disable(one.queue)
        struck, beside = await asyncio.gather(one.try_all(Came()), other.try_all(Came()))
        assert struck == Came(DETACHED, DISABLED, DISABLED, DISABLED)
        assert beside == Came()
        assert await outcome(one.send()) == DISABLED, "the same sender, on a link that it has just opened"
        namespace.enable(one.queue)
        assert await one.try_all(Came()) == Came(), "open links come back by themselves"


@pytest.mark.parametrize(
    ("status", "came"),
    [
        ("SendDisabled", Came(open_send=DETACHED, new_send=DISABLED)),
        ("ReceiveDisabled", Came(open_receive=DISABLED, new_receive=DISABLED)),
    ],
)
async def test_an_entity_can_be_disabled_for_one_direction(
    namespace: NamespaceHandle, queue: str, status: str, came: Came
) -> None:
    async with quick(namespace) as client:
        links = await Links(client, queue).open()
        namespace.configure(queue, status=status)
        assert await links.try_all(Came()) == came


async def test_a_deleted_entity_is_not_found_and_comes_back_empty(namespace: NamespaceHandle, name: str) -> None:
    async with quick(namespace) as client:
        one, other = await two_open(client, namespace, name)
        namespace.delete(one.queue)
        struck, beside = await asyncio.gather(one.try_all(Came()), other.try_all(Came()))
        assert struck == Came(DETACHED, GONE, GONE, GONE)
        assert beside == Came()
        assert await outcome(one.send()) == GONE, "the same sender, on a link that it has just opened"
        namespace.create_queue(one.queue)
        assert namespace.counts(one.queue)["active"] == 0
        assert await asyncio.gather(one.send(), one.receive()) == ["sent", "received"]


# Locks, stop and start


@pytest.mark.parametrize("whole", [False, True], ids=["for one entity", "for the namespace"])
async def test_locks_expire_when_told_and_the_message_comes_again(
    namespace: NamespaceHandle, name: str, whole: bool
) -> None:
    async with quick(namespace) as client:
        links = await two_open(client, namespace, name)
        held = [(await each.receiver.receive_messages(1, max_wait_time=20))[0] for each in links]
        expired = namespace.expire_locks(None if whole else links[0].queue)
        assert expired >= 4 if whole else expired == 2  # the namespace may have locks of other tests
        with pytest.raises(MessageLockLostError):
            await links[0].receiver.complete_message(held[0])
        if whole:
            with pytest.raises(MessageLockLostError):
                await links[1].receiver.complete_message(held[1])
        else:
            await links[1].receiver.complete_message(held[1])
        [again, *_] = [
            found
            for found in await links[0].receiver.receive_messages(9, max_wait_time=20)
            if found.message_id == held[0].message_id
        ]
        assert (held[0].delivery_count, again.delivery_count) == (0, 1)
        told = [what for what in story(namespace, str(again.message_id)) if what != "lock-lost"]
        assert told == ["accepted", "delivered", "lock-expired", "delivered"]


async def test_a_namespace_that_was_stopped_refuses_connections_and_starts_again_with_its_messages(
    namespace: NamespaceHandle, queue: str
) -> None:
    host, _, port = namespace.endpoint.partition(":")
    async with quick(namespace) as client:
        links = await Links(client, queue).open()
        namespace.stop()
        assert namespace.overview()["running"] is False
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)), timeout=5)
        assert await links.try_all(Came()) == Came(*[CUT] * 4)
        namespace.start()
        namespace.start()  # twice is once
        assert namespace.counts(queue) == {"active": 9, "deferred": 0, "scheduled": 0, "locked": 1}
        assert await links.try_all(Came()) == Came()
    await_that(lambda: namespace.overview()["connections"] == 0)


async def test_the_other_namespace_goes_on_while_one_is_stopped(
    broker: BrokerProcess, namespace: NamespaceHandle
) -> None:
    namespace.stop()
    broker["secondary"].call("DELETE", "/faults")
    async with quick(broker["secondary"]) as client:
        broker["secondary"].create_queue("beside-a-stopped-one")
        assert await send(client, "beside-a-stopped-one", message()) == "sent"
    broker["secondary"].delete("beside-a-stopped-one")


# The sync SDK


def test_the_sync_sdk_meets_the_same(clocked: NamespaceHandle, name: str) -> None:
    clocked.create_queue(name)
    with (
        HastyClient.from_connection_string(clocked.connection_string, **QUICK) as client,
        client.get_queue_sender(name) as sender,
        client.get_queue_receiver(name) as receiver,
    ):

        def sent(message_id: str) -> str:
            try:
                sender.send_messages(message(message_id))
            except ServiceBusError as error:
                return words(error)
            return "sent"

        def ids(count: int) -> list[str]:
            found: list[Any] = []
            while len(found) < count:
                found += receiver.receive_messages(count - len(found), max_wait_time=20)
            for each in found:
                receiver.complete_message(each)
            return [str(each.message_id) for each in found]

        with clocked.fault(Busy(above_rate=0.01), name):
            assert [sent("1"), sent("2")] == ["sent", "ServiceBusServerBusyError com.microsoft:server-busy"]
            clocked.advance_clock(100)
            assert sent("2") == "sent"
        assert ids(2) == ["1", "2"]

        with clocked.fault(LateVisible(seconds=600), name):
            assert sent("late") == "sent"
        assert sent("prompt") == "sent"
        assert ids(1) == ["prompt"]
        clocked.advance_clock(600)
        assert ids(1) == ["late"]

        with clocked.fault(Shape(latency=0.4), name):
            started = time.monotonic()
            assert sent("slow") == "sent"
            assert time.monotonic() - started >= 0.4
        assert ids(1) == ["slow"]

        clocked.disable(name)
        assert [sent("x"), sent("x")] == [DETACHED, DISABLED], "on the open link, and on one of its own"
        clocked.enable(name)
        assert sent("x") == "sent"
        clocked.delete(name)
        assert [sent("x"), sent("x")] == [DETACHED, GONE]
        clocked.create_queue(name)

        assert [sent("kept"), sent("locked")] == ["sent", "sent"]
        with client.get_queue_receiver(name) as other:
            [first] = other.receive_messages(1, max_wait_time=20)
            assert clocked.expire_locks(name) == 1
            with pytest.raises(MessageLockLostError):
                other.complete_message(first)
        clocked.stop()
        assert [sent("x"), sent("x")] == [CUT, CUT]
        clocked.start()
    with client.get_queue_receiver(name) as receiver:
        assert sorted(ids(2)) == ["kept", "locked"]


def test_the_sync_sdk_meets_on_open_links_what_the_other_does(namespace: NamespaceHandle, queue: str) -> None:
    with (
        HastyClient.from_connection_string(namespace.connection_string, **QUICK) as client,
        client.get_queue_sender(queue) as sender,
        client.get_queue_receiver(queue) as receiver,
    ):

        def came(call: Callable[[], object]) -> str:
            try:
                call()
            except ServiceBusError as error:
                return words(error)
            return "done"

        def send(size: int = 4) -> None:
            sender.send_messages(message(size=size))

        namespace.hang(Busy(count=3), queue)
        busy = "ServiceBusServerBusyError com.microsoft:server-busy"
        assert [came(send) for _ in range(5)] == [busy] * 3 + ["done"] * 2

        [found] = receiver.receive_messages(1, max_wait_time=20)
        namespace.hang(ManagementAnswer(503, "com.microsoft:server-busy", operation="peek-message", count=1), queue)
        assert came(lambda: receiver.renew_message_lock(found)) == "done"
        assert [came(receiver.peek_messages) for _ in range(2)] == [busy, "done"]

        with namespace.fault(Shape(bandwidth=100_000), queue):
            started = time.monotonic()
            send(size=40_000)
            assert time.monotonic() - started >= 0.4

        assert namespace.cut(queue) == 2
        assert came(send) == CUT
        assert came(lambda: receiver.receive_messages(1, max_wait_time=20)) == CUT
        assert came(send) == "done"


def test_the_sync_sdk_hangs_in_a_black_hole_until_it_is_undone(namespace: NamespaceHandle, queue: str) -> None:
    def send() -> str:
        with HastyClient.from_connection_string(namespace.connection_string, retry_total=0) as client:
            try:
                client.get_queue_sender(queue).send_messages(message())
            except ServiceBusError as error:
                return words(error)
        return "sent"

    for fault in (BlackHole(), BlackHole("attach"), Reject(info=False)):
        with ThreadPoolExecutor(1) as pool:
            with namespace.fault(fault, queue):
                hanging = pool.submit(send)
                assert wait([hanging], PATIENCE).not_done
            if isinstance(fault, Reject):  # the SDK has lost the answer, and would wait for ever
                assert namespace.counters(queue)["events"]["rejected"] == 1
                namespace.cut(queue)
            assert hanging.result(60) != "sent"
    assert namespace.counts(queue)["active"] == 0
