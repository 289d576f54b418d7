"""Each task of a syphon keeps to one Python worker, whatever else runs in the application."""

import os
from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

from spark_sb_sink.syphon.workers import ROLE, ArrowFunction, leave_seats, run_each, take_seats

DDL = "pid bigint, role string, task string, part bigint"


def telling(task: str) -> ArrowFunction:
    """Says which process it runs in, and what that was told."""

    def who(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            context = TaskContext.get()
            assert context is not None
            cells = {"pid": os.getpid(), "role": os.environ.get(ROLE, ""), "task": task, "part": context.partitionId()}
            yield pa.RecordBatch.from_pylist([cells])

    return who


def test_each_task_keeps_its_python_worker_and_shares_it_with_nobody(spark: SparkSession) -> None:
    seats = take_seats(2)
    turns: list[dict[str, int]] = []
    others: set[tuple[int, str]] = set()
    try:
        for _ in range(4):
            rows = run_each(spark, [telling("a"), telling("b")], DDL, seats)
            assert [row.role for row in rows] == [f"syphon-{seat}" for seat in seats]
            assert {row.part for row in rows} == {0, 1}, "one task for both"
            turns.append({row.task: row.pid for row in rows})
            rows = spark.range(0, 2, 1, 2).mapInArrow(telling("other"), DDL).collect()
            others |= {(row.pid, row.role) for row in rows}
    finally:
        leave_seats(seats)
    assert all(turn == turns[0] for turn in turns), "a turn came to another worker than the one before"
    ours = set(turns[0].values())
    assert len(ours) == 2
    assert not ours & {pid for pid, _ in others}
    assert {role for _, role in others} == {""}


def test_a_seat_that_was_left_is_taken_again_and_none_is_taken_twice() -> None:
    first, second = take_seats(2), take_seats(1)
    assert not set(first) & set(second)
    leave_seats(first)
    assert take_seats(2) == first
    leave_seats(first + second)
