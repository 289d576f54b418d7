"""One board, many processes: they agree, whatever becomes of any of them."""

import contextlib
import ctypes
import logging
import multiprocessing as mp
import os
import pickle
import random
import signal
import sqlite3
import stat
import tempfile
import threading
import time
import timeit
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.sharedctypes import RawArray, RawValue
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_sb_sink import board as board_module
from spark_sb_sink import rotation as rotations
from spark_sb_sink.board import Board
from spark_sb_sink.board_records import Mark, NotedChange, Snapshot
from spark_sb_sink.errors import BoardError, ClosedError
from spark_sb_sink.failover import (
    EntityState,
    FailoverSettings,
    Health,
    Hint,
    PingBegun,
    PingBusy,
    PingFailed,
    PingSucceeded,
    SendFailed,
    SendSucceeded,
    SendThrottled,
    StateChange,
    ping_due,
    step,
)
from spark_sb_sink.options import Options
from spark_sb_sink.rotation import AllOut, Chosen, Rotation

T = TypeVar("T")

SETTINGS = FailoverSettings(failover_interval=60.0, ping_interval=60.0, ping_deadline=10.0)
AT_ONCE = FailoverSettings(failover_interval=0.0, ping_interval=60.0, ping_deadline=10.0)
QUEUES = 4
COOLDOWN = 60.0


class Clock:
    """A clock that stands still until it is told; all processes that it is handed to see the same time."""

    def __init__(self) -> None:
        self.shared = RawValue(ctypes.c_double, 1000.0)

    def __call__(self) -> float:
        return float(self.shared.value)

    def pass_by(self, seconds: float) -> None:
        self.shared.value += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "executor.board"


def a_board(path: Path, clock: Callable[[], float], rules: FailoverSettings = SETTINGS, **more: Any) -> Board:
    more.setdefault("rng", random.Random(7))
    return Board(path, rules, backlog_queue_count=QUEUES, backlog_cooldown=COOLDOWN, clock=clock, **more)


@pytest.fixture
def board(path: Path, clock: Clock) -> Iterator[Board]:
    with contextlib.closing(a_board(path, clock, AT_ONCE)) as board:
        yield board


def forked(work: Callable[[], object]) -> int:
    """A process that does `work` and nothing after."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(1)
    return child


def in_child(work: Callable[[], T]) -> T:
    """What `work` gives in a forked process, which then goes without any clean-up, as Spark's workers do."""
    reading, writing = os.pipe()

    def report() -> None:
        try:
            answer: tuple[bool, Any] = True, work()
        except BaseException as error:  # noqa: BLE001 - reported by the parent
            answer = False, error
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(pickle.dumps(answer))

    child = forked(report)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        good, value = pickle.loads(pipe.read())
    os.waitpid(child, 0)
    if not good:
        raise value
    result: T = value
    return result


def eventually(condition: Callable[[], bool], what: str, within: float = 60.0) -> None:
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, f"never happened: {what}"
        time.sleep(0.0005)


def writes(path: Path) -> int:
    """SQLite's own count of the transactions that changed the file."""
    return int.from_bytes(path.read_bytes()[24:28], "big")


def fail(board: Board, entity: str = "orders", reason: str = "down") -> StateChange | None:
    return board.record(entity, SendFailed(board.view(entity).epoch, reason))


def assert_chained(noted: tuple[NotedChange, ...], start: dict[str, Health] | None = None) -> dict[str, Health]:
    """No change was lost or made up: each begins where the one before ended. Gives where each entity is now."""
    health = dict(start or {})
    for entry in noted:
        assert entry.change.before is health.get(entry.change.entity, Health.HEALTHY)
        health[entry.change.entity] = entry.change.after
    assert [entry.number for entry in noted] == sorted({entry.number for entry in noted})
    return health


# The same as the pure rules

ENTITIES = ("orders", "bills")
entities = st.sampled_from(ENTITIES)
lateness = st.sampled_from([0, 0, 0, 1])
operations = st.one_of(
    st.tuples(st.just("send"), entities, st.sampled_from(["ok", "fault", "throttled"]), lateness),
    st.tuples(st.just("ping"), entities, st.sampled_from(["ok", "fault", "throttled", "died"]), lateness),
    st.tuples(st.just("hint"), entities),
    st.tuples(st.just("pass"), st.sampled_from([0.0, 1.0, 9.0, 30.0, 60.0, 61.0])),
    st.tuples(st.just("choose"), entities, st.frozensets(st.integers(0, 3)), st.frozensets(st.integers(0, 3))),
    st.tuples(st.just("take out"), st.integers(0, QUEUES - 1), st.sampled_from(["full", "gone"])),
)


