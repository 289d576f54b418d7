"""Deliveries come as their bytes, are settled in ranges with an answer each, and leave nothing behind."""

import asyncio
import time

import pytest
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import MessageLockLostError, ServiceBusError

from spark_sb_sink.amqp import batch_payload, decode_message
from spark_sb_sink.broker import NamespaceHandle
from spark_sb_sink.broker.faults import BlackHole, Shape
from spark_sb_sink.errors import ClosedError
from spark_sb_sink.wire import (
    ABANDON,
    COMPLETE,
    DEFER,
    IdleDetachedError,
    RawReceiver,
    Settled,
    SettleResult,
    dead_letter,
)
from spark_sb_sink.wire.receiving import STEP
from spark_sb_sink.wire.settling import ranges
from spark_sb_sink.wire.transfer import named_ids, signed
from tests.conftest import await_that
from tests.ticking import ticking
from tests.wire.conftest import Open
from tests.wire.test_sending import message, received

ACCEPTED = SettleResult(Settled.ACCEPTED)


async def fill(sender: Open, queue: str, count: int) -> None:
    raw = await sender(queue)
    for start in range(0, count, 1000):
        messages = [message(number) for number in range(start, min(start + 1000, count))]
        await raw.send(batch_payload(b"", messages), batch=True)


async def test_a_delivery_is_the_payload_that_was_sent(sender: Open, receiver: Open, queue: str) -> None:
    await fill(sender, queue, 3)
    into = await receiver(queue)
    found = await into.receive(10, 10)
    assert [decode_message(one.payload).message_id for one in found] == ["m0", "m1", "m2"]
    assert {len(one.tag) for one in found} == {16}
    assert set((await into.settle(found, COMPLETE)).values()) == {ACCEPTED}


async def test_a_receive_returns_as_soon_as_something_is_there(sender: Open, receiver: Open, queue: str) -> None:
    into, raw = await receiver(queue), await sender(queue)
    waiting = asyncio.create_task(into.receive(100, 60))
    await asyncio.sleep(0)
    await raw.send(message(1), batch=False)
    assert len(await asyncio.wait_for(waiting, 30)) == 1, "it waited for more"


async def test_a_receive_asks_for_no_more_than_a_step_beyond_its_bytes(
    sender: Open, receiver: Open, namespace: NamespaceHandle, queue: str
) -> None:
    into = await receiver(queue)
    await fill(sender, queue, 4 * STEP)
    found = await into.receive(4 * STEP, 10, 1000)
    assert len(found) == namespace.counts(queue)["locked"] == STEP, "the first step has more than 1,000 bytes"
    found = await into.receive(4 * STEP, 10)
    assert len(found) == 3 * STEP, "all that there is"
    assert not into.owed


async def test_an_empty_queue_gives_an_empty_list_when_the_wait_is_over(receiver: Open, queue: str) -> None:
    into = await receiver(queue)
    begun = time.monotonic()
    assert await asyncio.wait_for(into.receive(10, 0.3), 30) == []
    assert time.monotonic() - begun >= 0.3
    assert not into.broken


async def test_nothing_is_locked_for_nobody_between_receives(
    sender: Open, receiver: Open, namespace: NamespaceHandle, queue: str
) -> None:
    into = await receiver(queue)
    assert await into.receive(10, 0.05) == []
    await fill(sender, queue, 3)
    assert namespace.counts(queue)["locked"] == 0
    assert len(await into.receive(10, 10)) == 3


async def test_a_long_poll_is_billed_once(receiver: Open, namespace: NamespaceHandle, queue: str) -> None:
    into = await receiver(queue)
    for _ in range(3):
        assert await into.receive(10, 0.1) == []
    assert namespace.counters(queue)["empty_receives"] == 3


