"""The factory of one process, with the real SDK: links opened side by side, kept, capped, forked, closed, faulted."""

import asyncio
import gc
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from spark_sb_sink.board import Board
from spark_sb_sink.broker import BlackHole, BrokerProcess, Refuse, Shape
from spark_sb_sink.errors import ClosedError, FaultedError, IncompatibleSdkError, OptionError
from spark_sb_sink.factory import PairedFactory, factory_for
from spark_sb_sink.failover import Health
from spark_sb_sink.links import RECYCLE_AFTER
from spark_sb_sink.pair_life import GRACE
from spark_sb_sink.transport import Side
from spark_sb_sink.wire import check_sdk, sdk
from tests.conftest import await_that
from tests.paired.ground import CALM, Ground, MovableClock, await_health, health, some


@pytest.fixture
def ground(broker: BrokerProcess, tmp_path: Path) -> Iterator[Ground]:
    with Ground(broker, tmp_path) as ground:
        for side in (ground.primary, ground.secondary):
            side.cut()  # Python workers that Spark has left idle keep theirs
        await_that(lambda: ground.connections() == 0)
        yield ground


def close_in_time(factory: PairedFactory, caplog: pytest.LogCaptureFixture) -> None:
    """Each step of closing has its time, and says so where it needs more."""
    caplog.clear()
    factory.close()
    told = [record.getMessage() for record in caplog.records if record.name == "spark_sb_sink.factory"]
    assert told == []
    assert not factory._thread.alive


# Links


def test_twenty_entities_open_side_by_side(ground: Ground) -> None:
    factory = ground.factory(**CALM)
    entities = ground.entities(20)
    with ground.primary.fault(Shape(latency=5)):
        begun = factory.submit(_lanes(factory, {entity: some(1) for entity in entities}))
        await_that(lambda: sum(place.opening for place in list(factory._links._places.values())) == 20)
        assert factory._links.open_count == 20
    assert begun.result(60) == 20
    assert all(ground.accepted(entity) == 1 for entity in entities)


def test_a_link_is_kept_from_send_to_send(ground: Ground) -> None:
    factory = ground.factory(**CALM)
    entities = ground.entities(3)
    for _ in range(5):
        factory.send({entity: some(2) for entity in entities})
        assert ground.connections() == 3
    links = {where: place.link for where, place in factory._links._places.items()}
    factory.send({entity: some(2) for entity in entities})
    assert {where: place.link for where, place in factory._links._places.items()} == links


def test_links_that_were_idle_too_long_are_closed_and_opened_again_when_needed(ground: Ground) -> None:
    clock = MovableClock()
    factory = ground.factory(clock=clock, **CALM)
    used, idle = ground.entities(2)
    factory.send({used: some(1), idle: some(1)})
    clock.ahead += RECYCLE_AFTER - 30
    factory.send({used: some(1)})
    assert ground.connections() == 2
    clock.ahead += 60
    await_that(lambda: ground.connections() == 1)
    reports = factory.send({used: some(1), idle: some(1)})
    assert all((report.primary, report.changes) == (1, ()) for report in reports.values())
    assert ground.connections() == 2


def test_more_entities_than_links_all_get_their_turn_and_the_cap_holds(ground: Ground) -> None:
    factory = ground.factory(max_links=3, **CALM)
    entities = ground.entities(12)
    for _ in range(2):
        reports = factory.send({entity: some(3) for entity in entities})
        assert all(report.primary == 3 for report in reports.values())
    await_that(lambda: ground.connections() <= 3)
    assert factory._links.open_count == 3


def test_the_link_that_was_longest_unused_makes_room(ground: Ground) -> None:
    factory = ground.factory(max_links=2, **CALM)
    old, kept, new = ground.entities(3)
    for entity in (kept, old, kept, new):
        factory.send({entity: some(1)})
    assert [path for _, path in factory._links._places] == [kept, new]
    await_that(lambda: ground.connections() == 2)


def test_an_entity_that_waits_for_a_link_does_not_wait_for_the_whole_stream_of_another(ground: Ground) -> None:
    factory = ground.factory(max_links=2, **CALM)
    *busy, late = ground.entities(3)
    streams = {entity: some(12 * 4500) for entity in busy}
    with ground.primary.fault(Shape(latency=0.1)):
        begun = factory.submit(_lanes(factory, streams))
        await_that(lambda: all(ground.accepted(entity) for entity in busy))
        assert factory.send({late: some(1)})[late].primary == 1
        assert not begun.done()
        assert begun.result(120) == 2 * 12 * 4500


