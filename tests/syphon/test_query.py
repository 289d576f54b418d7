"""The syphon as a streaming query: an outage and its end, with the sink, the overflow, and what Delta tells of it."""

import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from spark_sb_sink.broker import BrokerProcess
from spark_sb_sink.broker.faults import CbsAnswer, LateVisible, Refuse, Reject
from spark_sb_sink.delta_state import TRANSFERS, DeltaState
from spark_sb_sink.errors import ClosedError, OptionError, OverflowLeftError, UnsupportedSparkError
from spark_sb_sink.events import RouteCounts, SyphonTurn, Warned
from spark_sb_sink.lanes import Table
from spark_sb_sink.options import Options
from spark_sb_sink.sender import PairedSender
from spark_sb_sink.state_look import look
from spark_sb_sink.syphon.beside import SyphonBeside
from spark_sb_sink.syphon.lease import FOR_SECONDS, MARGIN, RENEW_AFTER, ConflictError, Lease
from spark_sb_sink.syphon.overflow_drain import OverflowDrain, OverflowSent
from spark_sb_sink.syphon.query import RunningSyphon, Syphon
from spark_sb_sink.syphon.receipts import Ledger
from spark_sb_sink.syphon.transfers import of_overflow, of_turn
from spark_sb_sink.syphon.transfers import rows as transfer_rows
from spark_sb_sink.syphon.turn import Patience, TurnReport, left_of, split
from tests.commands.tables import Tables
from tests.commands.tables import message as stored_message
from tests.conftest import await_that
from tests.paired.ground import CALM
from tests.sink import samples
from tests.sink.support import SinkGround
from tests.sink.test_arrival import Everything


@pytest.fixture
def ground(broker: BrokerProcess, spark: SparkSession, tmp_path: Path) -> Iterator[SinkGround]:
    with SinkGround(broker, tmp_path, spark) as made:
        yield made


def syphon(ground: SinkGround, **changed: Any) -> Syphon:
    told = {"settle_time": "0s", "long_poll": "2s", **CALM, **changed}
    return Syphon(ground.options(**told), listeners=[ground.events.append])


def test_what_the_backlog_took_arrives_as_if_it_had_been_sent_directly(ground: SinkGround) -> None:
    everything = Everything(ground)
    df = ground.spark.createDataFrame(samples.table(everything.rows)).repartition(2)
    ground.primary.hang(Refuse())
    state = ground.sink(failover_interval="0s", ping_interval="30m").write(df)
    assert {view.counts.backlog for view in state.entities} - {0}
    assert sum(view.counts.backlog for view in state.entities) == len(everything.rows)
    ground.primary.undo()
    drained = syphon(ground).drain_until_empty(ground.spark, within=120)
    assert drained.empty
    assert drained.moved == len(everything.rows)
    everything.check()
    turns = ground.of(SyphonTurn)
    assert sum(moved.moved for turn in turns for moved in turn.moved) == len(everything.rows)
    assert all(moved.oldest_ms and moved.bytes for turn in turns for moved in turn.moved if moved.moved)


