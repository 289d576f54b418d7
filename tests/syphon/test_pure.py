"""The parts of the syphon that need neither time nor network."""

import threading
import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_sb_sink.failover import Health
from spark_sb_sink.syphon.empty import until_empty
from spark_sb_sink.syphon.planning import LANE_SHARE, PROBE, Can, Do, Halving, ability, appetite, decide, fitting
from spark_sb_sink.syphon.rate import AHEAD, OVERFLOW_SHARE, Bucket, Shares, in_hand, task_share
from spark_sb_sink.syphon.receipts import Ledger, Receipt, Report

CANS = st.lists(st.sampled_from(Can), max_size=5)


@given(CANS, st.integers(0, 5000))
def test_nothing_is_asked_for_while_nothing_shown_can_move(cans: list[Can], room: int) -> None:
    wanted = appetite(cans, room)
    assert 0 <= wanted <= room
    if cans and not {Can.MOVE, Can.PROBE} & set(cans):
        assert wanted == 0
    elif Can.MOVE in cans or not cans:
        assert wanted == room
    else:
        assert wanted <= PROBE


@given(st.sampled_from(Can), CANS)
def test_messages_are_put_aside_only_to_let_others_pass(can: Can, others: list[Can]) -> None:
    done = decide(can, [can, *others])
    assert (done is Do.SEND) == (can is not Can.NOT)
    if done is Do.DEFER:
        assert {Can.MOVE, Can.PROBE} & set(others)
    if done is Do.RELEASE:
        assert not {Can.MOVE, Can.PROBE} & set(others)


@given(st.sampled_from(Health), st.integers(0, 2 * LANE_SHARE))
def test_what_failed_over_or_refuses_us_is_down_and_what_is_healthy_never(health: Health, waiting: int) -> None:
    assert ability(health, waiting, refused=True, doubtful=True) is Can.NOT
    assert ability(health, waiting, doubtful=True) in (Can.NOT, Can.HOLD if waiting else Can.PROBE)
    found = ability(health, waiting)
    assert (found is Can.NOT) == (health is Health.FAILED_OVER or (health is Health.SUSPECT and waiting >= LANE_SHARE))
    if health is Health.HEALTHY:
        assert found is Can.MOVE


@given(st.integers(1, 6000), st.integers(-10_000, 10**8), st.floats(0, 10**6))
def test_at_least_one_message_is_asked_for_however_large_messages_are(room: int, left: int, average: float) -> None:
    assert 1 <= fitting(room, left, average) <= room


@given(st.sets(st.integers(1, 2**62), max_size=300), st.data())
def test_halving_takes_all_that_is_free_and_asks_within_one_partition(numbers: set[int], data: st.DataObject) -> None:
    locked = set(data.draw(st.lists(st.sampled_from(sorted(numbers)), max_size=5))) if numbers else set()
    plan = Halving(sorted(numbers), patience=10_000)
    taken: list[int] = []
    while asked := plan.next():
        assert len({number >> 48 for number in asked}) == 1
        if locked.isdisjoint(asked):
            taken += asked
            plan.succeeded()
        else:
            plan.failed()
    assert sorted(taken) == sorted(numbers - locked)
    assert plan.skipped == len(locked)


@given(st.integers(1, 1000))
def test_halving_gives_up_soon_where_another_has_them_all(count: int) -> None:
    plan, requests = Halving(range(count)), 0
    while plan.next():
        plan.failed()
        requests += 1
    assert requests <= 16
    assert plan.skipped == count


@given(
    st.floats(0.5, 5000),
    st.lists(st.tuples(st.floats(0, 10), st.integers(0, 5000), st.integers(0, 100)), max_size=60),
)
def test_no_more_goes_out_than_the_rate_allows(rate: float, asked: list[tuple[float, int, int]]) -> None:
    bucket, now, sent = Bucket(rate), 0.0, 0
    bucket.take(now, 0)
    for passed, wanted, unused in asked:
        now += passed
        granted = bucket.take(now, wanted)
        assert granted <= wanted
        unused = min(unused, granted)
        bucket.give_back(unused)
        sent += granted - unused
        assert sent <= now * rate + bucket.burst + 1e-3
    wait = bucket.wait(now)
    assert bucket.take(now + wait + 1e-6, 1) == 1


