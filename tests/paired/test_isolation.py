"""One entity of five fails; the other four do not notice, as the broker's journal tells."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest

from spark_sb_sink.amqp import decode_message
from spark_sb_sink.broker import BlackHole, BrokerProcess, FullQuota, Refuse
from spark_sb_sink.factory import PairedFactory
from spark_sb_sink.failover import Health
from spark_sb_sink.reports import EntityReport
from tests.conftest import await_that
from tests.paired.ground import Ground, await_health, some

CALM_FOR = 3.0
"""Seconds of the broker's time before the failure."""
NOTICEABLE = 5
"""A gap so many times as long as the longest elsewhere is a pause. A machine under load is not steady: elsewhere is the
same lane before the failure, and a lane of another factory, with a loop and a board of its own, at the same time."""


@pytest.fixture
def ground(broker: BrokerProcess, tmp_path: Path) -> Iterator[Ground]:
    with Ground(broker, tmp_path) as ground:
        yield ground


@dataclass
class Lane:
    """Sends a small batch to one entity every so often, until it is told to stop."""

    factory: PairedFactory
    entity: str
    stop: threading.Event
    sent: list[str] = field(default_factory=list)
    """The ids of all messages whose send has returned."""

    def begin(self) -> "Future[EntityReport]":
        return self.factory.submit(self._run())

    async def _run(self) -> EntityReport:
        sender = self.factory.sender(self.entity)
        while not self.stop.is_set():
            batch = some(2)
            await sender.send(batch)
            self.sent += [str(decode_message(message).message_id) for message in batch]
            await asyncio.sleep(0.03)
        return sender.report()


def brokers_time(ground: Ground) -> float:
    return float(ground.primary.call("POST", "/clock", {"advance": 0.0})["now"])


def accepted_at(ground: Ground, ids: list[str]) -> list[float]:
    """When the primary accepted one message of each batch."""
    return [entry.at for message in ids[::2] for entry in ground.primary.journal(message) if entry.what == "accepted"]


def longest_gap(times: list[float], begin: float, end: float) -> float:
    """The longest time from begin to end in which nothing was accepted."""
    return max(after - before for before, after in pairwise([begin, *(at for at in times if begin < at < end), end]))


def _refuse(ground: Ground, entity: str) -> Callable[[], None]:
    hung = ground.primary.hang(Refuse(), entity)
    return lambda: ground.primary.undo(hung)


def _black_hole(ground: Ground, entity: str) -> Callable[[], None]:
    hung = ground.primary.hang(BlackHole(), entity)
    return lambda: ground.primary.undo(hung)


def _black_hole_after_attach(ground: Ground, entity: str) -> Callable[[], None]:
    hung = ground.primary.hang(BlackHole(after="attach"), entity)
    return lambda: ground.primary.undo(hung)


def _disable(ground: Ground, entity: str) -> Callable[[], None]:
    ground.primary.disable(entity)
    return lambda: ground.primary.enable(entity)


def _full(ground: Ground, entity: str) -> Callable[[], None]:
    hung = ground.primary.hang(FullQuota(), entity)
    return lambda: ground.primary.undo(hung)


FAILURES = {
    "refused": _refuse,
    "black hole": _black_hole,
    "black hole after attach": _black_hole_after_attach,
    "disabled": _disable,
    "full": _full,
}


@pytest.mark.parametrize("fail", FAILURES.values(), ids=FAILURES.keys())
def test_one_of_five_is_diverted_after_the_interval_and_the_others_make_no_pause(
    ground: Ground, fail: Callable[[Ground, str], Callable[[], None]]
) -> None:
    factory = ground.factory(failover_interval="2s", send_timeout="5s")
    stop = threading.Event()
    failing, *others = lanes = [Lane(factory, entity, stop) for entity in ground.entities(5)]
    apart = Lane(ground.factory(failover_interval="3s", send_timeout="5s"), ground.entity(), stop)
    for lane in (*lanes, apart):
        lane.factory.send({lane.entity: some(1)})
    running = {lane.entity: lane.begin() for lane in (*lanes, apart)}
    calm = brokers_time(ground)
    await_that(lambda: brokers_time(ground) > calm + CALM_FOR)

    failed = brokers_time(ground)
    heal = fail(ground, failing.entity)
    await_health(factory, failing.entity, Health.FAILED_OVER)
    await_that(lambda: ground.backlogged() > 10)
    heal()
    before = ground.accepted(failing.entity)
    await_that(lambda: ground.accepted(failing.entity) > before + 10)
    ended = brokers_time(ground)
    stop.set()
    reports = {entity: lane.result(30) for entity, lane in running.items()}

    meanwhile = longest_gap(accepted_at(ground, apart.sent), failed, ended)
    for lane in others:
        report = reports[lane.entity]
        assert (report.primary, report.total, report.changes) == (len(lane.sent), len(lane.sent), ())
        times = accepted_at(ground, lane.sent)
        usual = longest_gap(times, calm, failed)
        assert longest_gap(times, failed, ended) <= NOTICEABLE * max(usual, meanwhile), "a pause"

    diverted = ground.backlog()
    assert set(diverted) <= set(failing.sent), "a healthy entity was diverted"
    since = [ground.secondary.journal(message)[0].at for message in diverted]
    assert min(since) >= failed + 2.0
    taken = {message for message, what in ground.primary.tally(failing.entity).items() if what.get("accepted")}
    assert set(failing.sent) <= taken | set(diverted)
    assert reports[failing.entity].total == len(failing.sent)


@pytest.mark.parametrize("fail", FAILURES.values(), ids=FAILURES.keys())
def test_within_one_call_a_failing_entity_does_not_hold_up_the_others(
    ground: Ground, fail: Callable[[Ground, str], Callable[[], None]]
) -> None:
    factory = ground.factory(failover_interval="60m", send_timeout="5s")  # it fails for as long as the test likes
    failing, *others = entities = ground.entities(5)
    factory.send({entity: some(1) for entity in entities})
    heal = fail(ground, failing)
    found: list[dict[str, EntityReport]] = []
    call = threading.Thread(target=lambda: found.append(factory.send({entity: some(10_000) for entity in entities})))
    call.start()
    await_that(lambda: all(ground.accepted(entity) == 10_001 for entity in others), within=120)
    await_health(factory, failing, Health.SUSPECT)
    assert call.is_alive()
    heal()
    call.join(120)
    [reports] = found
    assert all((reports[entity].primary, reports[entity].total) == (10_000, 10_000) for entity in entities)
    assert all(reports[entity].changes == () for entity in others)
    assert not ground.backlog()


def test_a_failing_entity_keeps_no_link_from_the_others_even_where_links_are_few(ground: Ground) -> None:
    factory = ground.factory(max_links=2, failover_interval="60m", send_timeout="5s")
    failing, *others = ground.entities(5)
    ground.primary.hang(BlackHole(), failing)
    begun = factory.submit(Lane(factory, failing, threading.Event())._run())
    await_health(factory, failing, Health.SUSPECT)
    reports = factory.send({entity: some(10) for entity in others})
    assert all((report.primary, report.changes) == (10, ()) for report in reports.values())
    begun.cancel()