async def _lanes(factory: PairedFactory, streams: dict[str, list[bytes]]) -> int:

    senders = [(factory.sender(entity), stream) for entity, stream in streams.items()]
    await asyncio.gather(*(sender.send(stream) for sender, stream in senders))
    return sum(sender.report().primary for sender, _ in senders)


# Forks


def in_a_fork(work: Callable[[], None]) -> int:
    """Run it in a forked child; 0 if all went well."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(60)
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_has_a_factory_of_its_own_and_the_parents_goes_on(ground: Ground, tmp_path: Path) -> None:
    options = ground.options(**CALM)
    entity = ground.entity()
    parents = factory_for(options, tmp_path)
    assert factory_for(options, tmp_path) is parents
    parents.send({entity: some(1)})

    def child() -> None:
        assert parents.closed
        with pytest.raises(ClosedError):
            parents.send({entity: some(1)})
        parents.close()
        own = factory_for(options, tmp_path)
        assert own is not parents
        gc.collect()
        assert own.send({entity: some(2)})[entity].primary == 2
        own.close()

    assert in_a_fork(child) == 0
    report = parents.send({entity: some(4)})[entity]
    assert (report.primary, report.changes) == (4, ())
    assert ground.accepted(entity) == 7
    assert ground.connections() == 1
    parents.close()
    parents.board.close()


def test_a_child_that_forgets_the_parents_factory_does_not_deafen_it(ground: Ground, tmp_path: Path) -> None:
    options = ground.options(**CALM)
    entity = ground.entity()
    factory_for(options, tmp_path).send({entity: some(1)})
    assert in_a_fork(lambda: [gc.collect() for _ in range(3)] and None) == 0
    parents = factory_for(options, tmp_path)
    report = parents.send({entity: some(1)})[entity]
    assert (report.primary, report.changes) == (1, ())
    parents.close()
    parents.board.close()


def test_a_fork_in_the_middle_of_a_send_loses_nothing_of_it(ground: Ground) -> None:
    factory = ground.factory(**CALM)
    entity = ground.entity()
    stream = some(20_000)
    with ground.primary.fault(Shape(latency=0.1)):
        begun = factory.submit(_lanes(factory, {entity: stream}))
        await_that(lambda: ground.accepted(entity) > 0)
        assert in_a_fork(gc.collect) == 0
        assert begun.result(60) == 20_000
    assert ground.accepted(entity) == 20_000


def test_a_factory_that_was_closed_is_replaced(ground: Ground, tmp_path: Path) -> None:
    options = ground.options(**CALM)
    entity = ground.entity()
    first = factory_for(options, tmp_path)
    first.close()
    second = factory_for(options, tmp_path)
    assert second is not first
    assert second.send({entity: some(1)})[entity].primary == 1
    second.close()
    for made in (first, second):
        made.board.close()


def test_a_factory_of_another_role_is_another_and_does_not_end_with_it(ground: Ground, tmp_path: Path) -> None:
    options = ground.options(**CALM)
    entity = ground.entity()
    sinks, syphons = factory_for(options, tmp_path), factory_for(options, tmp_path, "syphon")
    assert syphons is factory_for(options, tmp_path, "syphon")
    assert syphons is not sinks
    syphons.end(Side.SECONDARY, "its credential was refused", fault=True)
    assert factory_for(options, tmp_path) is sinks
    assert sinks.send({entity: some(1)})[entity].primary == 1
    for made in (sinks, syphons):
        made.close()
        made.board.close()


def test_a_factory_that_has_a_side_ended_is_replaced_and_closed_later(
    ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_sb_sink.factory.CLOSE_ENDED_AFTER", 0.1)
    options = ground.options(**CALM)
    entity = ground.entity()
    first = factory_for(options, tmp_path)
    first.end(Side.SECONDARY, "its credential was refused", fault=True)
    second = factory_for(options, tmp_path)
    assert second is not first
    await_that(lambda: first.closed, 20)
    assert second.send({entity: some(1)})[entity].primary == 1
    second.close()
    second.board.close()


# Closing


def open_files() -> set[str]:
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found.add(f"{descriptor} {os.readlink(f'/proc/self/fd/{descriptor}')}")
    return found


def opened_since(before: set[str]) -> set[str]:
    gc.collect()
    return open_files() - before


BLACK_HOLES = {
    "healthy": [],
    "primary before SASL": [("primary", "accept")],
    "primary after attach": [("primary", "attach")],
    "secondary before SASL": [("secondary", "accept")],
    "both before SASL": [("primary", "accept"), ("secondary", "accept")],
    "both after attach": [("primary", "attach"), ("secondary", "attach")],
}


@pytest.mark.parametrize("holes", BLACK_HOLES.values(), ids=BLACK_HOLES.keys())
def test_closing_ends_both_sides_in_bounded_time_and_leaves_nothing_behind(
    ground: Ground, tmp_path: Path, holes: list[tuple[str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    options = ground.options(failover_interval="0s")
    healthy, diverted = ground.entities(2)
    threads, files = set(threading.enumerate()), open_files()
    board = Board.for_executor(tmp_path, options)
    factory = PairedFactory(options, board)
    with ground.primary.fault(Refuse(), diverted):
        factory.send({healthy: some(1), diverted: some(1)})
    assert ground.secondary.overview()["connections"] == 1
    for side, after in holes:
        getattr(ground, side).hang(BlackHole(after=after))
    close_in_time(factory, caplog)
    board.close()
    await_that(lambda: set(threading.enumerate()) <= threads)
    await_that(lambda: not opened_since(files))
    for side in (ground.primary, ground.secondary):
        side.undo()
    await_that(lambda: ground.connections() == 0)


@pytest.mark.parametrize("after", ["accept", "attach"])
def test_closing_while_a_send_hangs_ends_the_send_with_an_error(
    ground: Ground, after: str, caplog: pytest.LogCaptureFixture
) -> None:
    factory = ground.factory(send_timeout="5m", failover_interval="60m")
    entity = ground.entity()
    ground.primary.hang(BlackHole(after=after))
    begun = factory.submit(_lanes(factory, {entity: some(1)}))
    await_that(lambda: factory._links.open_count == 1)
    close_in_time(factory, caplog)
    with pytest.raises(ClosedError):
        begun.result(5)


def test_closing_while_senders_wait_for_a_link_ends_them_too(ground: Ground, caplog: pytest.LogCaptureFixture) -> None:
    factory = ground.factory(send_timeout="5m", failover_interval="60m", max_links=2)
    entities = ground.entities(5)
    ground.primary.hang(BlackHole())
    begun = [factory.submit(_lanes(factory, {entity: some(1)})) for entity in entities]
    await_that(lambda: factory._links.open_count == 2)
    close_in_time(factory, caplog)
    for one in begun:
        with pytest.raises(ClosedError):
            one.result(5)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_who_waits_for_a_loop_that_died_hears_of_it_and_the_factory_is_replaced(
    ground: Ground, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = ground.options(failover_interval="60m")
    entity = ground.entity()
    factory = factory_for(options, tmp_path)
    ground.primary.hang(Refuse(), entity)
    begun = factory.submit(_lanes(factory, {entity: some(1)}))
    await_health(factory, entity, Health.SUSPECT)

    def die() -> None:
        raise SystemExit

    factory._thread.loop.call_soon_threadsafe(die)
    with pytest.raises(ClosedError, match="its event loop ended"):
        begun.result(20)
    await_that(lambda: "The paired factory died" in caplog.text)
    assert factory.closed
    with pytest.raises(ClosedError):
        factory.send({entity: some(1)})
    assert factory_for(options, tmp_path) is not factory
    for made in (factory, factory_for(options, tmp_path)):
        made.close()
        made.board.close()


def test_names_of_the_primary_that_nobody_answers_for_hold_up_no_lookup_for_the_backlog(
    ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, answered = socket.getaddrinfo, threading.Event()

    def lookup(host: str, *args: Any, **settings: Any) -> Any:
        if host == "primary.invalid":
            answered.wait(60)
        return whole(host, *args, **settings)

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    factory = ground.factory(
        primary=ground.primary.connection_string.replace("127.0.0.1", "primary.invalid"),
        secondary=ground.secondary.connection_string.replace("127.0.0.1", "localhost"),
        failover_interval="0s",
        send_timeout="4s",
    )
    try:
        # More than a loop has threads of its own accord.
        reports = factory.send({f"orders-{number}": some(1) for number in range((os.cpu_count() or 1) + 5)})
        assert {(report.backlog, report.total) for report in reports.values()} == {(1, 1)}
        assert not answered.is_set()
        factory.close()
        assert not factory._thread.alive
    finally:
        answered.set()


def test_an_sdk_that_we_do_not_know_is_told_before_the_first_send(
    ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set(threading.enumerate())
    options = ground.options(failover_interval="0s")
    board = Board.for_executor(tmp_path, options)
    check_sdk.cache_clear()
    with monkeypatch.context() as changed:
        changed.delattr(sdk.Connection, "listen")
        with pytest.raises(IncompatibleSdkError, match="listen is gone"):
            PairedFactory(options, board)
    await_that(lambda: set(threading.enumerate()) <= threads)


def test_use_after_close_says_so_and_closing_twice_is_fine(ground: Ground) -> None:
    factory = ground.factory(**CALM)
    entity = ground.entity()
    factory.send({entity: some(1)})
    factory.close()
    factory.close()
    with pytest.raises(ClosedError, match="The paired factory is closed"):
        factory.send({entity: some(1)})
    with pytest.raises(ClosedError):
        factory.end(Side.PRIMARY, "too late", fault=True)


def test_many_threads_may_close_and_use_it_at_the_same_time(ground: Ground) -> None:
    factory = ground.factory(**CALM)
    entities = ground.entities(4)
    factory.send({entity: some(1) for entity in entities})
    wrong: list[BaseException] = []

    def use(entity: str) -> None:
        try:
            while True:
                factory.send({entity: some(1)})
        except ClosedError:
            pass
        except BaseException as error:  # noqa: BLE001 - for the thread that asks
            wrong.append(error)

    users = [threading.Thread(target=use, args=(entity,)) for entity in entities]
    for user in users:
        user.start()
    await_that(lambda: all(ground.accepted(entity) > 2 for entity in entities))
    closers = [threading.Thread(target=factory.close) for _ in range(3)]
    for closer in closers:
        closer.start()
    for thread in (*closers, *users):
        thread.join(20)
        assert not thread.is_alive()
    assert wrong == []


def test_a_factory_that_cannot_be_made_leaves_no_thread(ground: Ground, tmp_path: Path) -> None:
    threads = set(threading.enumerate())
    options = ground.options(primary={"connection_string": ground.primary.connection_string, "ca_file": "/nowhere.pem"})
    board = Board.for_executor(tmp_path, options)
    with pytest.raises(OptionError, match="ca_file"):
        PairedFactory(options, board)
    assert set(threading.enumerate()) <= threads


# The end of one side


@pytest.mark.parametrize(("first", "other"), [(Side.PRIMARY, Side.SECONDARY), (Side.SECONDARY, Side.PRIMARY)])
@pytest.mark.parametrize("fault", [True, False])
def test_a_side_that_ended_takes_the_other_with_it_five_seconds_later(
    ground: Ground, first: Side, other: Side, fault: bool, caplog: pytest.LogCaptureFixture
) -> None:
    clock = MovableClock()
    factory = ground.factory(clock=clock, failover_interval="0s", ping_interval="30m")
    healthy, diverted = ground.entities(2)
    with ground.primary.fault(Refuse(), diverted):
        factory.send({healthy: some(1), diverted: some(1)})
    on = {Side.PRIMARY: healthy, Side.SECONDARY: diverted}
    factory.end(first, "its credential was refused", fault=fault)
    await_that(lambda: ground.connections() == 1)
    with pytest.raises(ClosedError, match=f"The {first.value} side") as closed:
        factory.send({on[first]: some(1)})
    assert not isinstance(closed.value, FaultedError)
    assert factory.send({on[other]: some(1)})[on[other]].total == 1
    clock.ahead += GRACE
    await_that(lambda: ground.connections() == 0)
    for entity in (healthy, diverted):
        with pytest.raises(FaultedError, match="its credential was refused") as faulted:
            factory.send({entity: some(1)})
        assert (faulted.value.first, faulted.value.other) == (first.value, other.value)
    close_in_time(factory, caplog)


def test_a_network_outage_is_never_an_end(ground: Ground) -> None:
    clock = MovableClock()
    factory = ground.factory(clock=clock, failover_interval="0s", backlog_cooldown="1s")
    entity = ground.entity()
    factory.send({entity: some(1)})
    for side in (ground.primary, ground.secondary):
        side.stop()
    assert len(factory.send({entity: some(1)})[entity].overflow) == 1
    clock.ahead += 10 * GRACE
    await_that(lambda: factory.board.view(entity).next_ping_at or clock.now() < 0)
    assert factory._transport.life.ends == {}  # type: ignore[attr-defined]
    for side in (ground.primary, ground.secondary):
        side.start()
    await_that(lambda: health(factory, entity) is Health.PROBATION)
    assert factory.send({entity: some(1)})[entity].primary == 1


def test_one_failing_lane_of_a_call_does_not_cut_off_the_others(ground: Ground) -> None:
    factory = ground.factory(failover_interval="0s")
    healthy, diverted = ground.entities(2)
    factory.send({healthy: some(1), diverted: some(1)})
    factory.end(Side.SECONDARY, "its credential was refused", fault=True)
    with (
        ground.primary.fault(Refuse(), diverted),
        ground.primary.fault(Shape(latency=0.2), healthy),
        pytest.raises(ClosedError),
    ):
        factory.send({diverted: some(1), healthy: some(10_000)})
    assert ground.accepted(healthy) == 10_001
