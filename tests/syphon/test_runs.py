"""Runs, polls, locks, rate, clocks and ends of a drain."""

import re
import threading
import time
from collections import deque
from collections.abc import Sequence

import pytest

from spark_sb_sink import cost
from spark_sb_sink.broker.faults import Busy, CbsAnswer, LateVisible, Refuse
from spark_sb_sink.envelope import wrap
from spark_sb_sink.errors import FaultedError, MisconfiguredSendError
from spark_sb_sink.syphon import Drain, drain_for, until_empty
from spark_sb_sink.syphon.queue_drain import LINGER, WINDOW
from spark_sb_sink.wire import RawReceiver
from spark_sb_sink.wire.receiving import STEP
from tests.conftest import await_that
from tests.paired.ground import MovableClock
from tests.syphon.field import Field, message

QUEUES = 10


def empty_receives(field: Field) -> int:
    return sum(int(field.secondary.counters(field.queue(n))["empty_receives"]) for n in range(QUEUES))


def received(field: Field) -> int:
    """How many messages the first backlog queue has handed out."""
    return int(field.secondary.counters(field.queue(0))["receives"])


def test_ten_idle_queues_cost_the_receives_of_the_formula(field: Field) -> None:
    drain = field.drain(backlog_queue_count=QUEUES, long_poll="1s")
    begun = time.monotonic()
    for _ in range(4):  # polls go on over the ends of runs
        drain.run(0.5)
    drain.run(30, until=lambda: all(queue.intake.polls >= 4 for queue in drain.queues))
    drain.close()
    elapsed = time.monotonic() - begun
    idle = cost.idle(cost.Setup(queues=QUEUES, long_poll=1.0))
    # Each long poll is one receive, for the last one at the close; and there are no more of them than the formula has
    # for that time, and one of each queue that is begun.
    assert empty_receives(field) == drain.polls
    assert 4 * QUEUES <= drain.polls <= idle.receives_30d * elapsed / cost.DAYS_30 + QUEUES
    # Besides those, one look for deferred messages of each queue in the first hour.
    managed = sum(int(field.secondary.counters(field.queue(n))["management"]) for n in range(QUEUES))
    assert managed == idle.peeks_30d * cost.LOOK_EVERY // cost.DAYS_30 == QUEUES


def test_an_idle_detach_in_a_long_poll_is_no_fault(field: Field) -> None:
    entity = field.entity()
    field.secondary.idle_detach_after(1.1)
    try:
        drain = field.drain(long_poll="30s")
        drain.run(3)
        ids = field.backlog_for(entity, 5)
        field.until_empty(drain)
        assert drain.queues[0].intake.polls <= 3
    finally:
        field.secondary.idle_detach_after(600)
    assert field.taken(entity) == dict.fromkeys(ids, 1)


def test_a_link_that_is_detached_again_and_again_is_not_opened_again_without_a_pause(
    field: Field, monkeypatch: pytest.MonkeyPatch
) -> None:
    drain = field.drain(long_poll="30s")
    plain, opened = drain.factory.receiver, list[str]()

    def receiver(queue: str) -> RawReceiver:
        opened.append(queue)
        return plain(queue)

    monkeypatch.setattr(drain.factory, "receiver", receiver)
    field.secondary.idle_detach_after(0.001)
    try:
        drain.run(2)
    finally:
        field.secondary.idle_detach_after(600)
    assert 2 <= len(opened) <= 11  # after 0.1 s, 0.2 s and so on; twice for each look for deferred messages


def test_what_comes_between_two_runs_waits_for_the_next_one(field: Field) -> None:
    entity = field.entity()
    drain = field.drain(long_poll="60s")
    drain.run(1)
    ids = field.backlog_for(entity, 20)
    await_that(lambda: field.in_backlog()["locked"] > 0)
    assert field.accepted(entity) == 0
    field.until_empty(drain)
    assert field.taken(entity) == dict.fromkeys(ids, 1)


def test_what_comes_after_the_last_run_is_given_back(field: Field) -> None:
    entity = field.entity()
    drain = field.drain(long_poll="60s")
    drain.run(1)
    field.backlog_for(entity, 20)
    await_that(lambda: field.in_backlog()["locked"] > 0)
    await_that(lambda: field.in_backlog()["locked"] == 0)
    assert field.accepted(entity) == 0
    assert field.in_backlog()["active"] == 20


def test_a_run_ends_with_nothing_in_hand_and_receives_no_more_than_the_rate_lets_go(field: Field) -> None:
    entity = field.entity()
    drain = field.drain(max_rate=200)
    field.defer([wrap(message(n), entity) for n in range(400)])
    before = received(field)
    field.backlog_for(entity, 2600)
    moved = drain.run(30, until=lambda: field.accepted(entity) > 50).moved
    moved += drain.run(30, until=lambda: field.accepted(entity) > moved + 50).moved
    counts = field.in_backlog()
    assert counts["locked"] == 0
    assert moved == field.accepted(entity)
    assert counts["active"] + counts["deferred"] == 3000 - moved
    assert received(field) - before <= 1.5 * moved


