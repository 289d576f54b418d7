"""The syphon as a streaming query: an outage and its end, with the sink, the overflow, and what Delta tells of it."""

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_sb_sink.broker import BrokerProcess
from spark_sb_sink.broker.faults import LateVisible, Refuse, Reject
from spark_sb_sink.errors import OptionError
from spark_sb_sink.events import SyphonTurn
from spark_sb_sink.syphon.lease import Lease
from spark_sb_sink.syphon.query import Syphon
from spark_sb_sink.syphon.turn import Patience, split
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
    ground.primary.hang(Refuse())
    for number in range(2):
        ground.secondary.disable(ground.queue(number))
    df = ground.spark.createDataFrame(samples.table(everything.rows)).repartition(2)
    told = sink.write(df)
    assert sum(view.counts.overflow for view in told.entities) == len(everything.rows)
    ground.primary.undo()
    for number in range(2):
        ground.secondary.enable(ground.queue(number))
    drained = syphon(ground, state=state).drain_until_empty(ground.spark, within=180)
    assert drained.empty
    assert drained.overflow_empty
    everything.check()
    again = syphon(ground, state=state).drain_until_empty(ground.spark, within=180)
    assert again.empty
    assert again.moved == 0, "what was drained is not sent again by the next syphon"
    rows = ground.spark.read.format("delta").load(f"{state}/transfers").collect()
    assert Counter({(row.queue, row.entity): row.moved for row in rows}) == Counter(
        {("overflow", name): count for name, count in Counter(row["entity"] for row in everything.rows).items()}
    )


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


def test_a_running_syphon_moves_what_comes_and_two_share_the_work(ground: SinkGround) -> None:
    entity = ground.entity(requires_duplicate_detection=True)
    fault = ground.primary.hang(Reject(), entity)
    sink = ground.sink(failover_interval="0s", ping_interval="30m")
    sink.write(ground.rows([entity], 30, tag="a-"))
    with syphon(ground, ping_interval="1s").start(ground.spark) as one:
        ground.primary.undo(fault)
        await_that(lambda: ground.accepted(entity) >= 30, 60)
        sink.write(ground.rows([entity], 30, tag="b-"))
        await_that(lambda: ground.primary.counts(entity)["active"] == 60, 60)
        assert one.active
    assert not one.active


def test_a_syphon_in_the_sinks_application_needs_a_slot_to_spare(ground: SinkGround) -> None:
    options = ground.options(syphon_tasks=2, **CALM)
    with pytest.raises(OptionError, match=r"needs 3 task slots .* has 2"):
        Syphon(options, slots_taken=1).start(ground.spark)


def test_of_many_syphons_one_has_the_lease(ground: SinkGround) -> None:
    from spark_sb_sink.delta_state import DeltaState

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


def test_two_that_ask_for_the_lease_at_once_do_not_both_get_it(ground: SinkGround) -> None:
    from spark_sb_sink.delta_state import DeltaState

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
    assert patience.found(False)