async def test_prefetched_deliveries_wait_and_a_pause_gives_them_back(
    sender: Open, receiver: Open, namespace: NamespaceHandle, queue: str
) -> None:
    await fill(sender, queue, 20)
    into = await receiver(queue, prefetch=10)
    found = await into.receive(4, 10)
    assert len(found) == 4
    await_that(lambda: namespace.counts(queue)["locked"] >= 10)
    await into.pause()
    assert namespace.counts(queue)["locked"] == 4
    assert into.unsettled == 4
    assert len(await into.receive(4, 10)) == 4


@pytest.mark.parametrize(
    ("outcome", "active", "deferred", "dead"),
    [(COMPLETE, 0, 0, 0), (ABANDON, 3, 0, 0), (DEFER, 0, 3, 0), (dead_letter("no path", "nothing to do"), 0, 0, 3)],
    ids=["complete", "abandon", "defer", "dead-letter"],
)
async def test_each_outcome_does_what_it_says(
    sender: Open,
    receiver: Open,
    namespace: NamespaceHandle,
    queue: str,
    outcome: object,
    active: int,
    deferred: int,
    dead: int,
) -> None:
    await fill(sender, queue, 3)
    into = await receiver(queue)
    found = await into.receive(3, 10)
    results = await into.settle(found, outcome)
    assert results == {one.delivery_id: ACCEPTED for one in found}
    counts = namespace.counts(queue)
    assert (counts["active"], counts["deferred"], counts["locked"]) == (active, deferred, 0)
    assert namespace.counts(f"{queue}/$DeadLetterQueue")["active"] == dead


async def test_a_dead_letter_has_its_reason(client: ServiceBusClient, sender: Open, receiver: Open, queue: str) -> None:
    await fill(sender, queue, 1)
    into = await receiver(queue)
    await into.settle(await into.receive(1, 10), dead_letter("no path", "x-ms-path is missing"))
    async with client.get_queue_receiver(queue, sub_queue="deadletter") as plain:
        (found,) = await plain.receive_messages(1, max_wait_time=10)
    assert (found.dead_letter_reason, found.dead_letter_error_description) == ("no path", "x-ms-path is missing")


async def test_one_lock_lost_inside_a_range_hides_no_other_answer(
    client: ServiceBusClient, sender: Open, receiver: Open, queue: str
) -> None:
    await fill(sender, queue, 9)
    into = await receiver(queue)
    found = await into.receive(9, 10)
    assert [one.delivery_id - found[0].delivery_id for one in found] == list(range(9))
    await into.settle_deferred([found[4].lock_token], ABANDON)  # somebody else's doing, as far as the link knows
    results = await into.settle(found, COMPLETE)
    assert results[found[4].delivery_id] == SettleResult(Settled.LOCK_LOST, "com.microsoft:message-lock-lost")
    assert [results[one.delivery_id] for one in found if one is not found[4]] == [ACCEPTED] * 8
    assert [one.message_id for one in await received(client, queue, 1)] == ["m4"]


async def test_all_locks_expired_is_the_brokers_word_not_the_clocks(
    sender: Open, receiver: Open, namespace: NamespaceHandle, queue: str
) -> None:
    await fill(sender, queue, 3)
    into = await receiver(queue)
    found = await into.receive(3, 10)
    namespace.expire_locks(queue)
    assert {one.settled for one in (await into.settle(found, COMPLETE)).values()} == {Settled.LOCK_LOST}
    assert into.unsettled == 0


async def test_what_is_not_confirmed_in_time_is_unknown(
    sender: Open, receiver: Open, namespace: NamespaceHandle, queue: str
) -> None:
    await fill(sender, queue, 2)
    into = await receiver(queue, timeout=0.5)
    found = await into.receive(2, 10)
    with namespace.fault(Shape(latency=5.0)):
        async with ticking() as clock:
            begun = clock.now()
            results = await into.settle(found, COMPLETE)
            assert clock.now() - begun < 1.5
    assert {one.settled for one in results.values()} == {Settled.UNKNOWN}
    assert into.broken