def test_a_run_that_ends_with_a_full_window_leaves_nothing_locked(field: Field) -> None:
    entity = field.entity()
    drain = field.drain()
    field.primary.hang(Busy(), entity)
    field.backlog_for(entity, 9000)
    [queue] = drain.queues
    drain.run(30, until=lambda: not (queue.busy or queue._polling) and len(queue.settler.held) >= WINDOW * 3 // 4)
    assert drain.look(1) == {field.queue(0): 250}  # a round trip, in which a receive would bring something
    assert received(field) <= WINDOW
    assert field.in_backlog() == {"active": 9000, "deferred": 0, "scheduled": 0, "locked": 0}


def test_large_messages_behind_small_ones_are_not_all_taken_at_once(field: Field) -> None:
    entity = field.entity()
    drain = field.drain(max_in_flight=1024 * 1024)
    field.primary.hang(Busy(), entity)
    [queue] = drain.queues
    field.backlog_for(entity, 400)
    field.backlog_for(entity, 1000, tag="large-", size=10_000)
    drain.run(30, until=lambda: not (queue.busy or queue._polling) and queue.settler.held_bytes >= queue._room)
    assert received(field) <= 400 + 2 * STEP  # what has the room, and what was asked for before it was used up


def test_no_more_than_the_rate_goes_out(field: Field) -> None:
    entity = field.entity()
    drain = field.drain(max_rate=100)
    field.backlog_for(entity, 1000)
    begun = time.monotonic()
    report = drain.run(1)
    assert 0 < report.moved <= 100 * (time.monotonic() - begun) + 100


def test_locks_are_renewed_while_a_send_waits(field: Field) -> None:
    entity = field.entity()
    field._queues = 1  # this test makes its backlog queue itself, with short locks
    field.secondary.create_queue(field.queue(0), lock_duration=5)
    drain = field.drain()
    hung = field.primary.hang(Busy(count=1), entity)  # ten seconds, two locks
    ids = field.backlog_for(entity, 300)
    report = field.until_empty(drain)
    field.primary.undo(hung)
    assert field.taken(entity) == dict.fromkeys(ids, 1)
    assert report.moved == 300
    assert report.total("lost_locks") == 0


def test_a_message_whose_lock_was_lost_is_not_counted_as_moved(field: Field) -> None:
    entity = field.entity()
    clock = MovableClock()
    drain = field.drain(clock=clock)
    field.primary.hang(Busy(count=1), entity)
    ids = field.backlog_for(entity, 100)
    lost = threading.Event()

    def lose() -> bool:
        if not lost.is_set() and drain._shared.busy(entity) and field.in_backlog()["locked"] == 100:
            field.secondary.expire_locks(field.queue(0))
            clock.ahead += 10
            lost.set()
        return lost.is_set() and field.empty()()

    report = drain.run(60, until=lose)
    assert field.empty()()
    assert set(field.taken(entity)) == set(ids)
    assert report.moved == 100  # each once, by who had its lock
    assert report.total("lost_locks") == 100


@pytest.mark.parametrize("ttl", ["full", "deduct"])
def test_a_clock_that_is_a_minute_fast_settles_all_the_same_and_ends_no_life(
    field: Field, monkeypatch: pytest.MonkeyPatch, ttl: str
) -> None:
    entity = field.entity()
    plain = time.time
    monkeypatch.setattr(time, "time", lambda: plain() + 61)
    factory = field.factory(long_poll="5s", backlog_queue_count=1, send_timeout="10s", ttl=ttl)
    drain = Drain(factory, [field.queue(0)], wall_clock=lambda: plain() + 61)
    lived = [wrap(message(n, ttl_ms=50_000, created_ms=int(plain() * 1000)), entity) for n in range(500)]
    field.defer(lived[:250])
    field.fill(lived[250:])
    report = field.until_empty(drain)
    drain.close()
    assert field.taken(entity) == {f"m{n}": 1 for n in range(500)}
    assert report.moved == 500
    assert report.total("lost_locks") == 0


def held_by(things: Sequence[object]) -> int:
    """How many elements all containers have that can be reached from there: links, sessions, management, the SDK's."""
    left, seen, count = list(things), set[int](), 0
    while left:
        thing = left.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, dict):
            count += len(thing)
            left += [*thing, *thing.values()]
        elif isinstance(thing, list | tuple | set | frozenset | deque):
            count += len(thing)
            left += thing
        elif isinstance(thing, bytearray):
            count += len(thing)
        elif type(thing).__module__.startswith(
            ("azure.servicebus", "spark_sb_sink.wire", "spark_sb_sink.syphon.settle")
        ):
            left.append(getattr(thing, "__dict__", {}))
    return count


