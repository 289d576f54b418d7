"""The syphon as a streaming query of its own: `Syphon(options).start(spark)`.

A ticking source; each micro-batch is one turn of all tasks (`turn`). Idle, a turn lasts one long poll. The overflow is
looked after by a second query beside it. Knows nothing of receivers and links.
"""

import contextlib
import os
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from spark_sb_sink.delta_state import DeltaState
from spark_sb_sink.driver_loop import DriverLoop
from spark_sb_sink.errors import OptionError, SparkSbSinkError, redact
from spark_sb_sink.events import Listener, Moved, SyphonTurn, Warned, log, tell
from spark_sb_sink.options import Options
from spark_sb_sink.pairing_keeper import PairingKeeper
from spark_sb_sink.shipping import Shipping
from spark_sb_sink.syphon.overflow_drain import OverflowDrain, OverflowSent, OverflowThread, transfers_of
from spark_sb_sink.syphon.turn import DDL, Patience, Turn, TurnReport, read_turn, split, turn_task

COUNT_TO = 100_000
"""Messages of one queue that are counted when a time limit has passed."""
EMPTY_TURN = 2.0
"""Seconds of a turn while somebody waits for the backlog to be empty."""
OVERFLOW_EVERY = 30.0
OVERFLOW_EVERY_WAITED_FOR = 1.0


@dataclass(frozen=True, slots=True)
class Drained:
    """How `drain_until_empty` ended: `left` by queue, and whether the overflow is empty."""

    empty: bool
    left: Mapping[str, int]
    overflow_empty: bool
    moved: int


class Syphon:
    """Brings everything home. Many may run at the same time, in as many applications."""

    def __init__(
        self,
        options: Options | Mapping[str, Any] | str | os.PathLike[str],
        *,
        listeners: Sequence[Listener] = (log,),
        slots_taken: int = 0,
    ) -> None:
        """`slots_taken`: task slots of the application that others need, the sink in it say."""
        if isinstance(options, Options):
            self.options = options
        elif isinstance(options, Mapping):
            self.options = Options.from_dict(options)
        else:
            self.options = Options.from_toml(options)
        self.name = f"{os.uname().nodename}-{uuid.uuid4().hex[:8]}"
        self._listeners = tuple(listeners)
        self._slots_taken = slots_taken

    def start(self, spark: SparkSession) -> "RunningSyphon":
        """Run until it is stopped or comes to its end by a fault."""
        self._check_slots(spark)
        return RunningSyphon(self, spark, self._listeners, until_empty=False)

    def drain_until_empty(self, spark: SparkSession, within: float | None = None) -> Drained:
        """Run until active, deferred and overflow are all empty, or until the time is up."""
        self._check_slots(spark)
        running = RunningSyphon(self, spark, self._listeners, until_empty=True)
        try:
            empty = running.await_empty(within)
        finally:
            running.stop()
        left = {} if empty else running.count_left()
        return Drained(empty, left, running.overflow_empty, running.moved)

    def _check_slots(self, spark: SparkSession) -> None:
        """A task that waits for a slot serves no queue, and one that never ends would take it from others."""
        slots = spark.sparkContext.defaultParallelism
        overflow = 1 if self.options.state is not None else 0
        needed = self.options.syphon_tasks + overflow + self._slots_taken
        if slots < needed:
            parts = [f"{self.options.syphon_tasks} for syphon_tasks"]
            parts += ["1 for the overflow"] if overflow else []
            parts += [f"{self._slots_taken} for the sink"] if self._slots_taken else []
            raise OptionError(
                f"the syphon needs {needed} task slots ({', '.join(parts)}), and this application has {slots}; give it "
                "more cores, or run the syphon as an application of its own (spark-submit jobs/syphon.py)."
            )


