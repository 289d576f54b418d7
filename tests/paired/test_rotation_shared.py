"""The backlog queues of one executor: what one process learns of a queue, all its processes know."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_sb_sink.amqp import decode_message
from spark_sb_sink.broker import BrokerProcess, Busy, Refuse, Reject
from spark_sb_sink.factory import PairedFactory
from tests.conftest import await_that
from tests.paired.ground import Ground, MovableClock, some


@pytest.fixture
def ground(broker: BrokerProcess, tmp_path: Path) -> Iterator[Ground]:
    with Ground(broker, tmp_path) as ground:
        yield ground


def kept(factory: PairedFactory, entity: str) -> int:
    [queue] = [keep.queue for keep in factory.board.snapshot().kept if keep.entity == entity]
    return queue


def out(factory: PairedFactory) -> set[int]:
    snapshot = factory.board.snapshot()
    return {queue.queue for queue in snapshot.queues if queue.is_out(snapshot.at)}


def strikes(ground: Ground, fault: int) -> int:
    [left] = [hung["left"] for hung in ground.secondary.faults() if hung["id"] == fault]
    return 1000 - int(left)


def accepted(ground: Ground, queue: int) -> int:
    return sum(what.get("accepted", 0) for what in ground.secondary.tally(ground.queue(queue)).values())


LONG = {"ping_interval": "30m", "backlog_cooldown": "60m"}


def test_a_failed_queue_leaves_the_rotation_for_all_processes(ground: Ground) -> None:
    workers = [ground.worker(**LONG, backlog_queue_count=3) for _ in range(3)]
    factory = ground.factory(**LONG, backlog_queue_count=3)
    entity, other = ground.entities(2)
    ground.primary.hang(Refuse())
    assert workers[0].send(entity).backlog == 1
    failed = kept(factory, entity)
    fault = ground.secondary.hang(Reject(count=1000), ground.queue(failed))
    assert workers[0].send(entity).backlog == 1
    assert out(factory) == {failed}
    assert strikes(ground, fault) == 1
    for worker in workers:
        assert worker.send(entity, 10).backlog == 10
        assert worker.send(other, 10).backlog == 10
    assert strikes(ground, fault) == 1, "a process tried the queue that is out"
    assert accepted(ground, failed) == 1
    assert failed not in (kept(factory, entity), kept(factory, other))


def test_a_failed_queue_returns_after_its_cooldown_for_all_processes(ground: Ground) -> None:
    settings = {"ping_interval": "30m", "backlog_cooldown": "1s"}
    first, second = (ground.worker(**settings) for _ in range(2))
    factory = ground.factory(**settings)
    entity = ground.entity()
    ground.primary.hang(Refuse())
    first.send(entity)
    failed = kept(factory, entity)
    fault = ground.secondary.hang(Reject(), ground.queue(failed))
    assert first.send(entity).backlog == 1
    taken = kept(factory, entity)
    assert taken != failed
    ground.secondary.undo(fault)
    await_that(lambda: not out(factory))
    assert second.send(entity).backlog == 1
    assert kept(factory, entity) == taken, "it keeps its queue while that is well"
    ground.secondary.hang(Reject(), ground.queue(taken))
    assert second.send(entity).backlog == 1
    assert kept(factory, entity) == failed
    assert accepted(ground, failed) == 2


def test_all_queues_out_gives_one_error_with_the_last_one_of_each(ground: Ground) -> None:
    factory = ground.factory(**LONG, backlog_queue_count=3)
    entity, other = ground.entities(2)
    ground.primary.hang(Refuse())
    faults = [
        ground.secondary.hang(Reject(description=f"trouble {number}", count=1000), ground.queue(number))
        for number in range(3)
    ]
    sent = some(5)
    report = factory.send({entity: sent})[entity]
    assert [one.message for one in report.overflow] == sent
    assert (report.backlog, report.error, report.total) == (0, None, 5)
    for text in (f"{ground.queue(number)}" for number in range(3)):
        assert text in str(report.all_out)
    for text in ("trouble 0", "trouble 1", "trouble 2", ground.secondary.endpoint, entity):
        assert text in str(report.all_out)
    attempts = [strikes(ground, fault) for fault in faults]
    again = factory.send({other: some(2)})[other]
    assert len(again.overflow) == 2
    assert "trouble 1" in str(again.all_out)
    assert [strikes(ground, fault) for fault in faults] == attempts, "a queue that is out was tried"


def test_all_queues_out_is_over_when_the_first_comes_back(ground: Ground) -> None:
    clock = MovableClock()
    factory = ground.factory(clock=clock, **LONG)
    entity = ground.entity()
    ground.primary.hang(Refuse())
    fault = ground.secondary.hang(Refuse())
    assert len(factory.send({entity: some(1)})[entity].overflow) == 1
    ground.secondary.undo(fault)
    assert len(factory.send({entity: some(1)})[entity].overflow) == 1
    clock.ahead += 3600
    assert factory.send({entity: some(1)})[entity].backlog == 1


def test_a_bad_message_empties_no_rotation(ground: Ground) -> None:
    worker = ground.worker(**LONG)
    factory = ground.factory(**LONG)
    entity = ground.entity()
    ground.primary.hang(Refuse())
    assert worker.send(entity).backlog == 1
    fault = ground.secondary.hang(Reject(condition="amqp:not-allowed", description="no such thing"))
    sent = some(5)
    report = factory.send({entity: sent})[entity]
    assert [one.message for one in report.overflow] == sent
    assert all("no such thing" in one.reason for one in report.overflow)
    assert (report.rejected, report.all_out, report.total) == ((), None, 5)
    assert out(factory) == set()
    ground.secondary.undo(fault)
    queue = kept(factory, entity)
    assert worker.send(entity, 2).backlog == 2
    assert kept(factory, entity) == queue


def test_a_throttled_queue_is_passed_over_and_stays_in_the_rotation(ground: Ground) -> None:
    worker = ground.worker(**LONG)
    factory = ground.factory(**LONG)
    entity = ground.entity()
    ground.primary.hang(Refuse())
    assert factory.send({entity: some(1)})[entity].backlog == 1
    throttled = kept(factory, entity)
    # Who would wait, as for an entity, waits longer than anybody here for a report.
    fault = ground.secondary.hang(Busy(description="Please wait 500 seconds and try again."), ground.queue(throttled))
    assert factory.submit(_send(factory, entity, some(3))).result(60) == 3
    assert worker.send(entity, 3).backlog == 3
    assert out(factory) == set()
    assert accepted(ground, throttled) == 1
    assert accepted(ground, 1 - throttled) == 6
    ground.secondary.undo(fault)
    ground.secondary.hang(Reject(), ground.queue(1 - throttled))
    assert worker.send(entity).backlog == 1
    assert accepted(ground, throttled) == 2


def test_when_all_queues_throttle_it_waits_and_none_is_out(ground: Ground) -> None:
    clock = MovableClock()
    factory = ground.factory(clock=clock, **LONG)
    entity = ground.entity()
    ground.primary.hang(Refuse())
    factory.send({entity: some(1)})
    faults = [ground.secondary.hang(Busy(count=1000), ground.queue(number)) for number in range(2)]
    sent = some(2)
    begun = factory.submit(_send(factory, entity, sent))
    await_that(lambda: strikes(ground, faults[0]) and strikes(ground, faults[1]))
    for fault in faults:
        ground.secondary.undo(fault)
    assert not begun.done()
    assert out(factory) == set()

    def come_back() -> bool:
        clock.ahead += 1
        return begun.done()

    await_that(come_back)
    assert begun.result() == 2
    assert {str(decode_message(message).message_id) for message in sent} <= set(ground.backlog())


async def _send(factory: PairedFactory, entity: str, messages: list[bytes]) -> int:
    sender = factory.sender(entity)
    await sender.send(messages)
    return sender.report().backlog
