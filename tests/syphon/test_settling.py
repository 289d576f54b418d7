"""Settlements: over the link that brought a message, and where that is not possible by its lock token."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from spark_sb_sink.broker.faults import Busy
from spark_sb_sink.errors import ClosedError
from spark_sb_sink.syphon.restore import Item
from spark_sb_sink.syphon.settle import RENEW_AFTER
from spark_sb_sink.wire import COMPLETE, Outcome, RawDelivery, RawReceiver, Settled, SettleResult
from tests.paired.ground import MovableClock
from tests.syphon.field import Field


def test_what_a_link_raises_is_no_end_the_lock_token_settles_it(field: Field, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, raised = RawReceiver.settle, list[bool]()

    async def fails_once(receiver: RawReceiver, *args: Any) -> Any:
        if not raised:
            raised.append(True)
            raise ClosedError("The link")
        return await plain(receiver, *args)

    monkeypatch.setattr(RawReceiver, "settle", fails_once)
    entity, drain = field.entity(), field.drain()
    field.backlog_for(entity, 20)
    report = field.until_empty(drain, within=20)  # a lock lasts for a minute
    assert raised
    assert sum(receipt.moved for receipt in report.receipts) == 20
    assert set(field.taken(entity).values()) == {1}


def test_a_settlement_whose_answer_was_lost_is_unconfirmed_and_no_lost_lock(
    field: Field, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = RawReceiver.settle

    async def unheard(receiver: RawReceiver, deliveries: Sequence[RawDelivery], outcome: Outcome) -> Any:
        deliveries = list(deliveries)
        await plain(receiver, deliveries, outcome)
        return {delivery.delivery_id: SettleResult(Settled.UNKNOWN) for delivery in deliveries}

    monkeypatch.setattr(RawReceiver, "settle", unheard)
    entity, drain = field.entity(), field.drain()
    field.backlog_for(entity, 2000)
    report = field.until_empty(drain)
    assert (report.moved, report.total("lost_locks"), report.total("unconfirmed")) == (0, 0, 2000)
    # Where all of a request are gone, it is not halved down to each of them.
    assert int(field.secondary.counters(field.queue(0))["management"]) < 500


def test_many_locks_that_were_lost_at_once_are_not_asked_after_one_by_one(field: Field) -> None:
    entity, clock = field.entity(), MovableClock()
    drain = field.drain(clock=clock)
    field.primary.hang(Busy(count=1, description="Please wait 60 seconds."), entity)
    field.backlog_for(entity, 500)
    held = drain.queues[0].settler.held

    def moves() -> bool:
        if not clock.ahead and drain._shared.busy(entity) and len(held) == 500:
            field.secondary.expire_locks(field.queue(0))
            clock.ahead = RENEW_AFTER + 5
        elif clock.ahead == RENEW_AFTER + 5 and sum(item.lost for item in list(held)) == 500:
            clock.ahead += 60
        return field.empty()()

    report = drain.run(60, until=moves)
    assert field.empty()()
    assert field.accepted(entity) == report.moved == 500, "what had been lost was not sent by who had lost it"
    assert report.total("lost_locks") == 500
    assert int(field.secondary.counters(field.queue(0))["management"]) < 100


def test_a_delivery_is_settled_over_the_link_that_brought_it(field: Field) -> None:
    """Delivery ids begin anew with each link: those of two links are the same numbers."""
    entity, drain = field.entity(), field.drain()
    field.backlog_for(entity, 4)
    [queue] = drain.queues

    async def settle_half_of_each() -> list[list[int]]:
        receivers = [drain.factory.receiver(field.queue(0)) for _ in range(2)]
        found: list[list[Item]] = []
        for receiver in receivers:
            await receiver.open()
            deliveries = await receiver.receive(2, 10)
            items = [queue.item(each.payload, each.tag, 0) for each in deliveries]
            for item, delivery in zip(items, deliveries, strict=True):
                item.delivery, item.brought_by = delivery, receiver
            queue.settler.hold(items)
            found.append(items)
        await queue.settler.settle([found[0][0], found[1][1]], COMPLETE)
        ids = [[item.delivery.delivery_id for item in items if item.delivery] for items in found]
        for receiver in receivers:
            await receiver.close()
        return ids

    first, second = drain.factory.run(settle_half_of_each())
    assert first == second, "the numbers are not the same, and this shows nothing"
    tally = field.secondary.tally(field.queue(0))
    completed = [what.get("completed", 0) for _, what in sorted(tally.items())]
    assert completed == [1, 0, 0, 1], tally


def test_a_queue_that_is_closed_tells_of_what_was_being_settled(field: Field, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its receipts are taken next: what is noted later stands nowhere."""
    entity, drain = field.entity(), field.drain()
    field.backlog_for(entity, 3)
    [queue] = drain.queues
    begun, closed = asyncio.Event(), asyncio.Event()
    plain = queue.intake.close

    async def close() -> None:
        await plain()
        closed.set()

    async def answered_late() -> None:
        begun.set()
        await closed.wait()

    async def close_amid_a_settlement() -> int:
        receiver = drain.factory.receiver(field.queue(0))
        await receiver.open()
        items = [queue.item(each.payload, each.tag, 0) for each in await receiver.receive(3, 10)]
        queue.settler.hold(items)
        queue.settler.settle_soon(items, COMPLETE, first=answered_late)
        await begun.wait()
        await queue.close()
        left = len(queue.settler.held)
        await receiver.close()
        return left

    monkeypatch.setattr(queue.intake, "close", close)
    assert drain.factory.run(close_amid_a_settlement()) == 0
    told = drain.untold()
    assert told.moved + told.total("unconfirmed") == 3