def test_a_link_that_moves_much_does_not_grow(field: Field) -> None:
    entity = field.entity()
    drain = field.drain()

    def kept() -> int:
        places = drain.factory.pair.links._places.values()
        return held_by([drain.queues[0].intake.receiver, drain.queues[0].settler, *(place.link for place in places)])

    field.backlog_for(entity, 100, tag="a")
    field.until_empty(drain)
    before = kept()
    field.backlog_for(entity, 5000, tag="b")
    field.until_empty(drain)
    assert kept() <= before


def test_empty_means_that_two_looks_find_nothing_also_when_messages_show_late(field: Field) -> None:
    entity = field.entity()
    drain = field.drain(settle_time="5s")
    with field.secondary.fault(LateVisible(3), field.queue(0)):
        ids = field.backlog_for(entity, 20)
        done = until_empty(drain, within=60)
    assert done.empty
    assert field.taken(entity) == dict.fromkeys(ids, 1)
    assert sum(report.moved for report in done.reports) == 20


def test_a_time_limit_says_what_is_left(field: Field) -> None:
    entity = field.entity()
    drain = field.drain(failover_interval="0s")
    field.primary.hang(Refuse(), entity)
    field.backlog_for(entity, 30)
    done = until_empty(drain, within=4)
    assert not done.empty
    assert done.left == {field.queue(0): 30}


def test_a_drain_is_kept_between_runs(field: Field) -> None:
    options = field.options(backlog_queue_count=1)
    drain = drain_for(options, field.folder, [0])
    try:
        assert drain_for(options, field.folder, [0]) is drain
    finally:
        drain.close()
        drain.factory.close()
        drain.factory.board.close()
    other = drain_for(options, field.folder, [0])
    assert other is not drain
    other.factory.close()
    other.factory.board.close()


@pytest.mark.parametrize("side", ["primary", "secondary"])
def test_a_credential_that_is_refused_ends_both_sides_and_says_which_went_first(field: Field, side: str) -> None:
    entity = field.entity()
    good = getattr(field, side).connection_string
    drain = field.drain(**{side: re.sub("SharedAccessKey=[^;]+", "SharedAccessKey=d3Jvbmc=", good)})
    field.backlog_for(entity, 5)
    with pytest.raises(FaultedError) as caught:
        drain.run(60)
    assert caught.value.first == side
    assert "d3Jvbmc" not in str(caught.value)
    assert field.in_backlog()["active"] == 5
    with pytest.raises(FaultedError):
        drain.run(1)


def test_an_entity_that_refuses_our_claim_is_reported_and_the_others_are_served(field: Field) -> None:
    closed, well = field.entities(2)
    drain = field.drain()
    field.primary.hang(CbsAnswer(403, "Unauthorized access. 'Send' claim(s) are required."), closed)
    field.backlog_for(closed, 5)
    ids = field.backlog_for(well, 5)
    report = drain.run(60, until=lambda: field.accepted(well) == 5)
    assert field.taken(well) == dict.fromkeys(ids, 1)
    [error] = report.errors
    assert isinstance(error, MisconfiguredSendError)
    assert closed in str(error)


def test_a_poll_that_no_run_follows_is_given_up_and_one_that_is_followed_in_time_goes_on(field: Field) -> None:
    entity = field.entity()
    clock = MovableClock()
    drain = field.drain(clock=clock, long_poll="600s")
    before = int(field.secondary.overview()["connections"])
    drain.run(30, until=lambda: drain.polls == 1)
    drain.run(0.2)
    assert drain.polls == 1
    clock.ahead += LINGER
    await_that(lambda: int(field.secondary.overview()["connections"]) == before)
    # That poll is over, and what comes now is for whoever asks for it.
    assert int(field.secondary.counters(field.queue(0))["empty_receives"]) == 1
    ids = field.backlog_for(entity, 20)
    other = field.drain(long_poll="600s", failover_interval="2s")  # as in another process
    field.until_empty(other)
    assert field.taken(entity) == dict.fromkeys(ids, 1)
    more = field.backlog_for(entity, 20, tag="again")
    other.close()
    field.until_empty(drain)
    assert field.taken(entity) == dict.fromkeys(ids + more, 1)
    assert drain.polls >= 2


def test_what_a_poll_brought_before_it_is_given_up_goes_back_at_once(field: Field) -> None:
    entity = field.entity()
    clock = MovableClock()
    drain = field.drain(clock=clock, long_poll="600s")
    drain.run(30, until=lambda: drain.polls == 1)
    ids = field.backlog_for(entity, 20)
    await_that(lambda: field.in_backlog()["locked"] > 0)
    clock.ahead += LINGER
    await_that(lambda: field.in_backlog() == {"active": 20, "deferred": 0, "scheduled": 0, "locked": 0})
    drain.run(30, until=field.empty())
    assert field.taken(entity) == dict.fromkeys(ids, 1)


def test_a_look_between_runs_leaves_no_link_behind(field: Field) -> None:
    clock = MovableClock()
    drain = field.drain(clock=clock)
    before = int(field.secondary.overview()["connections"])
    assert drain.look(1) == {field.queue(0): 0}
    clock.ahead += LINGER
    await_that(lambda: int(field.secondary.overview()["connections"]) == before)
