"""Deferred messages are found however short the runs are, and looking for them hammers nobody."""

from spark_sb_sink.amqp import decode_message
from spark_sb_sink.broker.faults import Busy, ManagementAnswer, Refuse, Shape
from spark_sb_sink.envelope import wrap
from spark_sb_sink.failover import Health
from spark_sb_sink.syphon import until_empty
from spark_sb_sink.syphon.deferred import LOOK_EVERY, LOOK_FOR_BACK
from spark_sb_sink.syphon.queue_drain import LINGER
from spark_sb_sink.syphon.settle import RENEW_AFTER
from spark_sb_sink.wire import DEFER
from tests.conftest import await_that
from tests.paired.ground import MovableClock, health
from tests.syphon.field import Field, message, receive_raw
from tests.syphon.test_messages import foreign, properties

PAGES = 1500
"""Messages that take six peeks to see."""


def requests(field: Field) -> int:
    return int(field.secondary.counters(field.queue(0))["management"])


def test_those_behind_many_of_a_dead_entity_are_reached_however_short_the_runs_are(field: Field) -> None:
    dead, well = field.entities(2)
    drain = field.drain(failover_interval="0s", ping_interval="1s")
    field.defer([wrap(message(n), dead) for n in range(PAGES)] + [wrap(message(n), well) for n in range(20)])
    hung = field.primary.hang(Refuse(), dead)
    with field.secondary.fault(Shape(latency=0.2), field.queue(0)):
        for _ in range(30):  # in each there is time for one peek or two
            drain.run(0.3)
            if field.accepted(well) == 20:
                break
    assert field.taken(well) == {f"m{n}": 1 for n in range(20)}
    assert health(drain.factory, dead) is Health.FAILED_OVER
    assert field.in_backlog()["deferred"] == PAGES
    field.primary.undo(hung)
    field.until_empty(drain)
    assert field.taken(dead) == {f"m{n}": 1 for n in range(PAGES)}


def test_looking_for_deferred_messages_ends_once_there_are_none(field: Field) -> None:
    entity = field.entity()
    drain = field.drain(long_poll="60s")
    field.defer([wrap(message(n), entity) for n in range(300)])
    field.until_empty(drain)
    # Once more over the queue, and that is all for an hour.
    drain.run(30, until=lambda: not drain.queues[0].deferred._expected)
    before = requests(field)
    drain.run(2)
    assert requests(field) == before


def test_what_a_syphon_that_died_had_deferred_is_found_by_the_look_once_an_hour(field: Field) -> None:
    entity, clock = field.entity(), MovableClock()
    drain = field.drain(clock=clock, long_poll="600s")
    [queue] = drain.queues
    drain.run(30, until=lambda: queue.deferred._look_at > clock.now())
    clock.ahead += LINGER  # so that it is not to us that they come first
    await_that(lambda: queue.intake.receiver is None)
    field.defer([wrap(message("one"), entity)])
    drain.run(0.5)
    assert field.in_backlog()["deferred"] == 1, "nobody told, and there is no reason to look"
    clock.ahead += LOOK_EVERY
    field.until_empty(drain)
    assert field.accepted(entity) == 1


def test_what_a_syphon_that_died_had_deferred_is_found_when_its_entity_is_back(field: Field) -> None:
    entity, clock = field.entity(), MovableClock()
    drain = field.drain(clock=clock, long_poll="600s", failover_interval="0s", ping_interval="1s")
    hung = field.primary.hang(Refuse(), entity)
    field.backlog_for(entity, 1)
    drain.run(60, until=lambda: health(drain.factory, entity) is Health.FAILED_OVER and drain.at_rest)
    receive_raw(field.secondary.connection_string, field.queue(0), 1, DEFER)
    clock.ahead += LOOK_FOR_BACK
    field.primary.undo(hung)
    field.until_empty(drain)
    assert field.accepted(entity) == 1


