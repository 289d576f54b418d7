"""How diverted entities are asked whether they take messages again: by one for all, without anybody waiting for it."""

import asyncio
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient

from spark_sb_sink.amqp import Symbol, decode_message, encode_message
from spark_sb_sink.board import Board
from spark_sb_sink.broker import BlackHole, BrokerProcess, Busy, FullQuota, LoseAck, Refuse, Reject
from spark_sb_sink.factory import PairedFactory
from spark_sb_sink.failover import Health, SendFailed
from spark_sb_sink.pings import CONTENT_TYPE, ping_message
from spark_sb_sink.reports import EntityReport
from spark_sb_sink.transport import MemoryLink, MemoryTransport, Side
from tests.conftest import await_that
from tests.paired.ground import CALM, Ground, MovableClock, await_health, health, some
from tests.paired.support import Rig

KINDS = ["message", "link"]


@pytest.fixture
def ground(broker: BrokerProcess, tmp_path: Path) -> Iterator[Ground]:
    with Ground(broker, tmp_path) as ground:
        yield ground


def rejected(ground: Ground, entity: str) -> int:
    return int(ground.primary.counters(entity)["events"].get("rejected", 0))


def strikes(ground: Ground, fault: int) -> int:
    """How often a fault with a count of a thousand has struck."""
    [left] = [hung["left"] for hung in ground.primary.faults() if hung["id"] == fault]
    return 1000 - int(left)


def divert(factory: PairedFactory, *entities: str) -> None:
    """The board learns of a fault in an executor that has an interval of zero."""
    for entity in entities:
        factory.board.record(entity, SendFailed(factory.board.view(entity).epoch, "out"))
        assert health(factory, entity) is Health.FAILED_OVER


# One for all


def test_three_processes_on_a_board_send_one_ping_an_interval(ground: Ground) -> None:
    workers = [ground.worker(ping_interval="2s") for _ in range(3)]
    entity = ground.entity()
    ground.primary.hang(LoseAck(), entity)  # takes the ping, bills it, and never says so
    assert [worker.send(entity).backlog for worker in workers] == [1, 1, 1]
    begun, at_first = time.monotonic(), ground.pings(entity)
    await_that(lambda: ground.pings(entity) >= at_first + 3)
    assert all(worker.send(entity).backlog == 1 for worker in workers)
    pings, elapsed = ground.pings(entity) - at_first, time.monotonic() - begun
    assert pings <= elapsed / 2.0 + 1


def test_three_processes_on_a_board_attach_one_link_an_interval(ground: Ground) -> None:
    workers = [ground.worker(ping_interval="2s", ping="link") for _ in range(3)]
    entity = ground.entity()
    fault = ground.primary.hang(Reject(at="attach", count=1000), entity)
    assert [worker.send(entity).backlog for worker in workers] == [1, 1, 1]
    begun, at_first = time.monotonic(), strikes(ground, fault)
    await_that(lambda: strikes(ground, fault) >= at_first + 3)
    attaches, elapsed = strikes(ground, fault) - at_first, time.monotonic() - begun
    assert attaches <= elapsed / 2.0 + 1
    assert ground.primary.counters(entity)["operations"] == 0


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_ping_every_process_sends_to_the_primary_at_once_and_pings_stop(ground: Ground, kind: str) -> None:
    workers = [ground.worker(ping=kind) for _ in range(3)]
    entity, still_out = ground.entities(2)
    factory = ground.factory(ping=kind)
    fault = ground.primary.hang(Refuse(), entity)
    lasting = ground.primary.hang(Reject(at="attach", count=1000), still_out)
    assert [worker.send(one).backlog for one in (entity, still_out) for worker in workers] == [1] * 6
    ground.primary.undo(fault)
    await_health(factory, entity, Health.PROBATION)
    for worker in workers:
        report = worker.send(entity)
        assert (report.primary, report.backlog) == (1, 0)
    assert health(factory, entity) is Health.HEALTHY
    pings, attempts = ground.pings(entity), strikes(ground, lasting)
    await_that(lambda: strikes(ground, lasting) >= attempts + 3)  # so pings go on, but not for this one
    assert ground.pings(entity) == pings == (1 if kind == "message" else 0)


