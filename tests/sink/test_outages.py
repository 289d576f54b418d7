"""The sink through outages: what fails over, what does not wait, and what comes back, counted by the broker."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable

import pytest
from pyspark.errors import StreamingQueryException

from spark_sb_sink.broker import NamespaceHandle
from spark_sb_sink.broker.faults import BlackHole, FullQuota, Refuse, Reject, Shape
from spark_sb_sink.errors import AllBacklogsOutError, BatchFailedError, MisconfiguredSendError, UnsendableError
from spark_sb_sink.events import BatchFailed, BatchSent, EntityChanged
from spark_sb_sink.failover import Health
from spark_sb_sink.syphon.query import Syphon
from tests.conftest import await_that
from tests.paired.ground import CALM
from tests.sink import samples
from tests.sink.app import SinkApp
from tests.sink.support import SinkGround


def ids(entity: str, count: int, tag: str = "") -> set[str]:
    return {f"{tag}{entity}-{number}" for number in range(count)}


def moments(namespace: NamespaceHandle, entity: str, count: int, of: Callable[[Iterable[float]], float] = max) -> float:
    """When the namespace took the last, or with `min` the first, of these messages."""
    journals = (namespace.journal(found) for found in ids(entity, count))
    return of(entry.at for journal in journals for entry in journal if entry.what == "accepted")


def failovers(ground: SinkGround, entity: str) -> int:
    return sum(
        1 for change in ground.of(EntityChanged) if change.entity == entity and change.after is Health.FAILED_OVER
    )


def test_a_primary_that_dies_within_a_batch_and_heals_two_batches_later_costs_nothing(ground: SinkGround) -> None:
    entity = ground.entity(requires_duplicate_detection=True)
    sink = ground.sink(failover_interval="1s", ping_interval="1s", send_timeout="2s")
    stream = ground.stream(sink, samples.PLAIN_DDL)
    stream.start()
    stream.send(ground.rows([entity], 100, tag="a-"))
    with ground.primary.fault(Shape(latency=0.3)):  # so that it is in the middle of it
        stream.put(ground.rows([entity], 20_000, tag="b-"))
        await_that(lambda: ground.accepted(entity) > 100, 60)
        ground.primary.hang(Refuse())
        ground.primary.cut()
        stream.settle()
    assert 0 < ground.accepted(entity) - 100 < 20_000
    assert failovers(ground, entity) == 1
    stream.send(ground.rows([entity], 100, tag="c-"))
    stream.send(ground.rows([entity], 100, tag="d-"))
    last = ground.of(BatchSent)[-2:]
    assert [[(e.primary, e.backlog) for e in event.entities] for event in last] == [[(0, 100)], [(0, 100)]]
    assert failovers(ground, entity) == 1, "an interval of its own for a batch"
    assert sink.state()[entity].health is Health.FAILED_OVER

    ground.primary.undo()
    await_that(lambda: ground.pings(entity) == 1, 30)
    wanted = ids(entity, 100, "a-") | ids(entity, 20_000, "b-") | ids(entity, 100, "c-") | ids(entity, 100, "d-")

    def is_back() -> bool:  # the worker may hear of the answer to its ping a moment after the broker gave it
        tag = f"e{len(ground.of(BatchSent))}-"
        wanted.update(ids(entity, 10, tag))
        stream.send(ground.rows([entity], 10, tag=tag))
        return bool(ground.of(BatchSent)[-1].entities[0].primary == 10)

    await_that(is_back, 60)
    changes = [change.after for change in ground.of(EntityChanged)]
    assert changes == [Health.SUSPECT, Health.FAILED_OVER, Health.PROBATION, Health.HEALTHY]
    assert sink.state()[entity].health is Health.HEALTHY
    assert ground.pings(entity) == 1, "one ping is enough"
    assert stream.query is not None
    assert stream.query.isActive

    # What waits in the backlog comes home, and with duplicate detection each message is there once.
    assert (ground.arrived(entity) + ground.in_backlog()).keys() == wanted
    stream.stop()
    homeward = Syphon(ground.options(settle_time="0s", long_poll="2s", **CALM), listeners=[])
    assert homeward.drain_until_empty(ground.spark, within=120).empty
    assert ground.arrived(entity) == Counter(wanted)
    assert ground.primary.counts(entity)["active"] == len(wanted)


def test_workers_that_spark_ended_for_idleness_leave_their_knowledge_behind(ground: SinkGround) -> None:
    entity = ground.entity()
    options = ground.plain_options(failover_interval="2s", ping_interval="30m", send_timeout="2s")
    with SinkApp(ground.folder, options, samples.PLAIN_DDL, "local[2]") as app:
        app.start()
        app.send(samples.plain([(entity, f"a{n}") for n in range(10)]))
        ground.primary.hang(Reject(), entity)
        app.send(samples.plain([(entity, f"b{n}") for n in range(10)]))
        assert app.of("BatchSent")[-1]["entities"][0]["backlog"] == 10
        assert app.python_workers()
        await_that(lambda: not app.python_workers(), 150)  # Spark ends them a minute after their last task
        changes = len(app.of("EntityChanged"))
        transfers = ground.primary.counters(entity)["events"]
        app.send(samples.plain([(entity, f"c{n}") for n in range(10)]))
        assert app.of("BatchSent")[-1]["entities"][0]["backlog"] == 10
        assert len(app.of("EntityChanged")) == changes, "the new workers began with an interval of their own"
        assert ground.primary.counters(entity)["events"] == transfers, "the primary was tried again"


@pytest.mark.parametrize("wide", [False, True], ids=["with state as a path", "with state as a table prefix"])
def test_with_primary_and_backlog_down_rows_go_to_overflow_and_the_query_goes_on(
    ground: SinkGround, wide: bool
) -> None:
    entity, healthy = ground.entities(2)
    state = f"overflow_{ground.name.replace('-', '_')}" if wide else str(ground.folder / "state")
    sink = ground.sink(state=state, failover_interval="0s", ping_interval="30m", send_timeout="2s")
    stream = ground.stream(sink, samples.PLAIN_DDL)
    stream.start()
    stream.send(ground.rows([healthy], 1, tag="first-"))  # the pair was made while all was well
    ground.primary.hang(Reject(), entity)
    ground.secondary.stop()
    stream.send(ground.rows([entity, healthy], 50))
    counts = {each.entity: each for each in ground.of(BatchSent)[-1].entities}
    assert (counts[entity].overflow, counts[healthy].primary) == (50, 50)
    read = (
        ground.spark.table(f"{state}_overflow") if wide else ground.spark.read.format("delta").load(f"{state}/overflow")
    )
    rows = read.collect()
    assert {row.message_id for row in rows} == ids(entity, 50)
    assert {row.entity for row in rows} == {entity}
    assert {bytes(row.body).decode() for row in rows} == {f"body {n}" for n in range(50)}
    assert {(row.batch_id, row.reason) for row in rows} == {(1, "all backlog queues are out")}
    stream.send(ground.rows([entity, healthy], 10, tag="more-"))
    assert stream.query is not None
    assert stream.query.isActive
    assert read.count() == 60


def test_without_state_the_batch_fails_with_every_queue_named_and_a_restart_sends_all(ground: SinkGround) -> None:
    entity, healthy = ground.entities(2)
    sink = ground.sink(failover_interval="0s", ping_interval="1s", send_timeout="2s", pairing="assume")
    stream = ground.stream(sink, samples.PLAIN_DDL)
    stream.start()
    ground.primary.hang(Reject(), entity)
    ground.secondary.stop()
    stream.put(ground.rows([entity, healthy], 50))
    with pytest.raises(StreamingQueryException) as caught:
        stream.settle()
    assert AllBacklogsOutError.__name__ in str(caught.value)
    for number in (0, 1):
        assert ground.queue(number) in str(caught.value)
    assert ground.arrived(healthy).keys() == ids(healthy, 50)
    [failed] = ground.of(BatchFailed)
    assert failed.batch_id == 0
    ground.primary.undo()
    ground.secondary.start()
    stream.sink = ground.sink(failover_interval="10s", pairing="assume")
    stream.start()
    stream.settle()
    assert (ground.arrived(entity) + ground.in_backlog()).keys() == ids(entity, 50)


def test_48_healthy_entities_of_50_are_sent_once_before_the_batch_fails_for_a_missing_claim(ground: SinkGround) -> None:
    names = ground.entities(50)
    dead, refused, *healthy = names
    sink = ground.sink(failover_interval="1s", ping_interval="30m", send_timeout="10s", max_links=64)
    ground.primary.hang(BlackHole("accept"), dead)
    ground.primary.hang(Reject("amqp:unauthorized-access", "Send claim(s) are required"), refused)
    with pytest.raises(MisconfiguredSendError) as caught:
        sink.write(ground.rows(names, 20))
    assert caught.value.entity == refused
    assert caught.value.claim == "Send"
    for name in healthy:
        assert ground.arrived(name) == Counter(ids(name, 20))
    assert ground.in_backlog().keys() == ids(dead, 20)
    assert ground.arrived(refused) == {}
    # None of them waited for the dead one: all were there before the first of its messages was diverted.
    last = max(moments(ground.primary, name, 20) for name in healthy)
    assert last < moments(ground.secondary, dead, 20, min)
    assert {c.entity for c in ground.of(EntityChanged) if c.after is Health.FAILED_OVER} == {dead}


def test_a_failing_entity_costs_the_micro_batch_no_more_than_its_own_failover(ground: SinkGround) -> None:
    """Healthy ones are all there while the dead one still holds its lane: nobody waits for it."""
    names = ground.entities(20)
    dead, *healthy = names
    sink = ground.sink(failover_interval="60s", send_timeout="60s")
    sink.write(ground.rows(names, 1, tag="first-"))
    ground.primary.hang(BlackHole("attach"), dead)
    ground.primary.cut()
    stream = ground.stream(sink, samples.PLAIN_DDL)
    stream.start()
    stream.put(ground.rows(names, 50))
    await_that(lambda: all(ground.accepted(name) == 51 for name in healthy), 60)
    assert not [event for event in ground.of(BatchSent) if event.rows == 20 * 50], "the dead entity was not dead"
    ground.primary.undo()
    ground.primary.cut()
    stream.settle()
    assert ground.arrived(dead).keys() == ids(dead, 50) | ids(dead, 1, "first-")


def test_queries_stop_after_a_pause_in_vain_also_those_that_wait_for_their_turn(ground: SinkGround) -> None:
    dead, other = ground.entities(2)
    sink = ground.sink(failover_interval="60s", send_timeout="60s")
    ground.primary.hang(BlackHole("attach"), dead)
    streams = [ground.stream(sink, samples.PLAIN_DDL) for _ in range(3)]
    held, waits, comes_later = queries = [stream.start() for stream in streams]
    streams[0].put(ground.rows([dead], 1))
    await_that(lambda: ground.spark.sparkContext.statusTracker().getJobIdsForGroup(held.runId), 60)
    streams[1].put(ground.rows([other], 1))
    await_that(lambda: waits.status["isTriggerActive"])
    assert not sink.pause(0.1)
    streams[2].put(ground.rows([other], 1))
    await_that(lambda: not comes_later.isActive, 60)
    assert "is closed (it was told to begin no further micro-batch)" in str(comes_later.exception())

    def stop() -> None:
        for query in (waits, held, comes_later):
            query.stop()

    stopping = threading.Thread(target=stop, daemon=True)  # so that one that hangs does not hang the rest
    stopping.start()
    stopping.join(60)
    assert not stopping.is_alive(), "a query does not stop"
    assert [query.isActive for query in queries] == [False] * 3
    assert ground.arrived(other) == {}


def test_bad_rows_go_to_quarantine_and_the_rest_are_sent(ground: SinkGround) -> None:
    entity = ground.entity(max_message_kb=256)
    df = ground.spark.sql(
        f"""SELECT * FROM VALUES
        ('{entity}', 'good', 'b', map('a', 'b')), (NULL, 'no entity', 'b', NULL), ('{entity}', 'no body', NULL, NULL),
        ('{entity}', 'alias', 'b', map('x-ms-path', 'b')), ('never-there', 'nowhere', 'b', NULL),
        ('{entity}', 'large', repeat('x', 300000), NULL) AS t(entity, message_id, body, application_properties)"""
    )
    sink = ground.sink(state=str(ground.folder / "state"), **CALM)
    sink.write(df)
    assert ground.arrived(entity) == {"good": 1}
    rows = ground.spark.read.format("delta").load(str(ground.folder / "state" / "quarantine")).collect()
    reasons = {row.message_id: row.reason for row in rows}
    assert reasons.keys() == {"no entity", "no body", "alias", "nowhere", "large"}
    assert reasons["no entity"] == "entity is null"
    assert "x-ms-path" in reasons["alias"]
    assert "too large" in reasons["large"]
    assert {row.message_id for row in rows if row.message is not None} == {"nowhere", "large"}
    assert {row.message_id for row in rows if row.row is not None} == {"no entity", "no body", "alias"}


def test_bad_rows_without_state_fail_the_batch_with_their_reasons(ground: SinkGround) -> None:
    entity = ground.entity()
    df = ground.spark.sql(f"SELECT * FROM VALUES ('{entity}', 'b'), ('{entity}', NULL), (NULL, 'b') AS t(entity, body)")
    with pytest.raises(BatchFailedError) as caught:
        ground.sink(**CALM).write(df)
    assert {type(error) for error in caught.value.errors} == {UnsendableError}
    assert "body is null" in str(caught.value)
    assert "rows without an entity" in str(caught.value)
    assert len(ground.arrived(entity)) == 1


def test_a_full_queue_fails_over_and_its_ledger_tells_of_it(ground: SinkGround) -> None:
    entity, healthy = ground.entities(2)
    sink = ground.sink(state=str(ground.folder / "state"), failover_interval="0s", ping_interval="30m")
    sink.write(ground.rows([entity, healthy], 10, tag="quiet-"), run_id="quiet")
    before = time.time()
    ground.primary.hang(FullQuota(), entity)
    sink.write(ground.rows([entity, healthy], 10), run_id="told")
    [entry] = ground.spark.read.format("delta").load(str(ground.folder / "state" / "ledger")).collect()
    assert (entry.query_id, entry.batch_id, entry.rows, entry.finished) == ("told", 0, 20, True)
    assert {(e.entity, e.primary, e.backlog) for e in entry.entities} == {(entity, 0, 10), (healthy, 10, 0)}
    assert [(c.entity, c.before, c.after) for c in entry.changes] == [(entity, "healthy", "failed over")]
    assert (entry.quiet_batches, entry.quiet_rows) == (1, 20)
    assert entry.at.timestamp() >= before - 1
