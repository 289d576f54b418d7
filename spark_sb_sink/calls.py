"""Which call of a sink it is within its micro-batch, over all sinks of this driver: 0, 1, …

A replay runs in another run of the query and calls in the same order, so its calls have the same numbers; what the
first wrote or sent is not taken for the second's. Knows no sink.
"""

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from spark_sb_sink.errors import UnsupportedSparkError

MOST_RUNS = 1000
"""Of so many runs the latest micro-batch is kept; no driver has more queries at a time."""


@dataclass(slots=True)
class _Batch:
    batch_id: int
    thread: threading.Thread
    count: int = 0
    failed: tuple[int, "weakref.ref[object]"] | None = None
    """The last call that raised, and its rows: tried again with the same, it is the same call."""


class Calls:
    """Counts. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[tuple[str, str], _Batch] = {}

    @contextmanager
    def one(self, query_id: str, run_id: str, batch_id: int, rows: object) -> Iterator[int]:
        """Around one call with these rows, its number."""
        with self._lock:
            batch = self._batch(query_id, run_id, batch_id)
            if batch.failed is not None and batch.failed[1]() is rows:
                number = batch.failed[0]
            else:
                number = batch.count
                batch.count += 1
            batch.failed = None
        try:
            yield number
        except BaseException:
            batch.failed = number, weakref.ref(rows)
            raise

    def _batch(self, query_id: str, run_id: str, batch_id: int) -> _Batch:
        here = threading.current_thread()
        batch = self._runs.pop((query_id, run_id), None)
        if batch is None or batch.batch_id != batch_id:
            batch = _Batch(batch_id, here)
        self._runs[query_id, run_id] = batch  # used last, so forgotten last
        while len(self._runs) > MOST_RUNS:
            del self._runs[next(iter(self._runs))]
        if batch.thread is not here:
            raise UnsupportedSparkError(
                f"A sink was called for micro-batch {batch_id} from {here.name}, after {batch.thread.name} had called "
                "one for the same micro-batch. Side by side, their order could differ in a replay, and message ids "
                "and the tables of state go by it: make all calls of a micro-batch in one thread, one after the other."
            )
        return batch


CALLS = Calls()
"""Those of this driver."""
