"""What one executor knows of its entities and backlog queues, shared by its worker processes and outliving each.

The board applies the pure rules of `failover` and `rotation` to rows of one SQLite file (`board_file`), each event in
one transaction. What changes nothing writes nothing and is answered from this process's memory, after one cheap look
whether another process has changed the file. Times are monotonic: one clock for all processes of a machine.
"""

import random
import time
from collections.abc import Callable, Set
from os import PathLike
from pathlib import Path
from typing import Any

from spark_sb_sink import rotation as rotations
from spark_sb_sink.board_file import BoardFile, Seat
from spark_sb_sink.board_records import Changes, Lease, Mark, NotedChange, Snapshot
from spark_sb_sink.board_schema import ENTITY_COLUMNS, SpoiledError
from spark_sb_sink.failover import (
    COLUMNS,
    EntityState,
    Event,
    FailoverSettings,
    Health,
    Hint,
    PingBegun,
    StateChange,
    ping_due,
    step,
)
from spark_sb_sink.options import Options
from spark_sb_sink.rotation import AllOut, Chosen, Keep, QueueState, Rotation

PATIENCE = 10.0
"""Seconds to wait for a process that holds the board; a transaction is a few short statements. Calls are made
in the loop that keeps the deadlines of sends, so this is no longer than the usual one of those."""
HISTORY = 1000
"""How many changes of state are kept. Entities that flap for hours must not fill a disk."""

_DRY = random.Random(0)
"""For a look at what a choice would be; what it draws is never used."""