class Pure:
    """What the board has to do, with the pure rules alone."""

    def __init__(self, rules: FailoverSettings) -> None:
        self.rules, self.rng = rules, random.Random(7)
        self.states = {entity: EntityState(entity) for entity in ENTITIES}
        self.rotation = Rotation.of(QUEUES)
        self.changes: list[StateChange] = []

    def step(self, entity: str, event: Any, now: float) -> StateChange | None:
        self.states[entity], change = step(self.states[entity], event, now, self.rules)
        if change:
            self.changes.append(change)
        return change


@settings(max_examples=150, deadline=None)
@given(rules=st.sampled_from([SETTINGS, AT_ONCE]), todo=st.lists(operations, max_size=25), seed=st.integers(0, 99))
def test_a_board_does_what_the_pure_rules_say_whoever_uses_it(
    rules: FailoverSettings, todo: list[Any], seed: int
) -> None:
    clock, rng, pick = Clock(), random.Random(7), random.Random(seed)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        path = Path(folder) / "board"
        boards = [stack.enter_context(contextlib.closing(a_board(path, clock, rules, rng=rng))) for _ in range(3)]
        start, pure = boards[0].mark(), Pure(rules)
        for operation in todo:
            board, before, rotation, count = pick.choice(boards), dict(pure.states), pure.rotation, writes(path)
            now = clock()
            match operation:
                case ("pass", seconds):
                    clock.pass_by(seconds)
                case ("send", entity, outcome, late):
                    kind = {"ok": SendSucceeded, "fault": SendFailed, "throttled": SendThrottled}[outcome]
                    event = kind(board.view(entity).epoch - late)
                    assert board.record(entity, event) == pure.step(entity, event, now)
                case ("ping", entity, outcome, late):
                    due = ping_due(pure.states[entity], now)
                    lease = board.take_ping(entity)
                    assert (lease is not None) == due
                    assert pick.choice(boards).take_ping(entity) is None
                    pure.step(entity, PingBegun(), now)
                    if lease is not None and outcome != "died":
                        lease = replace(lease, epoch=lease.epoch - late)
                        told = {"ok": lease.succeeded(), "fault": lease.failed("x"), "throttled": lease.busy(10.0)}
                        assert board.record(entity, told[outcome]) == pure.step(entity, told[outcome], now)
                case ("hint", entity):
                    board.hint(entity)
                    pure.step(entity, Hint(), now)
                case ("choose", entity, tried, busy):
                    pure.rotation, choice = rotations.choose(
                        pure.rotation, entity, now, pure.rng, tried=tried, busy=busy
                    )
                    assert board.choose_backlog(entity, tried=tried, busy=busy) == choice
                case ("take out", queue, error):
                    pure.rotation = rotations.take_out(pure.rotation, queue, error, now, COOLDOWN)
                    assert board.take_out(queue, error) == pure.rotation.queues[queue]
            if before == pure.states and rotation == pure.rotation:
                assert writes(path) == count, "nothing changed, and yet it was written"
            for board in boards:
                assert {entity: board.view(entity) for entity in ENTITIES} == pure.states
        due = tuple(sorted(entity for entity in ENTITIES if ping_due(pure.states[entity], clock())))
        for board in boards:
            assert board.due_pings() == due
            assert [entry.change for entry in board.changes_since(start).noted] == pure.changes
            assert board.snapshot().queues == pure.rotation.queues
            assert set(board.snapshot().kept) == set(pure.rotation.kept)


# The hot path


def test_a_change_by_another_process_is_seen_at_the_very_next_look(board: Board) -> None:
    for _ in range(20):
        assert board.view("orders").health is Health.HEALTHY
        in_child(lambda: fail(board))
        assert board.view("orders").health is Health.FAILED_OVER
        assert board.view("orders").reason == "down"
        epoch = board.view("orders").epoch
        in_child(lambda epoch=epoch: board.record("orders", PingSucceeded(epoch, 0.0)))  # type: ignore[misc]
        assert board.view("orders").health is Health.PROBATION
        in_child(lambda: board.record("orders", SendSucceeded(board.view("orders").epoch)))


