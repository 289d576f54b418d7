"""One micro-batch of the syphon on an executor: a task serves its backlog queues for one turn, and reports.

It never raises: Spark would run it again. What ends the syphon stands in the report, and the driver decides.
"""

import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from spark_sb_sink.errors import SparkSbSinkError
from spark_sb_sink.options import Options
from spark_sb_sink.send_task import executor_folder
from spark_sb_sink.syphon.drain import Drain, drain_for
from spark_sb_sink.syphon.receipts import Report

DDL = "report binary"
TELL_AFTER = 5.0
"""Seconds from the first message that a turn moved to its end: that is how old receipts get."""


@dataclass(frozen=True, slots=True)
class TurnReport:
    """What one task did in one turn."""

    queues: tuple[int, ...]
    report: Report = field(default_factory=Report)
    left: dict[str, int | None] | None = None
    """Where it was asked for: how many messages each queue still has; None for one that could not be looked at."""
    error: SparkSbSinkError | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """What a task is told. `idle` is how long it may wait for a first message; `count_to` asks for what is left."""

    idle: float
    count_to: int = 0
    rate: float | None = None
    """This task's share of `max_rate`."""
    look_only: bool = False
    """Receive nothing: what nobody goes on to send would stay locked."""


def split(queues: int, tasks: int) -> list[tuple[int, ...]]:
    """The numbers of all backlog queues, dealt to the tasks."""
    return [tuple(range(task, queues, tasks)) for task in range(tasks)]


def take_turn(options: Options, queues: Sequence[int], turn: Turn, folder: str) -> TurnReport:
    """Drain for one turn: until receipts are worth telling, or `idle` has passed without any."""
    mine = tuple(queues)
    drain: Drain | None = None
    try:
        drain = drain_for(options, folder, mine)
        report = Report() if turn.look_only else _move(drain, turn)
        left = drain.look(turn.count_to) if turn.count_to else None
        return TurnReport(mine, report, left)
    except SparkSbSinkError as error:
        return TurnReport(mine, Report() if drain is None else drain.untold(), error=error)


def _move(drain: Drain, turn: Turn) -> Report:
    drain.limit(turn.rate)
    since: list[float] = []

    def told_enough() -> bool:
        now = time.monotonic()
        if not since and drain.has_news:
            since.append(now)
        return bool(since) and now >= since[0] + min(TELL_AFTER, turn.idle)

    return drain.run(turn.idle, told_enough)


def turn_task(
    options: Callable[[], Options], turn: Turn, queues: tuple[int, ...]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What `mapInArrow` calls with one row, for one task: the numbers of its queues are known here."""

    def drain_backlog(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            report = take_turn(options(), queues, turn, executor_folder())
            yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(report)], pa.binary())], names=["report"])

    return drain_backlog


def read_turn(payload: bytes | bytearray) -> TurnReport:
    """The report that a task of ours wrote."""
    report = pickle.loads(bytes(payload))  # noqa: S301 - it came through Spark, which runs our code anyway
    if not isinstance(report, TurnReport):
        raise TypeError(f"a turn's receipt holds a {type(report).__name__}")
    return report


def left_of(reports: Iterable[TurnReport], backlog_path: str) -> dict[str, int | None]:
    """What all tasks found, by queue; None for those of a task that could not look."""
    left: dict[str, int | None] = {}
    for report in reports:
        unknown = dict.fromkeys(f"{backlog_path}{number}" for number in report.queues)
        left.update(unknown if report.left is None else report.left)
    return left


class Patience:
    """Empty means: looks find nothing, twice, `settle_time` apart. Pure but for the clock that it is given."""

    def __init__(self, settle_time: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._settle_time = settle_time
        self._clock = clock
        self._since: float | None = None

    def found(self, anything: bool, *, moved: bool = False) -> bool:
        """After a look: whether it is empty now. `moved`: something was there since the last look, and is gone."""
        now = self._clock()
        if anything or moved:
            self._since = None
        if anything:
            return False
        if self._since is None:
            self._since = now
            return False
        return now >= self._since + self._settle_time