class Board:
    """The knowledge of one executor. Safe for threads and processes, and after a fork; every call is short."""

    def __init__(
        self,
        path: str | PathLike[str],
        settings: FailoverSettings,
        *,
        backlog_queue_count: int,
        backlog_cooldown: float,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
        wall_clock: Callable[[], float] = time.time,
        boot_id: str | None = None,
        patience: float = PATIENCE,
    ) -> None:
        """`patience`: how many seconds to wait for other processes before a call gives up with a BoardError."""
        self.path = Path(path)
        self._settings = settings
        self._fresh = Rotation.of(backlog_queue_count)
        self._cooldown = backlog_cooldown
        self._clock = clock
        self._rng = rng or random.Random()
        self._wall_clock = wall_clock
        self._file = BoardFile(self.path, clock, boot=boot_id, patience=patience)

    @classmethod
    def for_executor(
        cls,
        folder: str | PathLike[str],
        options: Options,
        *,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> "Board":
        """The board in an executor's own folder. Sinks with other options have boards of their own there."""
        return cls(
            Path(folder) / f"spark-sb-sink-{options.digest()[:16]}.board",
            options.failover,
            backlog_queue_count=options.backlog_queue_count,
            backlog_cooldown=options.backlog_cooldown,
            clock=clock,
            rng=rng,
        )

    def view(self, entity: str) -> EntityState:
        """What is known of an entity now. Meant to be called before each batch."""
        return self._file.run(lambda seat: _state(seat, entity))

    def record(self, entity: str, event: Event) -> StateChange | None:
        """Apply an event; the change of health, if this very event brought one."""

        def work(seat: Seat) -> StateChange | None:
            # If it changes nothing now, then it had its turn now, and is done.
            known = _state(seat, entity)
            if step(known, event, self._clock(), self._settings).state == known:
                return None
            with self._file.transaction(seat):
                return self._apply(seat, entity, event, self._clock())

        return self._file.run(work)

    def hint(self, entity: str) -> None:
        """The driver says that another executor has this entity failed over."""
        self.record(entity, Hint())

    def take_ping(self, entity: str) -> Lease | None:
        """The turn to ping an entity, if a ping is due and nobody else has it. Record what the lease gives."""

        def work(seat: Seat) -> Lease | None:
            if not ping_due(_state(seat, entity), self._clock()):
                return None
            with self._file.transaction(seat):
                now, state = self._clock(), _state(seat, entity)
                if not ping_due(state, now):
                    return None
                self._apply(seat, entity, PingBegun(), now)
                return Lease(entity, state.epoch, begun_at=now)

        return self._file.run(work)

    def due_pings(self) -> tuple[str, ...]:
        """The entities that somebody should take the turn to ping."""
        states = self._file.run(lambda seat: seat.remembered("unwell", "", lambda: _unwell(seat)))
        now = self._clock()
        return tuple(state.entity for state in states if ping_due(state, now))

    def choose_backlog(
        self, entity: str, *, tried: Set[int] = frozenset(), busy: Set[int] = frozenset()
    ) -> Chosen | AllOut:
        """The backlog queue for an entity: the one that all processes use for it while that is in the rotation."""

        def work(seat: Seat) -> Chosen | AllOut:
            before = self._rotation(seat, entity)
            after, choice = rotations.choose(before, entity, self._clock(), _DRY, tried=tried, busy=busy)
            if after == before:
                return choice
            with self._file.transaction(seat):
                before = self._rotation(seat, entity)
                after, choice = rotations.choose(before, entity, self._clock(), self._rng, tried=tried, busy=busy)
                if after != before:
                    seat.rows("INSERT OR REPLACE INTO kept VALUES (?, ?)", entity, after.kept[-1].queue)
                return choice

        return self._file.run(work)

    def is_out(self, queue: int) -> bool:
        """Whether a backlog queue is out of the rotation now."""
        return self._file.run(lambda seat: self._rotation(seat).queues[queue].is_out(self._clock()))

    def take_out(self, queue: int, error: str) -> QueueState:
        """After an entity fault on a backlog queue: out of the rotation for all, for one cool-down."""
        if not 0 <= queue < len(self._fresh.queues):
            raise ValueError(f"there is no backlog queue {queue} among {len(self._fresh.queues)}")

        def work(seat: Seat) -> QueueState:
            def after() -> QueueState:
                now, whole = self._clock(), self._rotation(seat)
                return rotations.take_out(whole, queue, error, now, self._cooldown).queues[queue]

            if after() == self._rotation(seat).queues[queue]:
                return after()
            with self._file.transaction(seat):
                state = after()
                seat.rows("INSERT OR REPLACE INTO queues VALUES (?, ?, ?)", *state.to_row())
                return state

        return self._file.run(work)

    def mark(self) -> Mark:
        """The present end of the history, for `changes_since`."""
        return self._file.run(lambda seat: seat.remembered("mark", "", lambda: _mark(seat)))

    def changes_since(self, mark: Mark) -> Changes:
        """The changes of state since a mark, by whichever process, and the mark for the next call."""

        def work(seat: Seat) -> Changes:
            if seat.remembered("mark", "", lambda: _mark(seat)) == mark:
                return Changes((), mark)
            with self._file.reading(seat):
                end = _mark(seat)
                # On a board made anew since, all that happened there is new.
                start = mark.number if mark.board == end.board else 0
                noted = _noted(seat, end.board, start)
            return Changes(noted, end, missed=end.number - start - len(noted))

        return self._file.run(work)

    def snapshot(self) -> Snapshot:
        """Everything, for status displays."""

        def work(seat: Seat) -> Snapshot:
            with self._file.reading(seat):
                board = _mark(seat).board
                return Snapshot(
                    board,
                    self._clock(),
                    tuple(_decoded(seat.rows(f"SELECT {ENTITY_COLUMNS} FROM entities ORDER BY entity"))),  # noqa: S608
                    self._rotation(seat).queues,
                    tuple(Keep(*row) for row in seat.rows("SELECT entity, queue FROM kept ORDER BY entity")),
                    _noted(seat, board, 0),
                )

        return self._file.run(work)

    def close(self) -> None:
        """Close the connections of this process. The file stays, for the other workers and for those to come."""
        self._file.close()

    def _apply(self, seat: Seat, entity: str, event: Event, now: float) -> StateChange | None:
        before = _state(seat, entity)
        after, change = step(before, event, now, self._settings)
        if after != before:
            marks = ", ".join("?" * len(COLUMNS))
            seat.rows(f"INSERT OR REPLACE INTO entities ({ENTITY_COLUMNS}) VALUES ({marks})", *after.to_row())  # noqa: S608
        if change is not None:
            row = change.entity, change.before.value, change.after.value, change.reason, change.at, self._wall_clock()
            seat.rows(
                "INSERT INTO changes (entity, before, after, reason, at, wall_time) VALUES (?, ?, ?, ?, ?, ?)", *row
            )
            seat.rows("DELETE FROM changes WHERE number <= last_insert_rowid() - ?", HISTORY)
        return change

    def _rotation(self, seat: Seat, entity: str | None = None) -> Rotation:
        """All queues, and of what is kept only the row that matters."""

        def queues() -> tuple[QueueState, ...]:
            known = {row[0]: QueueState(*row) for row in seat.rows("SELECT queue, out_until, last_error FROM queues")}
            return tuple(known.get(fresh.queue, fresh) for fresh in self._fresh.queues)

        def kept() -> tuple[Keep, ...]:
            return tuple(Keep(*row) for row in seat.rows("SELECT entity, queue FROM kept WHERE entity = ?", entity))

        return Rotation(
            seat.remembered("queues", "", queues), () if entity is None else seat.remembered("kept", entity, kept)
        )


def _state(seat: Seat, entity: str) -> EntityState:
    def read() -> EntityState:
        found = _decoded(seat.rows(f"SELECT {ENTITY_COLUMNS} FROM entities WHERE entity = ?", entity))  # noqa: S608
        return found[0] if found else EntityState(entity)

    return seat.remembered("state", entity, read)


def _unwell(seat: Seat) -> list[EntityState]:
    # Only to read less: `ping_due` decides, and needs no ping for an entity that is healthy and not doubted.
    sql = f"SELECT {ENTITY_COLUMNS} FROM entities WHERE health <> ? OR doubted ORDER BY entity"  # noqa: S608
    return _decoded(seat.rows(sql, Health.HEALTHY.value))


def _mark(seat: Seat) -> Mark:
    ((board,),) = seat.rows("SELECT id FROM board")
    numbers = seat.rows("SELECT seq FROM sqlite_sequence WHERE name = 'changes'")
    return Mark(board, numbers[0][0] if numbers else 0)


def _noted(seat: Seat, board: str, after: int) -> tuple[NotedChange, ...]:
    sql = "SELECT number, entity, before, after, reason, at, wall_time FROM changes WHERE number > ? ORDER BY number"
    try:
        return tuple(
            NotedChange(board, number, StateChange(entity, Health(before), Health(now), reason, at), wall_time)
            for number, entity, before, now, reason, at, wall_time in seat.rows(sql, after)
        )
    except ValueError as error:
        raise SpoiledError(str(error)) from error


def _decoded(rows: list[tuple[Any, ...]]) -> list[EntityState]:
    try:
        return [EntityState.from_row(row) for row in rows]
    except ValueError as error:
        raise SpoiledError(str(error)) from error
