"""What the driver learns from the reports of tasks: states, hints for the next micro-batch, totals."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_sb_sink import knowledge as module
from spark_sb_sink.board_records import NotedChange
from spark_sb_sink.events import RouteCounts
from spark_sb_sink.failover import Health, StateChange
from spark_sb_sink.knowledge import Knowledge, added, counts_of
from spark_sb_sink.lanes import LaneTotals
from spark_sb_sink.receipts import TaskReport

OUT, TRIAL, DOUBT, WELL = Health.FAILED_OVER, Health.PROBATION, Health.SUSPECT, Health.HEALTHY


def change(
    number: int, after: Health, entity: str = "orders", board: str = "a", at: float | None = None
) -> NotedChange:
    before = WELL if after is not WELL else OUT
    at = float(number) if at is None else at
    return NotedChange(board, number, StateChange(entity, before, after, f"reason {number}", at), at)


def report(board: str, *changes: NotedChange, lanes: tuple[LaneTotals, ...] = ()) -> TaskReport:
    return TaskReport(0, sum(lane.total for lane in lanes), lanes, board, changes)


def sent(board: str, entity: str = "orders", **counts: int) -> TaskReport:
    return report(board, lanes=(LaneTotals(entity, **counts),))


def test_an_entity_that_one_executor_failed_over_is_a_hint_until_that_executor_has_it_back() -> None:
    known = Knowledge()
    known.learn([report("a", change(1, DOUBT))], ())
    assert known.hints() == ()
    known.learn([report("a", change(2, OUT))], ())
    assert known.hints() == ("orders",)
    known.learn([report("a", change(3, TRIAL))], known.hints())
    assert known.hints() == ()


def test_a_change_that_several_tasks_of_an_executor_report_is_told_once() -> None:
    known = Knowledge()
    first, second = change(1, DOUBT), change(2, OUT)
    assert known.learn([report("a", first), report("a", first, second)], ()) == [first, second]
    assert known.learn([report("a", first, second)], ()) == []
    assert known.known() == {"a": 2}


def test_the_mark_of_a_board_stays_where_it_is_when_nothing_changes() -> None:
    known = Knowledge()
    known.learn([report("a", change(7, OUT)), report("b")], ())
    known.learn([report("a"), report("b")], ())
    assert known.known() == {"a": 7, "b": 0}


def test_changes_of_several_executors_are_told_in_the_order_of_their_time() -> None:
    known = Knowledge()
    late, early = change(1, OUT, board="a", at=20.0), change(9, DOUBT, board="b", at=10.0)
    assert known.learn([report("a", late), report("b", early)], ()) == [early, late]


def test_an_executor_that_is_gone_keeps_no_hint_alive_once_a_hinted_one_sends_to_the_primary() -> None:
    known = Knowledge()
    known.learn([report("gone", change(1, OUT, board="gone"))], ())
    known.learn([sent("b", primary=5)], known.hints())
    assert known.hints() == ()
    assert known.state()["orders"].health is WELL


@pytest.mark.parametrize(
    "counts", [{"backlog": 5}, {"primary": 2, "backlog": 3}, {"overflow": 5}, {}], ids=lambda counts: str(counts)
)
def test_a_hint_stays_where_the_hinted_executor_did_not_send_all_to_the_primary(counts: dict[str, int]) -> None:
    known = Knowledge()
    known.learn([report("gone", change(1, OUT, board="gone"))], ())
    known.learn([sent("b", **counts)], known.hints())
    assert known.hints() == ("orders",)


def test_a_success_of_another_entity_refutes_nothing() -> None:
    known = Knowledge()
    known.learn([report("gone", change(1, OUT, board="gone"))], ())
    known.learn([sent("b", "bills", primary=5)], known.hints())
    assert known.hints() == ("orders",)


def test_a_success_that_had_not_been_hinted_refutes_nothing() -> None:
    # The tasks of the first micro-batch: one executor failed over, the other had no fault at all.
    known = Knowledge()
    known.learn([report("a", change(1, OUT)), sent("b", primary=5)], ())
    assert known.hints() == ("orders",)


def test_an_executor_that_is_heard_and_still_fails_over_is_not_outvoted() -> None:
    known = Knowledge()
    known.learn([report("a", change(1, OUT))], ())
    known.learn([sent("a", backlog=5), sent("b", primary=5)], known.hints())
    assert known.hints() == ("orders",)


def test_boards_that_were_not_heard_of_for_longest_are_forgotten_with_their_hints(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MOST_BOARDS", 2)
    known = Knowledge()
    known.learn([report("a", change(1, OUT, board="a"))], ())
    known.learn([report("b", change(1, OUT, "bills", board="b"))], ())
    known.learn([report("a")], ())  # heard of again, so b is the oldest now
    known.learn([report("c")], ())
    assert known.known() == {"a": 1, "c": 0}
    assert known.hints() == ("orders",)


def test_the_state_shows_the_worst_that_an_executor_believes_with_its_reason_and_time() -> None:
    known = Knowledge()
    known.learn(
        [
            report("a", change(3, WELL, board="a")),
            report("b", change(4, OUT, board="b")),
            report("c", change(5, DOUBT, board="c")),
        ],
        (),
    )
    seen = known.state()["orders"]
    assert (seen.health, seen.reason, seen.changed_at) == (OUT, "reason 4", 4.0)


def test_an_entity_without_any_change_is_healthy() -> None:
    known = Knowledge()
    known.count(3, [RouteCounts("orders", primary=3)])
    seen = known.state()["orders"]
    assert (seen.health, seen.reason, seen.changed_at, seen.counts.primary) == (WELL, "", None, 3)


def test_an_entity_that_nobody_has_heard_of_is_no_part_of_the_state() -> None:
    with pytest.raises(KeyError, match="orders"):
        Knowledge().state()["orders"]


def test_the_state_can_be_asked_for_while_batches_are_counted_and_is_that_of_one_moment() -> None:
    before = sys.getswitchinterval()
    known, seen = Knowledge(), []
    done = threading.Event()

    def count() -> None:
        for number in range(150):
            boards = [f"b{number}-{at}" for at in range(5)]
            known.learn([report(board, change(1, OUT, board=board)) for board in boards], ())
            known.count(2, [RouteCounts("orders", primary=1), RouteCounts(f"e{number}", primary=1)])
        done.set()

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(1) as pool:
            counting = pool.submit(count)
            while not done.is_set() and not counting.done():
                seen.append(known.state())
            counting.result()
    finally:
        sys.setswitchinterval(before)
    assert all(state.rows == 2 * state.batches for state in seen)
    assert all(state.rows == sum(view.counts.total for view in state.entities) for state in seen)


routes = st.builds(
    RouteCounts,
    st.sampled_from(["orders", "bills", "zebras"]),
    *[st.integers(0, 1000)] * 5,
)


@given(st.lists(st.lists(routes, max_size=5), max_size=5))
def test_the_totals_are_the_sums_of_all_batches(batches: list[list[RouteCounts]]) -> None:
    known = Knowledge()
    for batch in batches:
        known.count(sum(counts.total for counts in batch), batch)
    state = known.state()
    everything = [counts for batch in batches for counts in batch]
    assert state.batches == len(batches)
    assert state.rows == sum(counts.total for counts in everything) == sum(seen.counts.total for seen in state.entities)
    for route in ("primary", "backlog", "overflow", "quarantine", "abandoned"):
        for seen in state.entities:
            wanted = sum(getattr(counts, route) for counts in everything if counts.entity == seen.entity)
            assert getattr(seen.counts, route) == wanted
    assert [seen.entity for seen in state.entities] == sorted({counts.entity for counts in everything})


@given(st.lists(st.lists(routes, max_size=5), max_size=5))
def test_the_counts_of_a_batch_have_each_entity_once_and_every_row(tasks: list[list[RouteCounts]]) -> None:
    lanes = [
        tuple(LaneTotals(c.entity, c.primary, c.backlog, c.overflow, c.quarantine, c.abandoned) for c in task)
        for task in tasks
    ]
    found = counts_of(TaskReport(0, 0, of_task, "a") for of_task in lanes)
    assert [counts.entity for counts in found] == sorted({counts.entity for task in tasks for counts in task})
    wanted = RouteCounts("all")
    for task in tasks:
        for counts in task:
            wanted = added(wanted, counts)
    total = RouteCounts("all")
    for counts in found:
        total = added(total, counts)
    assert total == wanted


healths = st.sampled_from([OUT, TRIAL, DOUBT, WELL])
histories = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["orders", "bills"]), healths), max_size=20)


@given(histories, st.data())
def test_however_reports_overlap_each_change_is_told_once_and_the_last_one_of_each_board_counts(
    history: list[tuple[str, str, Health]], data: st.DataObject
) -> None:
    """Tasks report all since the mark that they were given, so neighbours report the same; late ones report more."""
    noted = [change(at, health, entity, board) for at, (board, entity, health) in enumerate(history, 1)]
    known, told, done = Knowledge(), [], 0
    while done < len(noted):
        done = data.draw(st.integers(done + 1, len(noted)))
        reports = []
        for board in "ab":
            for _ in range(data.draw(st.integers(1, 2))):
                mark = data.draw(st.integers(0, known.known().get(board, 0)))
                reports.append(report(board, *(each for each in noted[mark:done] if each.board == board)))
        told += known.learn(reports, ())
    assert told == noted
    believed = {(each.board, each.change.entity): each.change.after for each in noted}
    assert set(known.hints()) == {entity for (_, entity), health in believed.items() if health is OUT}
