"""Calls of a micro-batch are numbered in their order, in each run anew."""

import threading
from contextlib import suppress

import pytest

from spark_sb_sink.calls import MOST_RUNS, Calls
from spark_sb_sink.errors import UnsupportedSparkError


class Rows:
    """Stands for a DataFrame."""


def number(calls: Calls, run: str, batch: int, rows: object | None = None, *, fails: bool = False) -> int:
    with suppress(RuntimeError), calls.one("query", run, batch, rows or Rows()) as found:
        if fails:
            raise RuntimeError
    return found


def test_calls_are_numbered_in_each_micro_batch_of_each_run_anew() -> None:
    calls = Calls()
    assert [number(calls, "first", 7) for _ in range(3)] == [0, 1, 2]
    assert [number(calls, "first", 8) for _ in range(2)] == [0, 1]
    assert [number(calls, "second", 8), number(calls, "first", 8), number(calls, "second", 8)] == [0, 2, 1]


def test_a_call_that_failed_and_is_tried_again_with_the_same_rows_is_the_same_call() -> None:
    calls, rows = Calls(), Rows()
    assert number(calls, "run", 0) == 0
    assert [number(calls, "run", 0, rows, fails=True) for _ in range(2)] == [1, 1]
    assert [number(calls, "run", 0, rows) for _ in range(2)] == [1, 2]
    assert [number(calls, "run", 0, fails=True), number(calls, "run", 0)] == [3, 4]


def test_two_threads_cannot_call_for_one_micro_batch() -> None:
    calls = Calls()
    number(calls, "run", 0)
    told: list[str] = []

    def call() -> None:
        with pytest.raises(UnsupportedSparkError) as caught:
            number(calls, "run", 0)
        told.append(str(caught.value))
        number(calls, "run", 1)

    thread = threading.Thread(target=call, name="another")
    thread.start()
    thread.join()
    assert "from another, after MainThread" in told[0]
    assert "one after the other" in told[0]


def test_runs_that_are_long_over_are_forgotten() -> None:
    calls = Calls()
    for run in range(MOST_RUNS + 10):
        number(calls, "kept", 0)
        number(calls, str(run), 0)
    assert len(calls._runs) == MOST_RUNS
    assert number(calls, "kept", 0) == MOST_RUNS + 10
