"""Destinations that are down: they hold up nobody, are not hammered, and get everything once they are back."""

import threading

from spark_sb_sink.broker.faults import Busy, CbsAnswer, FullQuota, Refuse
from spark_sb_sink.envelope import wrap
from spark_sb_sink.errors import MisconfiguredSendError
from spark_sb_sink.failover import Health
from spark_sb_sink.syphon.planning import PROBE
from tests.paired.ground import MovableClock, await_health, health
from tests.syphon.field import Field, message


def operations(field: Field) -> int:
    """All that either namespace would bill for."""
    return sum(int(side.counters()["operations"]) for side in (field.primary, field.secondary))


def test_a_dead_entity_lets_a_healthy_one_pass_and_gets_its_own_later(field: Field) -> None:
    dead, well = field.entities(2)
    drain = field.drain(failover_interval="1s", ping_interval="1s")
    hung = field.primary.hang(Refuse(), dead)
    lost = field.backlog_for(dead, 700)
    passing = field.backlog_for(well, 300)
    report = drain.run(60, until=lambda: field.accepted(well) == 300 and field.in_backlog()["deferred"] == 700)
    assert set(field.taken(well)) == set(passing)
    assert {r.entity: (r.moved, r.deferred) for r in report.receipts} == {dead: (0, 700), well: (300, 0)}
    field.primary.undo(hung)
    report = field.until_empty(drain)
    assert field.taken(dead) == dict.fromkeys(lost, 1)
    assert report.total("moved") == 700


def test_another_process_finds_what_one_before_it_deferred(field: Field) -> None:
    dead, well = field.entities(2)
    first = field.drain(failover_interval="1s", ping_interval="1s")
    hung = field.primary.hang(Refuse(), dead)
    lost = field.backlog_for(dead, 600)
    field.backlog_for(well, 10)
    first.run(60, until=lambda: field.in_backlog()["deferred"] == 600)
    first.close()
    first.factory.close()
    field.primary.undo(hung)
    # Other options make another board: this one knows nothing of what was.
    second = field.drain(failover_interval="2s", ping_interval="1s")
    field.until_empty(second)
    assert field.taken(dead) == dict.fromkeys(lost, 1)


def test_while_nothing_can_move_the_operations_are_few_and_it_recovers_by_itself(field: Field) -> None:
    dead = field.entity()
    drain = field.drain(failover_interval="0s", ping_interval="1s")
    hung = field.primary.hang(Refuse(), dead)
    ids = field.backlog_for(dead, 300)
    drain.run(60, until=lambda: health(drain.factory, dead) is Health.FAILED_OVER and drain.at_rest)
    before, pings = operations(field), field.pings(dead)
    drain.run(4)
    # A ping and a look in each ping interval, and room for a machine that is late.
    assert operations(field) - before <= 4 * 4
    assert field.in_backlog() == {"active": 300, "deferred": 0, "scheduled": 0, "locked": 0}
    assert pings == 0  # none got through to be counted
    field.primary.undo(hung)
    field.until_empty(drain)
    assert field.taken(dead) == dict.fromkeys(ids, 1)


def test_a_full_entity_is_down_though_it_takes_pings(field: Field) -> None:
    full = field.entity()
    drain = field.drain(failover_interval="0s", ping_interval="1s")
    hung = field.primary.hang(FullQuota(), full)
    ids = field.backlog_for(full, 2000)
    drain.run(60, until=lambda: health(drain.factory, full) is Health.FAILED_OVER)
    before, pinged = operations(field), field.pings(full)
    drain.run(60, until=lambda: field.pings(full) - pinged >= 3)
    # For each ping: a few messages that tell, and a look at the backlog; never the backlog itself.
    assert operations(field) - before <= 4 * (1 + 2 * 10 + 3) + 10
    assert not field.dead_letters()
    field.primary.undo(hung)
    field.until_empty(drain)
    assert field.taken(full) == dict.fromkeys(ids, 1)


def test_a_deleted_entity_counts_as_down_and_gets_its_messages_when_it_is_made_again(field: Field) -> None:
    gone = field.entity()
    drain = field.drain(failover_interval="0s", ping_interval="1s")
    field.primary.delete(gone)
    ids = field.backlog_for(gone, 50)
    drain.run(60, until=lambda: health(drain.factory, gone) is Health.FAILED_OVER and drain.at_rest)
    assert not field.dead_letters()
    field.primary.create_queue(gone)
    field.until_empty(drain)
    assert field.taken(gone) == dict.fromkeys(ids, 1)


CLOSED = CbsAnswer(403, "Unauthorized access. 'Send' claim(s) are required.")


def test_an_entity_that_refuses_our_claim_is_not_hammered_and_gets_its_own_once_we_may(field: Field) -> None:
    closed = field.entity()
    clock = MovableClock()
    drain = field.drain(clock=clock, ping_interval="20m", long_poll="60s")
    hung = field.primary.hang(CLOSED, closed)
    ids = field.backlog_for(closed, 300)
    reports = [drain.run(60, until=lambda: bool(drain.refusing) and drain.at_rest)]
    before = operations(field)
    reports += [drain.run(0.5) for _ in range(4)]
    assert [[type(error) for error in report.errors] for report in reports] == [[MisconfiguredSendError]] * 5
    # One look whether the queue has something for others; and no message is received only to be given back.
    assert operations(field) - before <= 4
    clock.ahead += 1200  # a few messages tell whether it is still so
    drain.run(60, until=lambda: operations(field) > before + 4 and drain.at_rest)
    assert operations(field) - before <= 4 + 3 * PROBE
    field.primary.undo(hung)
    clock.ahead += 1200
    assert field.until_empty(drain).errors == ()
    assert field.taken(closed) == dict.fromkeys(ids, 1)