def test_overflow_comes_home_too_and_delta_tells_of_every_transfer(ground: SinkGround) -> None:
    everything = Everything(ground)
    state = str(ground.folder / "state")
    sink = ground.sink(failover_interval="0s", ping_interval="30m", state=state)
    sink.write(ground.rows([everything.queue], 0))  # the pair is made while all is well
    diverted = ground.entity()
    ground.primary.hang(Refuse())
    sink.write(ground.rows([diverted], 10))
    for number in range(2):
        ground.secondary.disable(ground.queue(number))
    df = ground.spark.createDataFrame(samples.table(everything.rows)).repartition(2)
    told = sink.write(df)
    assert sum(view.counts.overflow for view in told.entities) == len(everything.rows)

    # While nobody takes anything, it is left, and the other of two slots is there for turns and looks.
    none = syphon(ground, state=state, failover_interval="0s", ping_interval="30m")
    drained = none.drain_until_empty(ground.spark, within=6)
    assert (drained.empty, drained.overflow_empty) == (False, False)
    assert drained.left == {ground.queue(number): None for number in range(2)}
    assert not [query.name for query in ground.spark.streams.active], "it was stopped, with all that it had begun"

    ground.primary.undo()
    for number in range(2):
        ground.secondary.enable(ground.queue(number))
    with (
        ServiceBusClient.from_connection_string(ground.secondary.connection_string) as client,
        client.get_queue_sender(ground.queue(1)) as sender,
    ):
        sender.send_messages(ServiceBusMessage("it never was in an envelope"))
    drained = syphon(ground, state=state).drain_until_empty(ground.spark, within=180)
    assert drained.empty
    assert drained.overflow_empty
    everything.check()
    assert ground.arrived(diverted).total() == 10
    once = [ground.arrived(entity) for entity in (everything.queue, everything.sessions, everything.later)]
    assert [set(each.values()) for each in once] == [{1}] * 3, "what was cut off went on, and sent it as well"
    again = syphon(ground, state=state).drain_until_empty(ground.spark, within=180)
    assert again.empty
    assert again.moved == 0, "what was drained is not sent again by the next syphon"
    rows = ground.spark.read.format("delta").load(f"{state}/transfers").collect()
    assert Counter({(row.queue, row.entity): row.moved for row in rows if row.batch_id == -1}) == Counter(
        {("overflow", name): count for name, count in Counter(row["entity"] for row in everything.rows).items()}
    )
    [nowhere] = [row for row in rows if not row.entity]
    assert (nowhere.queue, nowhere.dead_lettered, nowhere.moved) == (ground.queue(1), 1, 0)
    turns = [row for row in rows if row.batch_id >= 0 and row.entity]
    assert {row.entity for row in turns} == {diverted}
    assert {row.queue for row in turns} <= {ground.queue(number) for number in range(2)}
    assert sum(row.moved for row in turns) == 10
    assert all(not row[name] for row in turns for name in ("deferred", "dead_lettered", "lost_locks", "unconfirmed"))
    assert all(row.oldest <= row.at and row.bytes >= 20 * row.moved for row in turns)
    assert {row.syphon for row in rows} == {turn.syphon for turn in ground.of(SyphonTurn)}


def test_a_time_limit_says_what_is_left(ground: SinkGround) -> None:
    entity = ground.entity()
    ground.primary.hang(Reject(), entity)
    ground.sink(failover_interval="0s", ping_interval="30m").write(ground.rows([entity], 40))
    drained = syphon(ground, failover_interval="0s", ping_interval="30m").drain_until_empty(ground.spark, within=6)
    assert not drained.empty
    assert sum(drained.left.values()) == 40
    assert ground.arrived(entity) == {}


def test_messages_that_become_visible_late_are_waited_for(ground: SinkGround) -> None:
    entity = ground.entity()
    options = {"failover_interval": "0s", "ping_interval": "30m"}
    fault = ground.primary.hang(Reject(), entity)
    ground.secondary.hang(LateVisible(seconds=3))
    ground.sink(**options).write(ground.rows([entity], 20))
    ground.primary.undo(fault)
    drained = syphon(ground, settle_time="8s").drain_until_empty(ground.spark, within=120)
    assert drained.empty
    assert ground.arrived(entity).total() == 20