class RunningSyphon:
    """A syphon at work."""

    def __init__(
        self, syphon: Syphon, spark: SparkSession, listeners: Sequence[Listener], *, until_empty: bool
    ) -> None:
        self.options = syphon.options
        self._name = syphon.name
        self._spark = spark
        self._listeners = listeners
        self._until_empty = until_empty
        self._patience = Patience(self.options.settle_time)
        self._empty = threading.Event()
        self._shipping = Shipping(self._share_of_a_task())
        self._deal = split(self.options.backlog_queue_count, self.options.syphon_tasks)
        self._loop = DriverLoop("spark-sb-sink-syphon")
        self._overflow: OverflowThread | None = None
        self.moved = 0
        self._write = threading.Lock()
        try:
            self._keeper = PairingKeeper(self.options)
            self._loop.run(self._keeper.start())
            if self.options.state is not None:
                DeltaState(spark, self.options.state).check()
                self._overflow = self._overflow_thread(spark)
                self._overflow.start()
            self.query: StreamingQuery = (
                spark.readStream.format("rate")
                .option("rowsPerSecond", 1)
                .option("numPartitions", 1)
                .load()
                .writeStream.foreachBatch(self._turn)
                .queryName(f"spark-sb-sink-syphon-{uuid.uuid4().hex[:8]}")
                .start()
            )
        except BaseException:
            self._let_go()
            raise

    def _share_of_a_task(self) -> Options:
        """`max_rate` is for all tasks together."""
        options = self.options
        if options.max_rate is None or options.syphon_tasks == 1:
            return options
        return options.model_copy(update={"max_rate": options.max_rate / options.syphon_tasks})

    def _overflow_thread(self, spark: SparkSession) -> OverflowThread:
        drain = OverflowDrain(spark, self.options, self._shipping.to(spark), self._overflow_sent, self._name)
        every = OVERFLOW_EVERY_WAITED_FOR if self._until_empty else OVERFLOW_EVERY

        def failed(error: Exception) -> None:
            tell(
                self._listeners,
                Warned(f"the overflow could not be drained, and is tried again: {redact(str(error))[:1000]}"),
            )

        return OverflowThread(drain, every, failed)

    # What users call

    @property
    def active(self) -> bool:
        return bool(self.query.isActive)

    def await_end(self, within: float | None = None) -> bool:
        """Wait for the end; whether it has come. Raises what ended the syphon."""
        try:
            if within is not None:
                return bool(self.query.awaitTermination(within))
            self.query.awaitTermination()
            return True
        except StreamingQueryException:
            if self._error is not None:
                raise self._error from None
            raise

    def await_empty(self, within: float | None = None) -> bool:
        """Wait until everything is empty; whether it is."""
        end = None if within is None else time.monotonic() + within
        while not self._empty.is_set():
            if end is not None and time.monotonic() >= end:
                return False
            if self.await_end(0.2):
                return self._empty.is_set()
        return True

    @property
    def overflow_empty(self) -> bool:
        return self._overflow is None or self._overflow.drained.is_set()

    def stop(self) -> None:
        """Stop. What is in hand is not settled, so nothing is lost: it comes again once its lock is over."""
        with contextlib.suppress(StreamingQueryException):
            self.query.stop()
        self._let_go()

    def count_left(self) -> dict[str, int]:
        """How many messages each backlog queue has."""
        left: dict[str, int] = {}
        for report in self._run_tasks(self._spark, Turn(idle=0.0, count_to=COUNT_TO)):
            left.update(report.left or {})
        return {queue: count for queue, count in left.items() if count}

    # A micro-batch

    _error: SparkSbSinkError | None = None

    def _turn(self, df: DataFrame, batch_id: int) -> None:
        self._keeper.check()
        turn = Turn(EMPTY_TURN, count_to=1) if self._until_empty else Turn(self.options.long_poll)
        reports = self._run_tasks(df.sparkSession, turn)
        moved = [Moved(*_counts(receipt)) for report in reports for receipt in report.report.receipts]
        self.moved += sum(each.moved for each in moved)
        if moved:
            tell(self._listeners, SyphonTurn(self._name, batch_id, tuple(moved)))
            self._note(df.sparkSession, batch_id, moved)
        for text in {str(error): None for report in reports for error in report.report.errors}:
            tell(self._listeners, Warned(text))
        for report in reports:
            if report.error is not None:
                self._error = report.error
                raise report.error
        if self._until_empty:
            anything = any(count for report in reports for count in (report.left or {}).values())
            if self._patience.found(anything or not self.overflow_empty):
                self._empty.set()

    def _run_tasks(self, spark: SparkSession, turn: Turn) -> list[TurnReport]:
        tasks = len(self._deal)
        numbers = spark.range(0, tasks, 1, tasks)
        receipts = numbers.mapInArrow(turn_task(self._shipping.to(spark), turn, self._deal), DDL)
        return [read_turn(row[0]) for row in receipts.collect()]

    def _overflow_sent(self, sent: OverflowSent) -> None:
        moved = [
            Moved("overflow", entity, counts["moved"], 0, counts["dead_lettered"], 0, 0, None, 0)
            for entity, counts in transfers_of([sent])
        ]
        self.moved += sum(each.moved for each in moved)
        if moved:
            tell(self._listeners, SyphonTurn(self._name, -1, tuple(moved)))
            self._note(self._spark, -1, moved)

    def _note(self, spark: SparkSession, batch_id: int, moved: Sequence[Moved]) -> None:
        if self.options.state is None:
            return
        now = datetime.now(UTC)
        with self._write:
            DeltaState(spark, self.options.state).note_transfers(
                [
                    (
                        now,
                        self._name,
                        batch_id,
                        each.queue,
                        each.entity,
                        each.moved,
                        each.deferred,
                        each.dead_lettered,
                        each.lost_locks,
                        each.unconfirmed,
                        None if each.oldest_ms is None else datetime.fromtimestamp(each.oldest_ms / 1000, UTC),
                        each.bytes,
                    )
                    for each in moved
                ]
            )

    def _let_go(self) -> None:
        if self._overflow is not None:
            self._overflow.stop()
        with contextlib.suppress(AttributeError, RuntimeError):
            self._loop.run(self._keeper.stop())
        self._loop.close()

    def __enter__(self) -> "RunningSyphon":
        return self

    def __exit__(self, *ended: object) -> None:
        self.stop()


def _counts(receipt: Any) -> Iterator[Any]:
    for name in Moved.__slots__:
        yield getattr(receipt, name)