def test_what_is_deferred_for_an_entity_that_refuses_our_claim_is_tried_with_a_few(field: Field) -> None:
    closed, well = field.entities(2)
    clock = MovableClock()
    drain = field.drain(clock=clock, ping_interval="20m", long_poll="60s")
    hung = field.primary.hang(CLOSED, closed)
    field.defer([wrap(message(n), closed) for n in range(2000)])
    field.backlog_for(well, 5)
    drain.run(60, until=lambda: bool(drain.refusing) and field.accepted(well) == 5 and drain.at_rest)
    for _ in range(2):
        drain.run(0.5)
    before = operations(field)
    for _ in range(4):
        drain.run(0.5)
    assert operations(field) == before
    clock.ahead += 1200
    drain.run(60, until=lambda: operations(field) > before and drain.at_rest)
    # A page or two of peeks and the few that tell, rather than all that is there.
    assert operations(field) - before <= 3 * PROBE
    assert field.in_backlog()["deferred"] == 2000
    field.primary.undo(hung)
    clock.ahead += 1200
    field.until_empty(drain)
    assert field.taken(closed) == {f"m{n}": 1 for n in range(2000)}


def test_a_throttled_entity_is_left_alone_as_long_as_it_asks_for_also_over_the_ends_of_runs(field: Field) -> None:
    busy, well = field.entities(2)
    clock = MovableClock()
    drain = field.drain(clock=clock, long_poll="60s", failover_interval="0s", ping_interval="30s")
    with field.primary.fault(Busy(description="Please wait 60 seconds."), busy):
        ids = field.backlog_for(busy, 50)
        drain.run(30, until=lambda: drain._shared.busy(busy) > 0)
        before = operations(field)
        for _ in range(3):
            drain.run(0.3)
        assert operations(field) - before <= 2  # a look whether the queue has something for others, in one page
        others = field.backlog_for(well, 50)
        clock.ahead += 30
        drain.run(30, until=lambda: field.accepted(well) == 50)
    assert field.taken(well) == dict.fromkeys(others, 1)
    assert health(drain.factory, busy) is Health.HEALTHY
    clock.ahead += 30
    report = field.until_empty(drain)
    assert field.taken(busy) == dict.fromkeys(ids, 1)
    assert report.total("deferred") == report.total("dead_lettered") == 0


def test_the_primary_goes_down_again_in_the_middle_of_a_drain(field: Field) -> None:
    entities = field.entities(2)
    drain = field.drain(failover_interval="1s", ping_interval="1s", max_rate=2000)
    ids = {entity: field.backlog_for(entity, 4000) for entity in entities}
    stopped = threading.Event()

    def down() -> bool:
        if not stopped.is_set() and field.accepted(entities[0]) > 300:
            field.primary.stop()
            stopped.set()
        return stopped.is_set() and all(health(drain.factory, e) is Health.FAILED_OVER for e in entities)

    drain.run(60, until=down)
    assert all(health(drain.factory, entity) is Health.FAILED_OVER for entity in entities)
    assert sum(field.in_backlog().values()) > 1000  # in the middle
    before = operations(field)
    drain.run(4)
    # A look at the backlog in each ping interval; the pings do not get through. Room for a machine that is late.
    assert operations(field) - before <= 4 * 3
    assert field.in_backlog()["locked"] == 0
    field.primary.start()
    field.until_empty(drain)
    for entity in entities:
        assert set(field.taken(entity)) == set(ids[entity])
    assert not field.dead_letters()


def test_the_secondary_goes_away_and_comes_back_and_that_is_no_fault(field: Field) -> None:
    entity = field.entity()
    drain = field.drain()
    field.secondary.stop()
    drain.run(1)
    field.secondary.start()
    ids = field.backlog_for(entity, 50)
    field.until_empty(drain)
    assert set(field.taken(entity)) == set(ids)


def test_two_drains_share_a_backlog_with_deferred_messages(field: Field) -> None:
    dead, well = field.entities(2)
    one = field.drain(failover_interval="1s", ping_interval="1s")
    two = field.drain(failover_interval="2s", ping_interval="1s")  # a board of its own, as on another machine
    hung = field.primary.hang(Refuse(), dead)
    ids = field.backlog_for(dead, 1500)
    field.backlog_for(well, 500)

    def both(until: object, within: float) -> None:
        other = threading.Thread(target=two.run, args=(within, until))
        other.start()
        one.run(within, until=until)  # type: ignore[arg-type]
        other.join()

    both(lambda: field.in_backlog()["deferred"] == 1500 and field.accepted(well) == 500, 60)
    field.primary.undo(hung)
    both(field.empty(), 90)
    assert field.empty()()
    assert field.taken(dead) == dict.fromkeys(ids, 1)


def test_states_are_those_of_the_board(field: Field) -> None:
    entity = field.entity()
    drain = field.drain(failover_interval="0s", ping_interval="1s")
    hung = field.primary.hang(Refuse(), entity)
    field.backlog_for(entity, 5)
    drain.run(30, until=lambda: health(drain.factory, entity) is Health.FAILED_OVER)
    field.primary.undo(hung)
    await_health(drain.factory, entity, Health.PROBATION)
    field.until_empty(drain)
    assert health(drain.factory, entity) is Health.HEALTHY
