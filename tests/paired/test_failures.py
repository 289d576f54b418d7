"""Every row of the table of failures: what the broker does wrong, and what the sender then does about it.

The SDK and the network are real; the clock moves only when the sender waits.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from spark_sb_sink.broker import BrokerProcess, NamespaceHandle
from spark_sb_sink.broker.faults import (
    BlackHole,
    Busy,
    CbsAnswer,
    CutMidBatch,
    Fault,
    FullQuota,
    LoseAck,
    Refuse,
    Reject,
    Shape,
)
from spark_sb_sink.failover import Health
from spark_sb_sink.transport import Side
from tests.paired.support import messages
from tests.paired.two_sides import TwoSides, two_sides

INTERVALS = pytest.mark.parametrize("interval", [0.0, 2.0, 60.0])
DEADLINE = 20.0
"""What a call that is cut off costs by the fake clock; by the real one it is two seconds."""

Deed = Callable[[NamespaceHandle, str], object]


@dataclass(frozen=True)
class Trouble:
    """What is done to the primary, how it is mended, and which word the sender has for it."""

    begin: Deed
    word: str
    end: Deed = lambda primary, entity: primary.undo()
    deadline: bool = False
    """It never answers, so that each attempt takes a whole deadline."""
    opening: bool = False
    """Only who opens a link meets it."""


def of_namespace(fault: Fault, word: str, **more: bool) -> Trouble:
    return Trouble(lambda primary, entity: primary.hang(fault), word, **more)


def of_entity(fault: Fault, word: str, **more: bool) -> Trouble:
    return Trouble(lambda primary, entity: primary.hang(fault, entity), word, **more)


def rejecting(condition: str, word: str = "service error", *, info: bool = True) -> Trouble:
    return of_entity(Reject(condition=condition, description="not now", info=info), word)


ENTITY_FAULTS = {
    "stopped": Trouble(lambda p, _: p.stop(), "connection lost", lambda p, _: p.start()),
    "refused": of_namespace(Refuse(), "connection lost"),
    "refused at its attach": of_entity(Refuse(), "connection lost"),
    "cut in mid-batch": of_entity(CutMidBatch(), "connection lost"),
    "black hole before SASL": of_namespace(BlackHole(after="accept"), "deadline", deadline=True),
    "black hole after the attach": of_namespace(BlackHole(after="attach"), "deadline", deadline=True),
    "slower than the deadline": of_namespace(Shape(latency=30.0), "deadline", deadline=True),
    "internal error": rejecting("amqp:internal-error"),
    "internal error without info": rejecting("amqp:internal-error", info=False),
    "internal error at the attach": of_entity(
        Reject("amqp:internal-error", at="attach"), "service error", opening=True
    ),
    "operation cancelled": rejecting("com.microsoft:operation-cancelled"),
    "container close": rejecting("com.microsoft:container-close"),
    "container close without info": rejecting("com.microsoft:container-close", info=False),
    "timeout": rejecting("com.microsoft:timeout", "timed out"),
    "an error that nobody knows": rejecting("com.example:new"),
    "deleted": Trouble(lambda p, e: p.delete(e), "entity gone", lambda p, e: p.create_queue(e)),
    "disabled": Trouble(lambda p, e: p.disable(e), "disabled", lambda p, e: p.enable(e)),
    "full": of_entity(FullQuota(), "quota exceeded"),
    "$cbs 500": of_namespace(CbsAnswer(status=500), "token not taken", opening=True),
    "$cbs 503": of_entity(CbsAnswer(status=503), "token not taken", opening=True),
    "$cbs 404": of_entity(CbsAnswer(status=404), "entity gone", opening=True),
}


@INTERVALS
@pytest.mark.parametrize("name", ENTITY_FAULTS)
async def test_an_entity_fault_diverts_once_the_interval_is_over_loses_nothing_and_comes_back(
    broker: BrokerProcess, tmp_path: Path, name: str, interval: float
) -> None:
    trouble = ENTITY_FAULTS[name]
    async with two_sides(broker, tmp_path, interval=interval, timeout=2.0 if trouble.deadline else 10.0) as sides:
        rig, clock = sides.rig, sides.rig.clock
        assert (await rig.send(messages(1), sides.entity)).primary == 1
        if trouble.deadline:
            clock.on_sleep = lambda seconds: setattr(clock, "time", clock.time + DEADLINE)
        trouble.begin(sides.primary, sides.entity)
        if trouble.opening:
            await rig.links.drop(Side.PRIMARY)
        report = await rig.send(messages(50, start=1), sides.entity)

        assert (report.primary, report.backlog, report.total) == (0, 50, 50)
        assert sides.in_backlog() == Counter(f"m{n}" for n in range(1, 51))
        assert sides.at_primary() == Counter(["m0"])
        assert {change.reason.split(":")[0] for change in report.changes} == {trouble.word}
        if interval:
            suspect, diverted = report.changes
            assert (suspect.after, diverted.after) == (Health.SUSPECT, Health.FAILED_OVER)
            waited = diverted.at - suspect.at
            late = DEADLINE if trouble.deadline else 0.001
            assert interval <= waited + 0.001 <= interval + late + 0.001
        else:
            assert [change.after for change in report.changes] == [Health.FAILED_OVER]

        clock.on_sleep = lambda seconds: None
        trouble.end(sides.primary, sides.entity)
        clock.time += 60
        assert await rig.pinger.ping(sides.entity)
        assert rig.board.view(sides.entity).health is Health.PROBATION
        report = await rig.send(messages(10, start=51), sides.entity)
        assert (report.primary, report.backlog) == (10, 0)
        assert rig.board.view(sides.entity).health is Health.HEALTHY


@INTERVALS
async def test_a_lost_acknowledgement_diverts_under_the_same_ids(
    broker: BrokerProcess, tmp_path: Path, interval: float
) -> None:
    async with two_sides(broker, tmp_path, interval=interval) as sides:
        sides.primary.hang(LoseAck(), sides.entity)
        report = await sides.rig.send(messages(20), sides.entity)
        assert (report.primary, report.backlog) == (0, 20)
        assert sides.in_backlog() == Counter(f"m{n}" for n in range(20))
        assert set(sides.at_primary()) == set(sides.in_backlog())


async def test_a_fault_of_one_entity_does_not_touch_another(broker: BrokerProcess, tmp_path: Path) -> None:
    async with two_sides(broker, tmp_path, interval=0.0) as sides:
        other = f"{sides.entity}-other"
        sides.primary.create_queue(other)
        sides.primary.hang(Refuse(), sides.entity)
        assert (await sides.rig.send(messages(5), sides.entity)).backlog == 5
        report = await sides.rig.send(messages(5), other)
        assert (report.primary, report.backlog, report.changes) == (5, 0, ())


# Throttled


@INTERVALS
async def test_server_busy_for_an_hour_is_waited_for_and_never_diverts(
    broker: BrokerProcess, tmp_path: Path, interval: float
) -> None:
    async with two_sides(broker, tmp_path, interval=interval) as sides:
        clock = sides.rig.clock
        sides.primary.hang(Busy(description="Not now."), sides.entity)
        clock.on_sleep = lambda seconds: sides.primary.undo() if clock.now() >= 1000 + 3600 else None
        report = await sides.rig.send(messages(5), sides.entity)
        assert (report.primary, report.backlog, report.changes) == (5, 0, ())
        assert clock.waited == [10.0] * 360
        assert sides.at_primary() == Counter(f"m{n}" for n in range(5))
        assert not sides.in_backlog()


async def test_sends_resume_ten_seconds_after_the_service_was_busy(broker: BrokerProcess, tmp_path: Path) -> None:
    async with two_sides(broker, tmp_path, interval=0.0) as sides:
        sides.primary.hang(Busy(count=5), sides.entity)  # the first transfer, and no more
        report = await sides.rig.send(messages(5), sides.entity)
        assert (report.primary, report.transfers, sides.rig.clock.waited) == (5, 2, [10.0])


async def test_a_longer_wait_is_kept_when_the_service_asks_for_it(broker: BrokerProcess, tmp_path: Path) -> None:
    async with two_sides(broker, tmp_path, interval=0.0) as sides:
        sides.primary.hang(Busy(count=1, description="Throttled. Please wait 25 seconds and try again."), sides.entity)
        report = await sides.rig.send(messages(1), sides.entity)
        assert (report.primary, sides.rig.clock.waited) == (1, [25.0])


async def test_a_busy_backlog_queue_is_passed_over_and_stays_in_the_rotation(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    async with two_sides(broker, tmp_path, interval=0.0) as sides:
        await _divert(sides)
        first = sides.kept_queue()
        sides.secondary.hang(Busy(), first)
        report = await sides.rig.send(messages(10, start=1), sides.entity)
        assert report.backlog == 10
        assert sides.kept_queue() != first
        assert [each for each, what in sides.secondary.tally(first).items() if what.get("accepted")] == ["m0"]
        assert sides.queues_out() == []
        assert 10.0 not in sides.rig.clock.waited


async def test_when_all_backlog_queues_are_busy_it_waits_and_none_is_taken_out(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    async with two_sides(broker, tmp_path, interval=0.0) as sides:
        await _divert(sides)
        sides.secondary.hang(Busy())
        sides.rig.clock.on_sleep = lambda seconds: sides.secondary.undo()
        sides.rig.clock.waited.clear()
        report = await sides.rig.send(messages(10, start=1), sides.entity)
        assert (report.backlog, report.overflow) == (10, ())
        assert sides.rig.clock.waited == [10.0]
        assert sides.queues_out() == []


async def test_a_failed_backlog_queue_is_taken_out_and_another_is_used(broker: BrokerProcess, tmp_path: Path) -> None:
    async with two_sides(broker, tmp_path, interval=0.0) as sides:
        await _divert(sides)
        first = sides.kept_queue()
        sides.secondary.hang(Refuse(), first)
        report = await sides.rig.send(messages(10, start=1), sides.entity)
        assert report.backlog == 10
        assert sides.queues_out() == [first]
        sides.rig.clock.time += 61
        assert sides.queues_out() == []


async def test_a_missing_backlog_queue_is_out_and_no_message_is_blamed(broker: BrokerProcess, tmp_path: Path) -> None:
    async with two_sides(broker, tmp_path, interval=0.0) as sides:
        for queue in sides.backlog_queues:
            sides.secondary.delete(queue)
        sides.primary.hang(Refuse(), sides.entity)
        report = await sides.rig.send(messages(4), sides.entity)
        assert [one.message for one in report.overflow] == messages(4)
        assert report.rejected == ()
        assert all(queue in str(report.all_out) for queue in sides.backlog_queues)


async def _divert(sides: TwoSides) -> None:
    sides.primary.hang(Refuse(), sides.entity)
    assert (await sides.rig.send(messages(1), sides.entity)).backlog == 1


# Stale links


@INTERVALS
@pytest.mark.parametrize(
    "happen",
    [
        lambda primary, entity: primary.cut(),
        lambda primary, entity: primary.hang(CutMidBatch(count=1), entity),
    ],
    ids=["cut while idle", "cut when it is used"],
)
async def test_the_first_fault_on_a_link_idle_for_over_a_minute_is_tried_again_at_once(
    broker: BrokerProcess, tmp_path: Path, happen: Deed, interval: float
) -> None:
    async with two_sides(broker, tmp_path, interval=interval) as sides:
        await sides.rig.send(messages(1), sides.entity)
        sides.rig.clock.time += 61
        happen(sides.primary, sides.entity)
        report = await sides.rig.send(messages(3, start=1), sides.entity)
        assert (report.primary, report.backlog, report.changes) == (3, 0, ())
        assert sides.rig.clock.waited == []
        assert sides.at_primary() == Counter(f"m{n}" for n in range(4))


async def test_a_second_fault_after_an_idle_link_counts(broker: BrokerProcess, tmp_path: Path) -> None:
    async with two_sides(broker, tmp_path, interval=0.0) as sides:
        await sides.rig.send(messages(1), sides.entity)
        sides.rig.clock.time += 61
        sides.primary.hang(CutMidBatch(count=2), sides.entity)
        assert (await sides.rig.send(messages(3, start=1), sides.entity)).backlog == 3


async def test_the_first_fault_on_a_link_used_within_the_minute_counts(broker: BrokerProcess, tmp_path: Path) -> None:
    async with two_sides(broker, tmp_path, interval=0.0) as sides:
        await sides.rig.send(messages(1), sides.entity)
        sides.rig.clock.time += 59
        sides.primary.hang(CutMidBatch(count=1), sides.entity)
        assert (await sides.rig.send(messages(3, start=1), sides.entity)).backlog == 3