def test_a_look_at_an_unchanged_board_is_one_question_and_writes_nothing(board: Board, path: Path) -> None:
    board.record("orders", SendSucceeded(0))
    board.view("orders")
    asked: list[str] = []
    connection = board._file._seat().connection
    assert connection is not None
    connection.set_trace_callback(asked.append)
    count = writes(path)
    board.view("orders")
    assert board.record("orders", SendSucceeded(0)) is None
    assert board.record("orders", SendThrottled(0)) is None
    assert board.due_pings() == ()
    asked_before = len(asked)
    board.due_pings()
    assert set(asked[:3]) == set(asked[asked_before:]) == {"PRAGMA data_version"}
    assert writes(path) == count


def test_a_look_at_an_unchanged_board_is_cheap(board: Board) -> None:
    board.record("orders", SendSucceeded(0))
    connection = board._file._seat().connection
    assert connection is not None

    def best(call: Callable[[], object]) -> float:
        return min(timeit.repeat(call, number=200, repeat=25))

    look = best(lambda: board.view("orders"))
    question = best(lambda: connection.execute("PRAGMA data_version").fetchone())
    assert look < 10 * question, "a look costs much more than the one question that it asks"


# Many processes


def hammer(path: Path, seed: int, ops: int, enough: int, barrier: Any, results: Any) -> None:
    rules = FailoverSettings(failover_interval=0.01, ping_interval=0.02, ping_deadline=0.005)
    board = Board(path, rules, backlog_queue_count=QUEUES, backlog_cooldown=0.05, rng=random.Random(seed))
    rng, changes = random.Random(seed), []
    barrier.wait()
    done = 0
    # The timers run on the real clock: how much changes in a number of calls depends on the machine, so go on until
    # enough did.
    while done < ops or len(board.snapshot().noted) <= enough:
        done += 1
        entity = rng.choice(("orders", "bills", "claims"))
        epoch = board.view(entity).epoch
        match rng.randrange(8):
            case 0 | 1:
                changes.append(board.record(entity, SendSucceeded(epoch)))
            case 2 | 3 | 4:
                changes.append(board.record(entity, SendFailed(epoch, f"fault in {seed}")))
            case 5:
                lease = board.take_ping(entity)
                if lease is not None:
                    event: Any = rng.choice([lease.succeeded(), lease.failed("x"), lease.busy(0.01)])
                    changes.append(board.record(entity, event))
            case 6:
                choice = board.choose_backlog(entity)
                if isinstance(choice, Chosen) and rng.random() < 0.5:
                    assert board.take_out(choice.queue, "full").is_out(0.0)
            case 7:
                board.hint(entity)
    barrier.wait()
    states = {entity: board.view(entity) for entity in ("orders", "bills", "claims")}
    kept = [board.snapshot().kept for _ in range(2)]
    results.put((states, kept, board.snapshot(), [change for change in changes if change is not None]))


def test_ten_processes_that_hammer_one_board_agree(path: Path) -> None:
    spawn, processes, ops = mp.get_context("spawn"), 10, 100
    barrier, results = spawn.Barrier(processes), spawn.Queue()
    workers = [spawn.Process(target=hammer, args=(path, n, ops, processes, barrier, results)) for n in range(processes)]
    for worker in workers:
        worker.start()
    found = [results.get(timeout=120) for _ in workers]
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    states, _, snapshot, _ = found[0]
    told: list[StateChange] = []
    for other_states, kept, other, changes in found:
        assert other_states == states
        assert kept[0] == kept[1] == snapshot.kept
        assert replace(other, at=0.0) == replace(snapshot, at=0.0)
        told += changes
    assert isinstance(snapshot, Snapshot)
    ends = assert_chained(snapshot.noted)
    assert ends == {state.entity: state.health for state in snapshot.entities if state.entity in ends}
    noted = [entry.change for entry in snapshot.noted]
    assert [change.at for change in noted] == sorted(change.at for change in noted)
    key = repr
    assert sorted(noted, key=key) == sorted(told, key=key), "a change was lost, or told twice"
    assert len(noted) > processes, "too little happened to tell"


def ping_whenever_due(path: Path, clock: Clock, n: int, looks: Any, leases: Any) -> None:
    board = a_board(path, clock, AT_ONCE)
    while True:
        lease = board.take_ping("orders")
        if lease is not None:
            leases[n] += 1
            board.record("orders", lease.failed("still down"))
        looks[n] += 1