def test_a_running_syphon_moves_what_comes(ground: SinkGround) -> None:
    entity = ground.entity(requires_duplicate_detection=True)
    fault = ground.primary.hang(Reject(), entity)
    sink = ground.sink(failover_interval="0s", ping_interval="30m")
    sink.write(ground.rows([entity], 30, tag="a-"))
    state = ground.folder / "state"
    state.mkdir()
    (state / "transfers").write_text("here is no table")
    with syphon(ground, ping_interval="1s").start(ground.spark) as one:
        one.options = ground.options(state=str(state))  # for its notes alone: no overflow to drain
        ground.primary.undo(fault)
        await_that(lambda: ground.accepted(entity) >= 30, 60)
        sink.write(ground.rows([entity], 30, tag="b-"))
        await_that(lambda: ground.primary.counts(entity)["active"] == 60, 60)
        await_that(lambda: ground.of(Warned), 60)
        assert one.active
    assert "for the table transfers are not written" in ground.of(Warned)[-1].text
    assert not one.active


def test_a_syphon_in_the_sinks_application_needs_a_slot_to_spare(ground: SinkGround) -> None:
    options = ground.options(syphon_tasks=2, **CALM)
    with pytest.raises(OptionError, match=r"needs 3 task slots .* has 2"):
        Syphon(options, slots_taken=1).start(ground.spark)


def test_a_session_of_spark_connect_is_refused_with_the_reason(ground: SinkGround) -> None:
    connect = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(UnsupportedSparkError, match="Spark Connect"):
        syphon(ground).start(connect)


def test_a_stop_ends_the_turn_first_and_leaves_nothing_locked(ground: SinkGround) -> None:
    entity = ground.entity()
    fault = ground.primary.hang(Reject(), entity)
    ground.sink(failover_interval="0s", ping_interval="30m").write(ground.rows([entity], 400))
    ground.primary.undo(fault)
    with syphon(ground, max_rate=40).start(ground.spark) as running:
        await_that(lambda: ground.accepted(entity) > 0, 60)
        running.stop()  # and once more at the end of the block, which does no harm
    assert 0 < ground.accepted(entity) < 400, "it was not stopped in its middle"
    counts = [ground.secondary.counts(ground.queue(number)) for number in range(2)]
    assert sum(count["locked"] for count in counts) == 0
    assert sum(count["active"] for count in counts) == 400 - ground.accepted(entity)


def test_an_outage_of_the_secondary_is_waited_out_also_while_looking_whether_it_is_empty(ground: SinkGround) -> None:
    entity = ground.entity()
    fault = ground.primary.hang(Reject(), entity)
    ground.sink(failover_interval="0s", ping_interval="30m").write(ground.rows([entity], 20))
    ground.primary.undo(fault)
    running = RunningSyphon(syphon(ground, send_timeout="2s"), ground.spark, [ground.events.append], until_empty=True)
    ground.secondary.hang(Refuse())
    try:
        assert not running.await_empty(8), "it took queues for empty that it could not look at"
        assert running.active
        ground.secondary.undo()
        assert running.await_empty(90)
    finally:
        running.stop()
    assert ground.arrived(entity).total() == 20


def test_with_enable_syphon_the_sink_brings_its_own_backlog_home(ground: SinkGround) -> None:
    entity = ground.entity(requires_duplicate_detection=True)
    fault = ground.primary.hang(Reject(), entity)
    sink = ground.sink(failover_interval="0s", ping_interval="1s", enable_syphon=True, long_poll="2s")
    sink.write(ground.rows([entity], 30))
    assert ground.in_backlog().total() == 30
    ground.primary.undo(fault)
    await_that(lambda: ground.primary.counts(entity)["active"] == 30, 60)
    await_that(lambda: ground.of(SyphonTurn), 60)
    sink.close()
    assert not [query for query in ground.spark.streams.active if (query.name or "").startswith("spark-sb-sink")]


def test_with_enable_syphon_and_no_slot_to_spare_the_first_batch_says_so(ground: SinkGround) -> None:
    sink = ground.sink(enable_syphon=True, syphon_tasks=2)
    with pytest.raises(OptionError, match=r"needs 3 task slots \(2 for syphon_tasks, 1 for the sink\).* has 2"):
        sink.write(ground.rows([ground.entity()], 1))