def test_a_process_that_dies_with_the_turn_to_ping_keeps_nobody_from_it(ground: Ground) -> None:
    entity = ground.entity()
    dead = Board.for_executor(ground.folder, ground.options(failover_interval="0s"))
    dead.record(entity, SendFailed(0, "out"))
    await_that(lambda: dead.take_ping(entity) is not None)  # and nothing is ever heard of it
    dead.close()
    factory = ground.factory(failover_interval="0s")
    assert health(factory, entity) is Health.FAILED_OVER
    await_health(factory, entity, Health.PROBATION)


# What a ping says


def test_a_busy_ping_leaves_the_entity_failed_over_and_the_next_comes_later(ground: Ground) -> None:
    clock = MovableClock()
    factory = ground.factory(clock=clock)
    entity = ground.entity()
    fault = ground.divert(factory, entity, Refuse())
    busy = ground.primary.hang(Busy(), entity)
    ground.primary.undo(fault)
    await_that(lambda: rejected(ground, entity) == 1)
    await_that(lambda: (factory.board.view(entity).next_ping_at or 0) > clock.now() + 5)
    assert health(factory, entity) is Health.FAILED_OVER
    assert factory.send({entity: some(1)})[entity].backlog == 1
    ground.primary.undo(busy)
    clock.ahead += 10
    await_health(factory, entity, Health.PROBATION)