def test_one_process_of_all_pings_in_each_interval(board: Board, path: Path, clock: Clock) -> None:
    spawn, processes = mp.get_context("spawn"), 4
    looks, leases = RawArray(ctypes.c_long, processes), RawArray(ctypes.c_long, processes)
    fail(board)
    workers = [
        spawn.Process(target=ping_whenever_due, args=(path, clock, n, looks, leases), daemon=True)
        for n in range(processes)
    ]
    for worker in workers:
        worker.start()
    try:
        for interval in range(20):
            seen = list(looks)
            # The second look of each began after the clock was set.
            eventually(lambda seen=seen: all(a >= b + 2 for a, b in zip(looks, seen, strict=True)), "all look")  # type: ignore[misc]
            assert sum(leases) == interval
            clock.pass_by(AT_ONCE.ping_interval)
    finally:
        for worker in workers:
            worker.kill()
            worker.join(60)


def test_the_lease_of_a_process_that_died_runs_out_by_itself(board: Board, clock: Clock) -> None:
    fail(board)
    clock.pass_by(60.0)
    assert board.due_pings() == ("orders",)
    lease = in_child(lambda: board.take_ping("orders"))
    assert lease is not None
    assert lease.begun_at == 1060.0
    assert board.due_pings() == ()
    assert board.take_ping("orders") is None
    clock.pass_by(59.9)
    assert board.take_ping("orders") is None
    clock.pass_by(0.1)
    assert board.take_ping("orders") is not None


def test_a_hint_makes_one_process_ping_and_all_believe_its_answer(board: Board) -> None:
    board.record("orders", SendSucceeded(0))
    in_child(lambda: board.hint("orders"))
    assert board.view("orders").doubted
    lease = board.take_ping("orders")
    assert lease is not None
    assert in_child(lambda: board.take_ping("orders")) is None
    change = board.record("orders", lease.failed("detached"))
    assert change is not None
    assert change.after is Health.FAILED_OVER
    assert in_child(lambda: board.view("orders")) == board.view("orders")


# The rotation


def test_the_backlog_queue_of_an_entity_is_the_same_in_all_processes(path: Path, clock: Clock) -> None:
    picks = {
        in_child(lambda n=n: a_board(path, clock, rng=random.Random(n)).choose_backlog("orders")) for n in range(9)
    }  # type: ignore[misc]
    assert len(picks) == 1


def test_a_failed_backlog_queue_leaves_the_rotation_for_all_and_returns(board: Board, clock: Clock) -> None:
    first = board.choose_backlog("orders")
    assert isinstance(first, Chosen)
    in_child(lambda: board.take_out(first.queue, "disabled"))
    second = board.choose_backlog("orders")
    assert isinstance(second, Chosen)
    assert second.queue != first.queue
    assert in_child(lambda: board.choose_backlog("orders")) == second
    others = frozenset(range(QUEUES)) - {first.queue}
    assert isinstance(board.choose_backlog("bills", tried=others), AllOut)
    clock.pass_by(COOLDOWN)
    assert in_child(lambda: board.choose_backlog("bills", tried=others)) == first


def test_when_all_queues_are_out_the_errors_of_all_processes_are_told(board: Board, clock: Clock) -> None:
    for queue in range(QUEUES):
        in_child(lambda queue=queue: board.take_out(queue, f"error {queue}"))  # type: ignore[misc]
        clock.pass_by(1.0)
    errors = tuple((queue, f"error {queue}") for queue in range(QUEUES))
    assert board.choose_backlog("orders") == AllOut(errors)


def test_a_queue_that_does_not_exist_cannot_be_taken_out(board: Board) -> None:
    with pytest.raises(ValueError, match="no backlog queue 4 among 4"):
        board.take_out(4, "x")


# History


def test_a_task_collects_the_changes_made_by_any_process_while_it_ran(board: Board, clock: Clock) -> None:
    fail(board, "bills")
    mark = board.mark()
    assert board.changes_since(mark).noted == ()
    before = time.time()
    in_child(lambda: fail(board, "orders", "gone"))
    found = board.changes_since(mark)
    assert [entry.change for entry in found.noted] == [
        StateChange("orders", Health.HEALTHY, Health.FAILED_OVER, "gone", clock())
    ]
    assert before <= found.noted[0].wall_time <= time.time()
    assert board.changes_since(found.mark).noted == ()
    assert in_child(lambda: board.changes_since(mark)) == found