@given(st.floats(0.1, 5000), st.lists(st.integers(0, 20_000), min_size=1, max_size=12))
def test_what_is_in_hand_for_the_rate_is_bounded_and_no_queue_goes_without(rate: float, held: list[int]) -> None:
    for mine in held:
        free = in_hand(rate, mine, sum(held), len(held))
        assert free is not None
        assert free == 0 or mine + free <= max(1, rate * AHEAD)
        assert free or mine
    assert in_hand(None, 1, 1, 1) is None


@given(st.floats(1, 1e6), st.integers(1, 50), st.booleans())
def test_all_tasks_and_the_overflow_together_keep_the_rate(rate: float, tasks: int, overflow: bool) -> None:
    share = task_share(rate, tasks, overflow=overflow)
    assert share is not None
    assert share * tasks + (rate * OVERFLOW_SHARE if overflow else 0) == pytest.approx(rate)
    assert task_share(None, tasks, overflow=overflow) is None


def test_the_overflow_waits_for_the_turn_that_leaves_it_its_share() -> None:
    shares, stop, begun = Shares(100.0, 2), threading.Event(), threading.Event()

    def overflow() -> None:
        with shares.for_overflow(stop) as mine:
            if mine:
                begun.set()
                stop.wait(20)

    assert shares.for_turn() == 50.0
    thread = threading.Thread(target=overflow)
    thread.start()
    assert not begun.wait(0.5), "the turn under way has all of the rate"
    assert shares.for_turn() == 25.0
    assert begun.wait(20)
    assert shares.for_turn() == 25.0
    stop.set()
    thread.join(20)
    assert shares.for_turn() == 50.0
    with shares.for_overflow(stop) as mine:
        assert not mine, "stopped before its turn came"
    with Shares(None, 1).for_overflow(threading.Event()) as mine:
        assert mine


@dataclass
class Scripted:
    """In the place of a drain: runs that bring what the test says, and nothing is ever left."""

    receipts: list[tuple[Receipt, ...]]
    runs: int = 0

    def __post_init__(self) -> None:
        self.factory = SimpleNamespace(options=SimpleNamespace(settle_time=0.05))

    def run(self, seconds: float) -> Report:
        time.sleep(seconds)
        self.runs += 1
        return Report(self.receipts.pop(0) if self.receipts else ())

    def look(self, most: int) -> dict[str, int | None]:
        return {"q": 0}


@pytest.mark.parametrize(("receipts", "runs"), [([], 2), ([(), (Receipt("q", "e", moved=1),)], 3)])
def test_what_moves_between_two_looks_begins_the_settle_time_anew(receipts: list[Any], runs: int) -> None:
    drain = Scripted(receipts)
    assert until_empty(drain).empty  # type: ignore[arg-type]
    assert drain.runs == runs


def test_without_a_rate_all_may_go() -> None:
    assert Bucket(None).take(0.0, 10_000) == 10_000
    assert Bucket(None).wait(0.0) == 0.0


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["moved", "deferred"]), st.integers(1, 9)), max_size=50)
)
def test_receipts_add_up(noted: list[tuple[str, str, int]]) -> None:
    ledger = Ledger()
    for entity, what, size in noted:
        ledger.note("q", entity, what, size, size)
    report = ledger.take()
    assert report.moved == sum(what == "moved" for _, what, _ in noted)
    assert report.total("deferred") == len(noted) - report.moved
    assert report.total("bytes") == sum(size for _, what, size in noted if what == "moved")
    for receipt in report.receipts:
        assert receipt.oldest_ms == min(size for entity, _, size in noted if entity == receipt.entity)
    assert ledger.take().receipts == ()
