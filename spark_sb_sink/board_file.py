"""The SQLite file under the board: opened per thread, never through a fork, made anew when it cannot be trusted.

It knows tables and locks, and nothing of what a row means. The file has a rollback journal, not a write-ahead log:
- SQLite before 3.51.3, which is what Python 3.11 to 3.13 come with, can spoil a write-ahead log that several processes
  write and check in at the same instant. A journal has no such flaw and no shared memory, and works on any local disk.
- A process outside of a transaction holds no lock, and the next to look undoes what a killed one left half done.
Nothing waits for the disk (`synchronous` is off): what the kernel holds outlives any process, and what is left after a
reboot is thrown away as its times mean nothing then.
"""

import fcntl
import logging
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from spark_sb_sink.board_schema import NEW, SpoiledError, boot_id, fill, why_not
from spark_sb_sink.errors import BoardError, ClosedError

log = logging.getLogger(__name__)

T = TypeVar("T")

_SPOILED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT, sqlite3.SQLITE_ERROR}


class _ReplacedError(Exception):
    """The file is not the one that was opened."""


class Seat:
    """One thread's connection, and what it last read through it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.connection: sqlite3.Connection | None = None
        self.identity: tuple[int, int] | None = None
        self.ready = False
        self.version = -1
        self.memory: dict[tuple[str, str], Any] = {}
        """What was read since the file last changed, by kind and name; whoever writes clears it."""

    def rows(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """The answer to one statement."""
        assert self.connection is not None  # noqa: S101 - `BoardFile.run` has opened it
        return self.connection.execute(sql, values).fetchall()

    def remembered(self, kind: str, name: str, read: Callable[[], T]) -> T:
        """What `read` gives, read once for as long as nobody changes the file."""
        key = kind, name
        if key not in self.memory:
            self.memory[key] = read()
        value: T = self.memory[key]
        return value

    def close(self) -> None:
        """Forget everything. The next use opens anew."""
        connection, self.connection, self.identity = self.connection, None, None
        self.ready, self.version = False, -1
        self.memory.clear()
        if connection is not None:
            connection.close()

    def __del__(self) -> None:
        self.close()


class BoardFile:
    """The file of one board, for all threads of this process."""

    def __init__(self, path: Path, clock: Callable[[], float], *, boot: str | None = None, patience: float):
        self.path = path
        self._clock = clock
        self._boot = boot or boot_id()
        self._patience = patience
        self._local = threading.local()
        self._seats: weakref.WeakSet[Seat] = weakref.WeakSet()
        self._guard = threading.Lock()  # of the set of seats, not of the file
        self._held: list[Seat] = []
        self._closed = False
        self._stuck = False
        """A call has lost its patience, and nothing was written since: the next calls have a tenth of it."""
        with _files_lock:
            _files.add(self)

    def run(self, work: Callable[[Seat], T]) -> T:
        """Do something with this thread's connection, after one cheap look whether the file was changed since."""
        seat = self._seat()
        with seat.lock:
            for last in (False, False, True):
                try:
                    self._look(seat)
                    return work(seat)
                except (_ReplacedError, SpoiledError, sqlite3.Error, OSError) as error:
                    self._recover(seat, error, last)
                except BaseException:
                    seat.close()  # interrupted anywhere, perhaps within a transaction
                    raise
        raise AssertionError("unreachable")  # pragma: no cover

    @contextmanager
    def transaction(self, seat: Seat) -> Iterator[None]:
        """All that is read and written within is one step. A process that dies within has done nothing."""
        seat.rows(f"PRAGMA busy_timeout = {round(self._waits() * 1000)}")
        with self._within(seat, "BEGIN IMMEDIATE"):
            self._stuck = False
            seat.memory.clear()
            try:
                yield
            finally:
                seat.memory.clear()

    @contextmanager
    def reading(self, seat: Seat) -> Iterator[None]:
        """All that is read within is of one moment."""
        with self._within(seat, "BEGIN"):
            yield

    @contextmanager
    def _within(self, seat: Seat, begin: str) -> Iterator[None]:
        seat.rows(begin)
        try:
            yield
            seat.rows("COMMIT")
        except BaseException:
            # A connection that cannot even roll back is closed by `run`.
            with suppress(sqlite3.Error):
                seat.rows("ROLLBACK")
            raise

    def close(self) -> None:
        """Close all connections of this process; other processes keep theirs, and the file stays."""
        self._closed = True
        with self._guard:
            seats = list(self._seats)
        for seat in seats:
            with seat.lock:
                seat.close()

    def _seat(self) -> Seat:
        seat: Seat | None = getattr(self._local, "seat", None)
        if seat is None:
            seat = self._local.seat = Seat()
            with self._guard:
                self._seats.add(seat)
        return seat

    def _look(self, seat: Seat) -> None:
        if self._closed:
            raise ClosedError("The board")
        if not seat.ready:
            seat.close()
            self._open(seat)
            seat.ready = True
        elif _identity(self.path) != seat.identity:
            raise _ReplacedError
        version = seat.rows("PRAGMA data_version")[0][0]
        if version != seat.version:
            seat.memory.clear()
            seat.version = version

    def _open(self, seat: Seat) -> None:
        # Made here and not by SQLite, so that there is something to recognise it by. Never open a file that is there:
        # closing it again would drop the locks that other threads of this process hold on it; hence also `_creating`.
        with suppress(FileExistsError), _creating:
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o644))
        seat.identity = _identity(self.path)
        seat.connection = sqlite3.connect(
            self.path, timeout=self._waits(), isolation_level=None, check_same_thread=False
        )
        seat.rows("PRAGMA synchronous = OFF")
        seat.rows("PRAGMA journal_mode = TRUNCATE")
        seat.rows("PRAGMA trusted_schema = OFF")
        if seat.rows("PRAGMA integrity_check(1)") != [("ok",)]:
            raise SpoiledError("the integrity check failed")
        if _identity(self.path) != seat.identity:
            raise _ReplacedError
        if why_not(seat.rows, self._boot, self._clock()):
            with self.transaction(seat):
                self._fill(seat)

    def _fill(self, seat: Seat) -> None:
        now = self._clock()
        why = why_not(seat.rows, self._boot, now)
        if not why:
            return  # another process was faster
        if why != NEW:
            log.warning("The board %s starts anew: %s. What it knew of entities is learnt again.", self.path, why)
        fill(seat.rows, self._boot, now)

    def _waits(self) -> float:
        # The lanes of a process call one after the other, in one loop: not each may hold up the others for so long.
        return self._patience / 10 if self._stuck else self._patience

    def _recover(self, seat: Seat, error: Exception, last: bool) -> None:
        """Make the next try worth it, or say why there is none."""
        code = getattr(error, "sqlite_errorcode", None) or 0
        replaced = isinstance(error, _ReplacedError) or code == sqlite3.SQLITE_READONLY_DBMOVED
        short = code == sqlite3.SQLITE_IOERR_SHORT_READ
        spoiled = isinstance(error, SpoiledError) or short or code & 0xFF in _SPOILED
        try:
            if last or not (replaced or spoiled):
                busy = code & 0xFF == sqlite3.SQLITE_BUSY
                patience = self._waits() if busy else None
                self._stuck = self._stuck or busy
                raise BoardError(path=str(self.path), detail=_told(error), patience=patience)
            if spoiled:
                self._remove(seat, error)
        finally:
            seat.close()

    def _remove(self, seat: Seat, error: Exception) -> None:
        """Remove the spoiled file, unless another process did that before.

        The file that this seat still has open keeps its number, so the one at the path now is either that or a new one.
        """
        try:
            lock = os.open(f"{self.path}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        except OSError as refused:
            raise BoardError(path=str(self.path), detail=f"{error}; {_told(refused)}") from refused
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if seat.identity is not None and _identity(self.path) == seat.identity:
                log.warning(
                    "The board %s is damaged (%s) and is made anew. What it knew of entities is learnt again.",
                    self.path,
                    error,
                )
                # The journal first: what it says is about the old file, and would spoil the new one.
                Path(f"{self.path}-journal").unlink(missing_ok=True)
                self.path.unlink(missing_ok=True)
        finally:
            os.close(lock)

    def before_fork(self) -> None:
        """Let transactions end, and close all connections: SQLite's own notes of locks must not get into a child."""
        self._guard.acquire()
        self._held = list(self._seats)
        for seat in self._held:
            seat.lock.acquire()
            seat.close()

    def after_fork(self) -> None:
        """Let all threads go on; in a child that is the one that forked."""
        for seat in self._held:
            seat.lock.release()
        self._held = []
        self._guard.release()


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _told(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error) or "it was replaced repeatedly"


_files: weakref.WeakSet[BoardFile] = weakref.WeakSet()
_files_lock = threading.Lock()
_creating = threading.Lock()
_forking: list[BoardFile] = []


def _before_fork() -> None:
    _files_lock.acquire()
    _forking.extend(_files)
    for file in _forking:
        file.before_fork()


def _after_fork() -> None:
    for file in _forking:
        file.after_fork()
    _forking.clear()
    _files_lock.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