def test_a_syphon_beside_the_sink_that_ended_is_told_and_started_again(
    ground: SinkGround, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    wrong = re.sub("SharedAccessKey=[^;]+", "SharedAccessKey=d3Jvbmc=", ground.secondary.connection_string)
    sink = ground.sink(secondary=wrong, pairing="assume", long_poll="2s", **CALM)
    entity = ground.entity()
    beside = SyphonBeside(sink.options, [ground.events.append], lambda: now[0])
    beside.start(ground.spark)
    sink.write(ground.rows([entity], 20, tag="a-"))
    await_that(lambda: not beside.active, 60)
    sink.write(ground.rows([entity], 20, tag="b-"))
    assert ground.arrived(entity).total() == 40, "the sink goes on, as if there were no syphon"
    beside.look_after(ground.spark)
    assert "started again in 60 s" in ground.of(Warned)[-1].text
    beside.look_after(ground.spark)
    assert not beside.active, "not before its time"
    now[0] = 61.0
    beside.look_after(ground.spark)
    assert beside.active
    sink.write(ground.rows([entity], 20, tag="c-"))
    assert ground.arrived(entity).total() == 60
    beside.stop()

    def fails(running: RunningSyphon, *_: Any) -> None:
        raise RuntimeError("an executor was lost")

    monkeypatch.setattr(RunningSyphon, "_one_turn", fails)
    now[0] = 122.0
    beside.look_after(ground.spark)
    await_that(lambda: not beside.active, 60)
    beside.look_after(ground.spark)
    assert "an executor was lost" in ground.of(Warned)[-1].text
    beside.stop()
    assert not beside.active


def ids(entity: str, count: int, tag: str = "") -> list[str]:
    return [f"{entity}-{tag}{number}" for number in range(count)]


def test_what_is_stuck_in_the_overflow_holds_up_nothing_else_and_none_is_sent_twice(ground: SinkGround) -> None:
    closed, down, well = ground.entities(3)
    state = str(ground.folder / "state")
    options = ground.options(state=state, max_rate=1000, failover_interval="0s")
    tables = Tables(ground.spark, state)
    tables.overflow(closed, *ids(closed, 20))
    tables.overflow(well, *ids(well, 20))
    body = b"x" * (256 * 1024 - len(stored_message(down, "near", body=b"x" * 300)["message"]) + 300)
    near = stored_message(down, "near", body=body)  # with the envelope on, too large for a backlog queue
    tables.unsent(Table.OVERFLOW, [near, *(stored_message(down, each) for each in ids(down, 5))])
    refusal = ground.primary.hang(CbsAnswer(403, "Unauthorized access. 'Send' claim(s) are required."), closed)
    outage = ground.primary.hang(Refuse(), down)
    for number in range(2):
        ground.secondary.disable(ground.queue(number))
    sent: list[OverflowSent] = []
    beside: list[bool] = []
    other = OverflowDrain(ground.spark, options, lambda: options, sent.append)

    def told(what: OverflowSent) -> None:
        sent.append(what)
        if not beside:
            beside.append(other.drain())

    drain = OverflowDrain(ground.spark, options, lambda: options, told)

    def left() -> dict[str, int]:
        try:
            return {} if drain.drain() else {"nobody drained": 1}
        except OverflowLeftError as error:
            return {entity: rows for entity, (rows, _) in error.entities.items()}

    with pytest.raises(OverflowLeftError, match="Send claim"):
        drain.drain()
    assert ground.arrived(well) == Counter(ids(well, 20))
    assert beside == [False], "another drained it at the same time"
    assert (sent[0].bytes[closed], sent[0].bytes[well] >= 20 * 20) == (0, True), "bytes are of what was moved"

    # What comes later passes, though what was before it is stuck still.
    tables.overflow(well, *ids(well, 10, "later-"))
    assert left() == {closed: 20, down: 6}
    assert ground.arrived(well).total() == 30
    assert look(ground.spark, state).overflow == 26
    assert drain.pending()

    # A part of what is stuck goes; the rest stays as it is.
    for number in range(2):
        ground.secondary.enable(ground.queue(number))
    await_that(lambda: left() == {closed: 20, down: 1}, 60)
    assert ground.in_backlog() == Counter(ids(down, 5))
    ground.primary.undo(refusal)
    ground.primary.undo(outage)
    await_that(lambda: left() == {}, 60)
    assert (ground.arrived(closed), ground.arrived(down)) == (Counter(ids(closed, 20)), Counter(["near"]))
    assert ground.arrived(well).total() == 30
    assert (drain.pending(), look(ground.spark, state).overflow) == (False, 0)

    # What was drained may be deleted; that is nothing to send.
    told_so_far = len(sent)
    DeltaState(ground.spark, state).delta_table("overflow").delete()
    assert OverflowDrain(ground.spark, options, lambda: options, sent.append).drain()
    assert len(sent) == told_so_far


class Watched(Lease):
    """A lease by a clock of the test's, that tells when it is lost."""

    def __init__(self, ground: SinkGround, options: Options, holder: str) -> None:
        self.ahead, self.lost, self.had = 0.0, threading.Event(), False
        state = DeltaState(ground.spark, str(options.state))
        super().__init__(ground.spark, state, holder, lambda: time.time() + self.ahead)

    def take(self) -> bool:
        taken = super().take()
        if self.had and not taken:
            self.lost.set()
        self.had = taken
        return taken


def test_who_dies_or_loses_the_lease_while_draining_the_overflow_loses_nothing(ground: SinkGround) -> None:
    entity = ground.entity(requires_duplicate_detection=True)
    options = ground.options(state=str(ground.folder / "state"), **CALM)
    Tables(ground.spark, str(options.state)).overflow(entity, *ids(entity, 500))

    def dying() -> Options:
        """In the worker: it is killed once the first batch was accepted."""
        plain = PairedSender._attempt

        async def attempt(*given: Any, **named: Any) -> Any:
            await plain(*given, **named)
            os.kill(os.getpid(), signal.SIGKILL)

        PairedSender._attempt = attempt  # type: ignore[method-assign]
        return options

    def drain_of(holder: str, told: Callable[[OverflowSent], None], shipped: Callable[[], Options]) -> OverflowDrain:
        made = OverflowDrain(ground.spark, options, shipped, told)
        made.lease = Watched(ground, options, holder)
        return made

    def lose_the_lease(_: OverflowSent) -> None:
        """After the sends, before Spark commits them."""
        assert heir.lease.take()
        slow.lease.ahead += RENEW_AFTER + 1
        assert slow.lease.lost.wait(60)

    killed = drain_of("killed", lambda sent: None, dying)
    slow = drain_of("slow", lose_the_lease, lambda: options)
    heir = drain_of("heir", lambda sent: None, lambda: options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(killed.lease, "give_back", lambda: None)  # the dead give nothing back
        with pytest.raises(StreamingQueryException):
            killed.drain()
    assert 0 < ground.accepted(entity) < 500, "it was not killed in the middle"
    assert not slow.drain(), "the dead one has the lease still"
    slow.lease.ahead = FOR_SECONDS + 1
    heir.lease.ahead = 3 * FOR_SECONDS
    assert not slow.drain(), "it went on without the lease"
    assert heir.drain()
    assert ground.arrived(entity) == Counter(ids(entity, 500))


def test_of_many_syphons_one_has_the_lease(ground: SinkGround) -> None:
    now = [1000.0]
    state = DeltaState(ground.spark, str(ground.folder / "state"))
    one, other = (Lease(ground.spark, state, name, lambda: now[0]) for name in ("one", "other"))
    assert one.take()
    assert not other.take()
    now[0] += 100
    assert one.take()
    now[0] += 100
    assert not other.take(), "it was renewed"
    one.give_back()
    assert other.take()
    assert not one.take()
    now[0] += 1000
    assert one.take(), "whoever died keeps it no longer than its time"
    # Others write to the table whenever we do, for their own leases: ours is ours until its time is nearly up.
    disturbed = Disturbed(ground.spark, state, "other", lambda: now[0])
    now[0] += 1000
    assert disturbed.take()
    disturbed.at_odds = True
    now[0] += RENEW_AFTER + 1
    assert disturbed.take()
    now[0] += FOR_SECONDS - MARGIN - RENEW_AFTER
    assert not disturbed.take()
    disturbed.at_odds = False
    assert disturbed.take(), "nobody else had it"


class Disturbed(Lease):
    """One that is in conflict with others when the test says so."""

    at_odds = False

    def _update(self, until: float, condition: str) -> bool:
        if self.at_odds:
            raise ConflictError
        return super()._update(until, condition)


def test_two_that_ask_for_the_lease_at_once_do_not_both_get_it(ground: SinkGround) -> None:
    state = DeltaState(ground.spark, str(ground.folder / "state"))
    state.delta_table("lease")
    found: list[bool] = []
    threads = [
        threading.Thread(target=lambda n=n: found.append(Lease(ground.spark, state, f"holder {n}").take()))
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sum(found) == 1


def test_each_count_of_a_turn_and_of_the_overflow_has_its_column(ground: SinkGround) -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    ledger = Ledger()
    counted = {"moved": 1, "deferred": 2, "dead_lettered": 3, "lost_locks": 4, "unconfirmed": 5}
    for what, count in counted.items():
        for number in range(count):
            ledger.note("b/3", "orders", what, 1000 * (9 - number), 77)
    overflow = OverflowSent(
        21, (RouteCounts("bills", 6, 7, 0, 8), RouteCounts("left", 0, 0, 9)), {"bills": 9000}, {"bills": 10}
    )
    state = DeltaState(ground.spark, str(ground.folder / "state"))
    turn, sent = of_turn(ledger.take().receipts), of_overflow(overflow)
    state.note_transfers([*transfer_rows(at, "one", 11, turn), *transfer_rows(at, "two", -1, sent)])
    turned, drained = (row.asDict() for row in state.read(TRANSFERS).orderBy("syphon").collect())
    assert turned == {
        **{"at": turned["at"], "syphon": "one", "batch_id": 11, "queue": "b/3", "entity": "orders", **counted},
        **{"oldest": datetime.fromtimestamp(5), "bytes": 77},
    }
    assert drained == {
        **{"at": turned["at"], "syphon": "two", "batch_id": -1, "queue": "overflow", "entity": "bills", "moved": 6},
        **{"deferred": 7, "dead_lettered": 8, "lost_locks": 0, "unconfirmed": 0},
        **{"oldest": datetime.fromtimestamp(9), "bytes": 10},
    }
    assert turned["at"] == at.astimezone().replace(tzinfo=None)


def test_queues_are_dealt_to_tasks_and_none_is_left_out() -> None:
    assert split(10, 1) == [tuple(range(10))]
    assert sorted(queue for part in split(10, 3) for queue in part) == list(range(10))


def test_empty_means_twice_a_settle_time_apart() -> None:
    now = [0.0]
    patience = Patience(60.0, lambda: now[0])
    assert not patience.found(False)
    now[0] = 59.0
    assert not patience.found(False)
    assert not patience.found(True)
    now[0] = 120.0
    assert not patience.found(False)
    now[0] = 180.0
    assert not patience.found(False, moved=True), "something was there, so it begins anew"
    now[0] = 239.0
    assert not patience.found(False)
    now[0] = 240.0
    assert patience.found(False)


def test_what_a_task_could_not_look_at_is_not_taken_for_empty() -> None:
    reports = [TurnReport((0, 2), left={"b/0": 3, "b/2": 0}), TurnReport((1,), error=ClosedError("The drain"))]
    assert left_of(reports, "b/") == {"b/0": 3, "b/2": 0, "b/1": None}
