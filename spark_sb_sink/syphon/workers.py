"""Which Python worker processes run a syphon's tasks: each task has one of its own, the same from turn to turn.

Spark lends whichever worker of a pool has been idle longest, so turns would wander, and leave their long polls behind.
But it keeps one pool for each environment that functions are made with: a variable of ours makes a pool ours.
"""

import contextlib
import functools
import threading
from collections import UserDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import DataFrame, Row, SparkSession

ROLE = "SPARK_SB_SINK_ROLE"
_UNION = "spark.sql.unionOutputPartitioning"
Seats = tuple[int, ...]
ArrowFunction = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
_LOCK = threading.Lock()
_TAKEN: set[int] = set()


class _Environment(UserDict[str, Any]):
    """What Spark tells workers, and what only those learn whose function the thread makes that asks."""

    def __init__(self, plain: dict[str, Any]) -> None:
        super().__init__(plain)
        self.of_thread = threading.local()

    def _seen(self) -> dict[str, Any]:
        role = getattr(self.of_thread, "role", None)
        return self.data if role is None else {**self.data, ROLE: role}

    def __getitem__(self, key: str) -> Any:
        return self._seen()[key]

    def __contains__(self, key: object) -> bool:
        return key in self._seen()

    def __iter__(self) -> Iterator[str]:
        return iter(self._seen())

    def __len__(self) -> int:
        return len(self._seen())


def take_seats(count: int) -> Seats:
    """Free ones, the lowest: a syphon that is started again comes to the workers that the last one had."""
    with _LOCK:
        free = [seat for seat in range(len(_TAKEN) + count) if seat not in _TAKEN][:count]
        _TAKEN.update(free)
        return tuple(free)


def leave_seats(seats: Seats) -> None:
    with _LOCK:
        _TAKEN.difference_update(seats)


def run_each(spark: SparkSession, functions: Sequence[ArrowFunction], ddl: str, seats: Seats) -> list[Row]:
    """One Spark job, in which each function gets one row, in a task of its own, in the worker of its seat."""
    tasks: list[DataFrame] = []
    for function, seat in zip(functions, seats, strict=True):
        with _in_seat(spark.sparkContext, seat):
            tasks.append(spark.range(0, 1, 1, 1).mapInArrow(function, ddl))
    with _side_by_side(spark):
        rows: list[Row] = functools.reduce(DataFrame.union, tasks).collect()
    return rows


@contextlib.contextmanager
def _in_seat(context: SparkContext, seat: int) -> Iterator[None]:
    """A function that this thread makes in the block runs in the worker of that seat; those of others do not."""
    with _LOCK:
        known = context.environment
        environment = known if isinstance(known, _Environment) else _Environment(known)
        context.environment = environment
    environment.of_thread.role = f"syphon-{seat}"
    try:
        yield
    finally:
        environment.of_thread.role = None


@contextlib.contextmanager
def _side_by_side(spark: SparkSession) -> Iterator[None]:
    """In the block, unions of one-partition DataFrames have a task for each; else Spark makes one task of them all."""
    before = spark.conf.get(_UNION, None)
    spark.conf.set(_UNION, "false")
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(_UNION)
        else:
            spark.conf.set(_UNION, before)