@pytest.mark.parametrize(
    "condition", ["amqp:not-allowed", "amqp:unauthorized-access"], ids=["as a bad message", "as unauthorised"]
)
def test_a_ping_that_is_refused_leaves_the_entity_failed_over_and_is_told(
    ground: Ground, condition: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = MovableClock()
    factory = ground.factory(clock=clock, ping_interval="30m")
    entity = ground.entity()
    fault = ground.divert(factory, entity, Refuse())
    refusal = ground.primary.hang(Reject(condition, "no pings here"), entity)
    ground.primary.undo(fault)
    for count in (1, 2):
        before = clock.now()
        clock.ahead += 1800
        await_that(lambda count=count: caplog.text.count("it cannot tell whether the entity is back") == count)  # type: ignore[misc]
        assert (factory.board.view(entity).next_ping_at or 0) > before + 1800, "it is asked again an interval later"
        assert health(factory, entity) is Health.FAILED_OVER
    assert "no pings here" in caplog.text
    assert factory.send({entity: some(1)})[entity].backlog == 1
    ground.primary.undo(refusal)
    clock.ahead += 1800
    await_health(factory, entity, Health.PROBATION)


def test_a_hint_diverts_nobody_for_a_ping_that_is_refused_as_a_bad_message(ground: Ground) -> None:
    factory = ground.factory(**CALM)
    entity = ground.entity()
    factory.send({entity: some(1)})
    ground.primary.hang(Reject("amqp:not-allowed", "no pings here", count=1), entity)
    factory.board.hint(entity)
    report = factory.send({entity: some(3)})[entity]
    assert (report.primary, report.backlog, report.changes) == (3, 0, ())
    assert rejected(ground, entity) == 1
    assert not factory.board.view(entity).doubted


def test_a_link_ping_sends_nothing(ground: Ground) -> None:
    factory = ground.factory(ping="link")
    entity = ground.entity()
    fault = ground.divert(factory, entity, Refuse())
    ground.primary.undo(fault)
    await_health(factory, entity, Health.PROBATION)
    counters = ground.primary.counters(entity)
    assert (counters["pings"], counters["sends"], counters["operations"]) == (0, 0, 0)
    assert factory.send({entity: some(3)})[entity].primary == 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_entity_that_takes_pings_does_not_flap(ground: Ground, kind: str) -> None:
    clock = MovableClock()
    factory = ground.factory(clock=clock, ping=kind, failover_interval="60m", ping_interval="30m")
    entity = ground.entity()
    factory.send({entity: some(1)})
    ground.primary.hang(FullQuota(), entity)
    found: list[EntityReport] = []
    call = threading.Thread(target=lambda: found.append(factory.send({entity: some(5)})[entity]))
    call.start()
    await_health(factory, entity, Health.SUSPECT)
    clock.ahead += 3600
    call.join(30)
    assert [change.after for change in found[0].changes] == [Health.SUSPECT, Health.FAILED_OVER]
    for _ in range(3):
        clock.ahead += 1800
        await_health(factory, entity, Health.PROBATION)
        attempts, mark = rejected(ground, entity), factory.board.mark()
        for _ in range(3):  # the interval is an hour: that it comes back at all says that none was waited for
            report = factory.send({entity: some(5)})[entity]
            assert (report.primary, report.backlog) == (0, 5)
        assert rejected(ground, entity) == attempts + 1
        assert [noted.change.after for noted in factory.board.changes_since(mark).noted] == [Health.FAILED_OVER]


def test_a_ping_is_taken_by_an_entity_that_requires_sessions(ground: Ground) -> None:
    factory = ground.factory()
    entity = ground.entity(requires_session=True)
    with ground.primary.fault(Refuse(), entity):
        one = encode_message(b"x", message_id="1", session_id="s")
        assert factory.send({entity: [one]})[entity].backlog == 1
    await_health(factory, entity, Health.PROBATION)
    assert ground.pings(entity) == 1
    assert factory.send({entity: [one]})[entity].primary == 1


def test_a_ping_never_reaches_a_consumer(ground: Ground) -> None:
    factory = ground.factory()
    entity = ground.entity()
    fault = ground.divert(factory, entity, LoseAck())
    await_that(lambda: ground.pings(entity) >= 2)
    ground.primary.undo(fault)
    await_health(factory, entity, Health.PROBATION)
    sent = some(3)
    factory.send({entity: sent})
    wanted = {str(decode_message(message).message_id) for message in sent}
    with (
        ServiceBusClient.from_connection_string(ground.primary.connection_string) as client,
        client.get_queue_receiver(entity) as receiver,
    ):
        received: list[Any] = []
        while not wanted <= {message.message_id for message in received}:
            received += receiver.receive_messages(100, max_wait_time=10)
        received += receiver.receive_messages(100, max_wait_time=0.5)
    assert all(message.content_type != CONTENT_TYPE for message in received)
    assert all(b"".join(message.body) for message in received)


def test_a_ping_is_an_empty_message_of_one_second_with_ids_of_its_own() -> None:
    first, second = (decode_message(ping_message(1_000)) for _ in range(2))
    for ping in (first, second):
        assert ping.content_type == Symbol("application/vnd.ms-servicebus-ping")
        assert ping.ttl_ms == 1000
        assert ping.body == ((0x75, b""),)
    ids = {first.message_id, second.message_id, first.session_id, second.session_id}
    assert len(ids) == 4
    assert None not in ids


# Nobody waits


@pytest.mark.parametrize("kind", KINDS)
def test_pings_that_hang_hold_up_neither_other_pings_nor_batches(ground: Ground, kind: str) -> None:
    factory = ground.factory(ping=kind, failover_interval="0s", send_timeout="5m")
    *holes, healed = sorted(ground.entities(6))
    for hole in holes:
        ground.primary.hang(BlackHole(), hole)
    divert(factory, *holes)
    await_that(lambda: ground.primary.overview()["connections"] >= len(holes))  # all of them wait for an answer
    divert(factory, healed)
    await_health(factory, healed, Health.PROBATION)
    reports = factory.send({entity: some(1) for entity in (*holes, healed)})
    assert [reports[hole].backlog for hole in holes] == [1] * len(holes)
    assert reports[healed].primary == 1


async def test_a_ping_ends_within_its_deadline_whatever_it_waits_for(tmp_path: Path) -> None:
    class Hanging(MemoryTransport):
        hangs = True

        async def open(self, side: Side, path: str) -> MemoryLink:
            if self.hangs:
                await asyncio.Event().wait()
            return await super().open(side, path)

    transport = Hanging()
    rig = Rig(tmp_path, transport, interval=0.0)
    rig.board.record("orders", SendFailed(0, "out"))
    rig.clock.time += 60
    pinger = replace(rig.pinger, deadline=0.2)
    assert await pinger.ping("orders")
    transport.hangs = False
    assert rig.board.view("orders").health is Health.FAILED_OVER
    rig.clock.time += 60
    assert await pinger.ping("orders")
    assert rig.board.view("orders").health is Health.PROBATION


def test_pings_go_on_after_the_board_could_not_be_read(ground: Ground, caplog: pytest.LogCaptureFixture) -> None:
    factory = ground.factory(failover_interval="0s")
    entity = ground.entity()
    hidden = factory.board.path.with_suffix(".hidden")
    factory.board.path.rename(hidden)
    factory.board.path.mkdir()
    await_that(lambda: "no pings for now" in caplog.text)
    factory.board.path.rmdir()
    hidden.rename(factory.board.path)
    divert(factory, entity)
    await_health(factory, entity, Health.PROBATION)