async def test_what_was_settled_before_or_elsewhere_is_unknown(sender: Open, receiver: Open, queue: str) -> None:
    await fill(sender, queue, 1)
    into = await receiver(queue)
    found = await into.receive(1, 10)
    await into.settle(found, COMPLETE)
    assert {one.settled for one in (await into.settle(found, COMPLETE)).values()} == {Settled.UNKNOWN}
    assert not into.broken


async def test_ten_thousand_receives_leave_no_trace_on_the_link(sender: Open, receiver: Open, queue: str) -> None:
    """Each delivery received and settled one by one and in gaps, so that no range is long."""
    await fill(sender, queue, 10_000)
    into = await receiver(queue)
    done = 0
    while done < 10_000:
        found = await into.receive(200, 10)
        for part in (found[::2], found[1::2]):
            results = await into.settle(part, COMPLETE)
            assert set(results.values()) == {ACCEPTED}
        done += len(found)
    link = into._line.link
    kept = [len(value) for value in vars(link).values() if isinstance(value, set | dict | list | bytearray)]
    kept += [len(value) for value in vars(into).values() if isinstance(value, set | dict | list)]
    assert max(kept) < 50, kept


async def test_an_idle_link_that_the_service_detached_can_be_reopened(
    client: ServiceBusClient, receiver: Open, namespace: NamespaceHandle, queue: str
) -> None:
    into = await receiver(queue)
    namespace.idle_detach_after(0.2)
    try:
        with pytest.raises(IdleDetachedError, match=queue):
            await into.receive(10, 30)
    finally:
        namespace.idle_detach_after(600)
    assert into.broken
    again = await receiver(queue)
    assert await again.receive(1, 0.05) == []


async def test_a_connection_cut_during_a_long_poll_raises_at_once(
    receiver: Open, namespace: NamespaceHandle, queue: str
) -> None:
    into = await receiver(queue)
    waiting = asyncio.create_task(into.receive(10, 60))
    await asyncio.sleep(0)
    namespace.cut(queue)
    with pytest.raises(ServiceBusError):
        await asyncio.wait_for(waiting, 10)


async def test_deferred_messages_are_found_by_peeking_and_taken_by_number(
    sender: Open, receiver: Open, namespace: NamespaceHandle, queue: str
) -> None:
    await fill(sender, queue, 4)
    into = await receiver(queue)
    found = await into.receive(2, 10)
    await into.settle(found, DEFER)
    peeked = await into.peek(0, 100)
    assert [one.state for one in peeked] == ["deferred", "deferred", "active", "active"]
    assert [decode_message(one.payload).message_id for one in peeked] == ["m0", "m1", "m2", "m3"]
    numbers = [one.sequence_number for one in peeked if one.state == "deferred"]
    taken = await into.receive_deferred(numbers)
    assert [decode_message(one.payload).message_id for one in taken] == ["m0", "m1"]
    tokens = [one.lock_token for one in taken]
    assert all(until > time.time() for until in await into.renew_locks(tokens))
    await into.settle_deferred(tokens, COMPLETE)
    assert namespace.counts(queue) == {"active": 2, "deferred": 0, "scheduled": 0, "locked": 0}
    assert await into.peek(peeked[-1].sequence_number + 1, 10) == []


async def test_a_lost_lock_fails_the_management_call_and_leaves_the_link_alive(
    sender: Open, receiver: Open, namespace: NamespaceHandle, queue: str
) -> None:
    await fill(sender, queue, 1)
    into = await receiver(queue)
    (found,) = await into.receive(1, 10)
    namespace.expire_locks(queue)
    with pytest.raises(MessageLockLostError):
        await into.renew_locks([found.lock_token])
    assert not into.broken
    assert len(await into.receive(1, 10)) == 1