def test_a_peek_that_is_throttled_waits_as_asked_also_over_the_end_of_a_run(field: Field) -> None:
    entity = field.entity()
    clock = MovableClock()
    drain = field.drain(clock=clock, long_poll="60s")
    field.defer([wrap(message(n), entity) for n in range(5)])
    busy = ManagementAnswer(503, "com.microsoft:server-busy", "Please wait 10 seconds.", operation="peek-message")
    with field.secondary.fault(busy, field.queue(0)):
        before = requests(field)
        drain.run(30, until=lambda: requests(field) > before)
        for _ in range(3):
            drain.run(0.3)
        assert requests(field) == before + 1
    clock.ahead += 10
    field.until_empty(drain)
    assert field.accepted(entity) == 5


def test_a_deferred_message_that_can_never_be_moved_is_dead_lettered_too(field: Field) -> None:
    entity = field.entity()
    drain = field.drain()
    field.defer([foreign({"a": 1}), wrap(message("good"), entity)])
    report = field.until_empty(drain)
    assert (report.moved, report.total("dead_lettered")) == (1, 1)
    [dead] = field.dead_letters()
    assert properties(dead)["DeadLetterReason"] == "SyphonCannotRestore"
    assert [decode_message(each).message_id for each in field.arrived(entity)] == ["mgood"]


def test_what_another_syphon_deferred_since_our_look_does_not_keep_it_from_being_empty(field: Field) -> None:
    entity = field.entity()
    drain = field.drain()
    drain.run(30, until=lambda: requests(field) > 0)
    drain.close()  # or it would take up what is filled in here
    field.defer([wrap(message(n), entity) for n in range(10)])
    done = until_empty(drain, within=30)
    assert done.empty
    assert field.accepted(entity) == 10


def test_a_settlement_by_token_that_fails_is_tried_again_and_is_no_lost_lock(field: Field) -> None:
    entity = field.entity()
    drain = field.drain()
    field.defer([wrap(message("one"), entity)])
    field.secondary.hang(ManagementAnswer(500, operation="update-disposition", count=2), field.queue(0))
    report = field.until_empty(drain)
    assert field.taken(entity) == {"mone": 1}
    assert (report.moved, report.total("lost_locks"), report.total("unconfirmed")) == (1, 0, 0)


def test_a_settlement_by_token_that_never_succeeds_is_told_as_unconfirmed(field: Field) -> None:
    entity = field.entity(requires_duplicate_detection=True)
    drain = field.drain(send_timeout="2s")
    field.defer([wrap(message(n), entity) for n in range(30)])
    hung = field.secondary.hang(ManagementAnswer(500, operation="update-disposition"), field.queue(0))
    report = drain.run(30, until=lambda: field.accepted(entity) == 30 and drain.at_rest)
    assert (report.moved, report.total("lost_locks"), report.total("unconfirmed")) == (0, 0, 30)
    field.secondary.undo(hung)
    field.secondary.expire_locks(field.queue(0))
    assert field.until_empty(drain).moved == 30
    assert field.taken(entity) == {f"m{n}": 1 for n in range(30)}


def test_a_lock_that_could_not_be_renewed_for_another_reason_is_not_given_up(field: Field) -> None:
    entity = field.entity()
    clock = MovableClock()
    drain = field.drain(clock=clock)
    field.primary.hang(Busy(count=1, description="Please wait 60 seconds."), entity)
    field.defer([wrap(message("one"), entity)])
    field.secondary.hang(ManagementAnswer(500, operation="renew-lock", count=1), field.queue(0))
    steps = iter(
        [
            (lambda: not field.primary.faults(), RENEW_AFTER + 5),  # it waits, and the lock is to be renewed
            (lambda: not field.secondary.faults(), 60),  # which has failed
        ]
    )
    step = next(steps)

    def renewal_fails() -> bool:
        nonlocal step
        condition, ahead = step
        if ahead and condition():
            clock.ahead += ahead
            step = next(steps, (condition, 0))
        return field.empty()()

    report = drain.run(60, until=renewal_fails)
    assert field.empty()()
    assert field.taken(entity) == {"mone": 1}
    assert (report.moved, report.total("lost_locks")) == (1, 0)