def test_the_history_is_bounded_and_says_what_it_forgot(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board_module, "HISTORY", 5)
    mark = board.mark()
    for n in range(8):
        fail(board, f"entity {n}")
    found = board.changes_since(mark)
    assert [entry.change.entity for entry in found.noted] == [f"entity {n}" for n in range(3, 8)]
    assert found.missed == 3
    assert board.changes_since(found.mark).missed == 0


def test_a_mark_on_a_board_that_was_made_anew_since_gives_all_that_happened_there(board: Board, path: Path) -> None:
    for n in range(3):
        fail(board, f"entity {n}")
    mark = board.mark()
    path.unlink()
    fail(board)
    found = board.changes_since(mark)
    assert [entry.change.entity for entry in found.noted] == ["orders"]
    assert found.missed == 0
    assert found.mark == Mark(found.noted[0].board, 1) != mark


# Death at any moment


def flap(board: Board, done: Any) -> None:
    while True:
        state = board.view("orders")
        event = SendFailed(state.epoch, "x" * 500) if state.health is Health.HEALTHY else SendSucceeded(state.epoch)
        if state.health is Health.FAILED_OVER:
            board.record("orders", PingSucceeded(state.epoch, 0.0))
        else:
            board.record("orders", event)
        board.choose_backlog("orders", busy={0} if done.value % 2 else {1})
        done.value += 1