async def test_locks_can_be_renewed_while_a_receive_waits(
    sender: Open, receiver: Open, namespace: NamespaceHandle, queue: str
) -> None:
    await fill(sender, queue, 1)
    into = await receiver(queue)
    (found,) = await into.receive(1, 10)
    waiting = asyncio.create_task(into.receive(1, 60))
    await asyncio.sleep(0)
    await into.renew_locks([found.lock_token])
    assert not waiting.done()
    assert set((await into.settle([found], ABANDON)).values()) == {ACCEPTED}
    assert len(await asyncio.wait_for(waiting, 30)) == 1


async def test_the_management_node_works_beyond_its_first_credit(receiver: Open, queue: str) -> None:
    into = await receiver(queue)
    await into.peek(0, 1)
    pair = into._management._pair.links
    pair._response_link.current_link_credit = 101
    for _ in range(5):
        await into.peek(0, 1)
    assert pair._response_link.current_link_credit > 1000
    assert len(pair._response_link._received_delivery_tags) == 0


async def test_an_idle_management_node_that_was_detached_is_attached_again(
    receiver: Open, namespace: NamespaceHandle, queue: str
) -> None:
    into = await receiver(queue)
    await into.peek(0, 1)
    namespace.idle_detach_after(1.0)
    try:
        async with asyncio.timeout(20):
            while into._management._pair is not None:
                await into.receive(1, 0.05)  # keeps the link itself in use
    finally:
        namespace.idle_detach_after(600)
    assert await into.peek(0, 1) == []
    assert not into.broken


async def test_a_management_call_into_a_black_hole_ends_at_the_deadline(
    client: ServiceBusClient, namespace: NamespaceHandle, queue: str
) -> None:
    with namespace.fault(BlackHole(after="attach"), queue):
        into = RawReceiver(client, queue, timeout=0.5)
        await into.open()
        async with ticking() as clock:
            begun = clock.now()
            with pytest.raises(TimeoutError, match="peek-message was not answered within"):
                await into.peek(0, 1)
            assert clock.now() - begun < 1.4
        await into.close()


async def test_a_close_gives_back_what_was_not_settled(
    sender: Open, receiver: Open, namespace: NamespaceHandle, queue: str
) -> None:
    await fill(sender, queue, 30)
    into = await receiver(queue, prefetch=10)
    assert await into.receive(5, 10)
    await into.close()
    await_that(lambda: namespace.counts(queue)["locked"] == 0)
    assert namespace.counts(queue)["active"] == 30


def test_ranges_are_runs_without_gaps_and_never_go_round() -> None:
    assert ranges([]) == []
    assert ranges([3, 1, 2, 7, 9, 8, 8]) == [(1, 3), (7, 9)]
    assert ranges([0xFFFF_FFFE, 0xFFFF_FFFF, 0, 1]) == [(0, 1), (0xFFFF_FFFE, 0xFFFF_FFFF)]


def test_the_peers_ranges_may_go_round_and_may_be_absurd() -> None:
    known = {0xFFFF_FFFF: "a", 0: "b", 5: "c"}
    assert sorted(named_ids(0xFFFF_FFFE, 1, known)) == [0, 0xFFFF_FFFF]
    assert sorted(named_ids(0, 0xFFFF_FFFF, known)) == [0, 5, 0xFFFF_FFFF]
    assert named_ids(5, None, known) == [5]
    assert named_ids(6, None, known) == []
    assert (signed((2 - 0xFFFF_FFFF) & 0xFFFF_FFFF), signed((0xFFFF_FFFF - 2) & 0xFFFF_FFFF)) == (3, -3)


async def test_a_client_that_was_closed_leaves_no_credit_and_says_so(client: ServiceBusClient, queue: str) -> None:
    """It takes the link away, and for a moment nothing else tells of it."""
    receiver = RawReceiver(client, queue)
    assert not receiver.owed, "it was not opened"
    await receiver.open()
    await receiver.receive(1, 0.05)
    await receiver._line._handler.close_async()
    assert not receiver.owed
    with pytest.raises(ClosedError):
        await receiver.pause()
    await receiver.close()