def test_a_process_killed_at_any_moment_leaves_a_board_that_works(
    board: Board, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rng, mark, health = random.Random(3), board.mark(), {"orders": Health.HEALTHY}
    for _ in range(60):
        done = RawValue(ctypes.c_long, 0)
        child = forked(lambda done=done: flap(board, done))  # type: ignore[misc]
        target = rng.randrange(2, 30)
        eventually(lambda done=done, target=target: done.value >= target, "the child is under way")  # type: ignore[misc]
        moment = time.perf_counter() + rng.random() * 0.001
        while time.perf_counter() < moment:
            pass
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        found = board.changes_since(mark)
        assert found.missed == 0
        assert len(found.noted) >= done.value, "what was recorded was lost"
        health, mark = assert_chained(found.noted, health), found.mark
        assert board.view("orders").health is health["orders"]
        assert board.view("orders").epoch == mark.number
        board.record("bills", SendSucceeded(0))
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert not caplog.records


@pytest.mark.parametrize("reason_size", [10, 2**23], ids=["before the file is touched", "halfway through the file"])
def test_a_process_killed_within_a_transaction_has_done_nothing(
    reason_size: int, board: Board, path: Path, clock: Clock
) -> None:
    def die() -> float:
        os.kill(os.getpid(), signal.SIGKILL)
        return 0.0

    fail(board, "bills")
    before, size = board.snapshot(), path.stat().st_size
    # More than SQLite keeps in memory: half of it stands in the file before the transaction ends.
    reason = "x" * reason_size
    child = forked(lambda: fail(a_board(path, clock, AT_ONCE, wall_clock=die), reason=reason))
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    if reason_size > 2**20:
        assert path.stat().st_size > size
        assert Path(f"{path}-journal").stat().st_size > 0, "nothing to undo it with"
    assert in_child(board.snapshot) == before
    assert board.snapshot() == before
    assert path.stat().st_size == size
    assert fail(board) is not None


def test_an_interrupt_within_a_transaction_undoes_it(path: Path, clock: Clock) -> None:
    def interrupted() -> float:
        raise KeyboardInterrupt

    board = a_board(path, clock, AT_ONCE, wall_clock=interrupted)
    with pytest.raises(KeyboardInterrupt):
        fail(board)
    assert board.view("orders") == EntityState("orders")
    assert fail(a_board(path, clock, AT_ONCE, patience=0.1)) is not None


# Forks and threads


def open_files(path: Path) -> list[str]:
    links = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
    return [link for link in links if link.startswith(str(path))]


def test_a_child_has_no_part_of_its_parents_connection(board: Board, path: Path) -> None:
    fail(board)
    assert open_files(path)

    def child() -> tuple[list[str], Health, list[str]]:
        before = open_files(path)
        return before, board.view("orders").health, open_files(path)

    before, health, after = in_child(child)
    assert before == []
    assert health is Health.FAILED_OVER
    assert str(path) in after
    assert board.view("orders").health is Health.FAILED_OVER


def test_a_fork_while_other_threads_write_hangs_nobody(board: Board, path: Path) -> None:
    stop, done = threading.Event(), RawValue(ctypes.c_long, 0)

    def busy() -> None:
        while not stop.is_set():
            for queue in range(QUEUES):
                board.take_out(queue, f"error {done.value}")
            done.value += 1

    threads = [threading.Thread(target=busy) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for n in range(20):
            eventually(lambda n=n: done.value >= n, "the threads write")  # type: ignore[misc]
            assert in_child(lambda n=n: fail(board, f"entity {n}")) is not None  # type: ignore[misc]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert len(board.snapshot().noted) == 20


def test_each_thread_has_a_connection_of_its_own_and_sees_the_changes_of_others(board: Board) -> None:
    assert board.view("orders").health is Health.HEALTHY
    thread = threading.Thread(target=lambda: fail(board))
    thread.start()
    thread.join()
    assert board.view("orders").health is Health.FAILED_OVER


# Files that cannot be trusted


def whole_file_is_noise(path: Path) -> None:
    path.write_bytes(random.Random(1).randbytes(8192))


def cut_in_half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def pages_are_noise(path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(random.Random(1).randbytes(size - 4096))
    # As whoever did that would not keep SQLite's books, make sure that all look again.
    with path.open("r+b") as file:
        file.seek(24)
        file.write(b"\x7f\x01\x02\x03")


def a_table_is_gone(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE entities")


def a_value_is_unknown(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE entities SET health = 'so-so'")


def the_row_about_itself_is_gone(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("DELETE FROM board")


def of_another_program(path: Path) -> None:
    path.unlink()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE entities (x)")


DAMAGES = [
    whole_file_is_noise,
    cut_in_half,
    pages_are_noise,
    a_table_is_gone,
    a_value_is_unknown,
    the_row_about_itself_is_gone,
    of_another_program,
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("when", ["closed", "open"])
def test_a_damaged_file_is_made_anew_with_one_warning(
    damage: Callable[[Path], None], when: str, path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = a_board(path, clock, AT_ONCE), a_board(path, clock, AT_ONCE)
    fail(first)
    assert second.view("orders").health is Health.FAILED_OVER
    if when == "closed":
        first.close()
        second.close()
        first, second = a_board(path, clock, AT_ONCE), a_board(path, clock, AT_ONCE)
    in_child(lambda: damage(path))
    caplog.set_level(logging.WARNING)
    # Each of these reads something that some damage spoils, and none may fail.
    first.mark()
    first.snapshot()
    assert first.view("orders") == EntityState("orders")
    assert second.view("orders") == EntityState("orders")
    fail(second)
    assert first.view("orders").health is Health.FAILED_OVER
    assert in_child(lambda: first.view("orders")) == second.view("orders")
    assert len(caplog.records) == 1
    assert str(path) in caplog.text


def test_a_half_made_file_is_finished(path: Path, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    path.touch()
    assert fail(a_board(path, clock, AT_ONCE)) is not None
    assert not caplog.records


def test_a_file_that_was_removed_is_made_again(board: Board, path: Path) -> None:
    fail(board)
    path.unlink()
    assert board.view("orders").health is Health.HEALTHY
    assert fail(board) is not None
    assert in_child(lambda: board.view("orders").health) is Health.FAILED_OVER


def test_a_file_from_before_a_reboot_is_discarded(path: Path, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    fail(a_board(path, clock, AT_ONCE, boot_id="monday"))
    assert a_board(path, clock, boot_id="monday").view("orders").health is Health.FAILED_OVER
    tuesday = a_board(path, clock, boot_id="tuesday")
    assert tuesday.view("orders") == EntityState("orders")
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "last started" in caplog.text


def test_a_file_from_the_future_is_from_before_a_reboot(path: Path, clock: Clock) -> None:
    fail(a_board(path, clock, AT_ONCE))
    clock.pass_by(-500.0)
    assert a_board(path, clock).view("orders") == EntityState("orders")


# Folders that cannot be used


def use_as_nobody(path: Path, results: Any) -> None:
    if os.geteuid() == 0:
        os.setuid(65534)
    try:
        Board(path, SETTINGS, backlog_queue_count=1, backlog_cooldown=1.0).record("orders", SendSucceeded(0))
    except BaseException as error:  # noqa: BLE001 - reported by the parent
        results.put(error)
    else:
        results.put(None)


@pytest.mark.parametrize("there", [False, True], ids=["no file", "a file that may only be read"])
def test_a_folder_that_is_read_only_gives_a_clear_error(there: bool) -> None:
    spawn = mp.get_context("spawn")
    results = spawn.Queue()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if there:
            fail(Board(folder / "board", SETTINGS, backlog_queue_count=1, backlog_cooldown=1.0), "bills")
            (folder / "board").chmod(0o444)
        folder.chmod(stat.S_IRUSR | stat.S_IXUSR | stat.S_IROTH | stat.S_IXOTH)
        worker = spawn.Process(target=use_as_nobody, args=(folder / "board", results))
        worker.start()
        error = results.get(timeout=60)
        worker.join(60)
        folder.chmod(0o700)
    assert isinstance(error, BoardError)
    assert str(folder / "board") in str(error)
    assert "this user may write to" in str(error)


def test_a_folder_that_does_not_exist_gives_a_clear_error(tmp_path: Path, clock: Clock) -> None:
    with pytest.raises(BoardError, match=r"none/board cannot be read or written: No such file or directory\. Give it"):
        a_board(tmp_path / "none" / "board", clock).view("orders")


def test_a_stuck_process_gives_an_error_after_a_while_and_nothing_is_lost(path: Path, clock: Clock) -> None:
    board = a_board(path, clock, AT_ONCE, patience=0.05)
    fail(board, "bills")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as stuck:
        stuck.execute("BEGIN EXCLUSIVE")
        with pytest.raises(BoardError, match=r"held by another process for 0\.05 s"):
            fail(board)
    assert fail(board) is not None
    assert board.view("bills").health is Health.FAILED_OVER


def test_only_the_first_of_many_calls_waits_long_for_a_stuck_process(path: Path, clock: Clock) -> None:
    """The lanes of a worker call one after the other in one loop, which has deadlines to keep meanwhile."""
    board = a_board(path, clock, AT_ONCE, patience=1.0)
    fail(board, "bills")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as stuck:
        stuck.execute("BEGIN IMMEDIATE")
        told = []
        for _ in range(6):
            begun = time.monotonic()
            with pytest.raises(BoardError, match=r"held by another process for (1|0\.1) s:"):
                fail(board)
            told.append(time.monotonic() - begun)
        assert sorted(told[1:])[2] < told[0] / 2, told
    assert fail(board) is not None
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as stuck:
        stuck.execute("BEGIN IMMEDIATE")
        with pytest.raises(BoardError, match="held by another process for 1 s:"):  # as patient as before
            fail(board, "claims")


# Names and ends


def options(**more: Any) -> Options:
    return Options.from_dict(
        {
            "primary": "Endpoint=sb://a.servicebus.windows.net/;SharedAccessKeyName=k;SharedAccessKey=c2VjcmV0",
            "secondary": "Endpoint=sb://b.servicebus.windows.net/;SharedAccessKeyName=k;SharedAccessKey=c2VjcmV0",
            **more,
        }
    )


def test_sinks_with_the_same_options_share_a_board_and_others_do_not(tmp_path: Path) -> None:
    one, same = Board.for_executor(tmp_path, options()), Board.for_executor(tmp_path, options())
    other = Board.for_executor(tmp_path, options(entity="orders", failover_interval="0s"))
    assert one.path == same.path != other.path
    assert one.path.parent == tmp_path
    fail(other)
    assert other.view("orders").health is Health.FAILED_OVER
    assert one.view("orders").health is Health.HEALTHY


def test_a_closed_board_says_so_and_leaves_the_file_to_the_others(board: Board, path: Path, clock: Clock) -> None:
    other = a_board(path, clock)
    fail(board)
    board.close()
    board.close()
    with pytest.raises(ClosedError, match="The board is closed"):
        board.view("orders")
    assert other.view("orders").health is Health.FAILED_OVER


def test_a_lease_gives_the_events_to_record(board: Board, clock: Clock) -> None:
    fail(board)
    clock.pass_by(60.0)
    lease = board.take_ping("orders")
    assert lease is not None
    assert lease.succeeded() == PingSucceeded(1, 1060.0)
    assert lease.failed("x") == PingFailed(1, 1060.0, "x")
    assert lease.busy(12.0) == PingBusy(1, 1060.0, 12.0)
