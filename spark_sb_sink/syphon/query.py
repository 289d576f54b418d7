"""The syphon as a streaming query of its own: `Syphon(options).start(spark)`.

A ticking source; each micro-batch is one turn of all tasks (`turn`). Long polls go on from turn to turn. A second query
beside it looks after the overflow. Knows nothing of receivers and links.
"""

import contextlib
import os
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from spark_sb_sink.delta_state import DeltaState
from spark_sb_sink.driver_loop import DriverLoop
from spark_sb_sink.errors import SparkSbSinkError, TurnFailedError, redact, told
from spark_sb_sink.events import Listener, Moved, SyphonTurn, Warned, log, tell
from spark_sb_sink.options import Options
from spark_sb_sink.pairing_keeper import PairingKeeper
from spark_sb_sink.shipping import Shipping
from spark_sb_sink.syphon.empty import is_empty
from spark_sb_sink.syphon.overflow_drain import OverflowDrain, OverflowSent
from spark_sb_sink.syphon.overflow_thread import OverflowThread
from spark_sb_sink.syphon.rate import Shares
from spark_sb_sink.syphon.slots import check_slots
from spark_sb_sink.syphon.transfers import OVERFLOW_BATCH, of_overflow, of_turn
from spark_sb_sink.syphon.transfers import rows as transfer_rows
from spark_sb_sink.syphon.turn import DDL, Patience, Turn, TurnReport, left_of, read_turn, split, turn_task
from spark_sb_sink.syphon.workers import leave_seats, run_each, take_seats

COUNT_TO = 100_000
"""Messages of one queue that are counted when a time limit has passed."""
EMPTY_TURN = 2.0
"""Seconds of a turn while somebody waits for the backlog to be empty."""
TURN = 10.0
"""Seconds of an idle turn. Long polls go on from turn to turn; a stop waits for the end of one."""
STOP_WITHIN = 4 * TURN
OVERFLOW_EVERY = 30.0
OVERFLOW_EVERY_WAITED_FOR = 1.0


@dataclass(frozen=True, slots=True)
class Drained:
    """How `drain_until_empty` ended: `left` by queue (None: not known), and whether the overflow is empty.

    `overflow_empty` is None without `state`: then nobody looked, and there may be an overflow of a sink that has it.
    """

    empty: bool
    left: Mapping[str, int | None]
    overflow_empty: bool | None
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
        self._listeners = tuple(listeners)
        self._slots_taken = slots_taken

    def start(self, spark: SparkSession) -> "RunningSyphon":
        """Run until it is stopped or comes to its end by a fault."""
        check_slots(spark, self.options, self._slots_taken)
        return RunningSyphon(self, spark, self._listeners, until_empty=False)

    def drain_until_empty(
        self, spark: SparkSession, within: float | None = None, stop: threading.Event | None = None
    ) -> Drained:
        """Run until active, deferred and overflow are all empty, until the time is up, or until `stop` is set."""
        check_slots(spark, self.options, self._slots_taken)
        running = RunningSyphon(self, spark, self._listeners, until_empty=True)
        try:
            empty = running.await_empty(within, stop)
        finally:
            running.stop()
        left = {} if empty else running.count_left()
        overflow_empty = None if self.options.state is None else running.overflow_empty
        return Drained(empty, left, overflow_empty, running.moved)


class RunningSyphon:
    """A syphon at work."""

    def __init__(
        self, syphon: Syphon, spark: SparkSession, listeners: Sequence[Listener], *, until_empty: bool
    ) -> None:
        self.options = syphon.options
        # One that is started again is another: it must not pass for the one before, which may still hold a lease.
        self.name = f"{os.uname().nodename}-{uuid.uuid4().hex[:8]}"
        self._spark = spark
        self._listeners = listeners
        self._until_empty = until_empty
        self._patience = Patience(self.options.settle_time)
        self._empty = threading.Event()
        self._news = threading.Event()
        """Set by whatever moved since the last look whether it is empty."""
        self._shares = Shares(self.options.max_rate, self.options.syphon_tasks)
        self._shipping = Shipping(self.options)
        self._deal = split(self.options.backlog_queue_count, self.options.syphon_tasks)
        self._seats = take_seats(len(self._deal))
        self._loop = DriverLoop("spark-sb-sink-syphon")
        self._overflow: OverflowThread | None = None
        self._overflow_drained = True
        self._keeper: PairingKeeper | None = PairingKeeper(self.options)
        self.moved = 0
        self._write = threading.Lock()
        self._turning = threading.Lock()
        self._stopping = threading.Event()
        try:
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

    def _overflow_thread(self, spark: SparkSession) -> OverflowThread:
        options = self._shipping.to(spark)
        drain = OverflowDrain(spark, self.options, options, self._overflow_sent, self.name, self._shares)
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

    def await_empty(self, within: float | None = None, stop: threading.Event | None = None) -> bool:
        """Wait until everything is empty; whether it is."""
        end = None if within is None else time.monotonic() + within
        while not self._empty.is_set():
            if (end is not None and time.monotonic() >= end) or (stop is not None and stop.is_set()):
                return False
            if self.await_end(0.2):
                return self._empty.is_set()
        return True

    @property
    def overflow_empty(self) -> bool:
        return self._overflow_drained if self._overflow is None else self._overflow.drained.is_set()

    def stop(self) -> None:
        """Let the turn under way end, which settles what it has in hand, then stop.

        A turn that takes too long is cut off: what it had in hand comes again, once its lock is over.
        """
        self._stopping.set()
        if self._overflow is not None:
            self._overflow.ask_to_stop()
        if self._turning.acquire(timeout=STOP_WITHIN):
            self._turning.release()
        with contextlib.suppress(StreamingQueryException):
            self.query.stop()
        self._let_go()

    def count_left(self) -> dict[str, int | None]:
        """How many messages each backlog queue has that is not empty; None for one that cannot be looked at."""
        reports = self._run_tasks(self._spark, Turn(idle=0.0, count_to=COUNT_TO, look_only=True))
        for report in reports:
            if report.error is not None:
                tell(self._listeners, Warned(f"what is left in some backlog queues is not known: {report.error}"))
        left = left_of(reports, self.options.backlog_path)
        return {queue: count for queue, count in left.items() if count != 0}

    # A micro-batch

    _error: SparkSbSinkError | None = None

    def _turn(self, df: DataFrame, batch_id: int) -> None:
        with self._turning:
            if self._stopping.is_set():
                return
            try:
                self._one_turn(df, batch_id)
            except SparkSbSinkError as error:  # Spark passes on no more than a stack
                self._error = error
                raise
            except Exception as error:
                self._error = TurnFailedError(detail=str(error) or repr(error))
                raise

    def _one_turn(self, df: DataFrame, batch_id: int) -> None:
        if self._keeper is not None:
            self._keeper.check()
        rate = self._shares.for_turn()
        turn = Turn(EMPTY_TURN, 1, rate) if self._until_empty else Turn(TURN, rate=rate)
        reports = self._run_tasks(df.sparkSession, turn)
        moved = of_turn(receipt for report in reports for receipt in report.report.receipts)
        self._tell_moved(df.sparkSession, batch_id, moved)
        for text in {str(error): None for report in reports for error in report.report.errors}:
            tell(self._listeners, Warned(text))
        for report in reports:
            if report.error is not None:
                raise report.error
        if self._until_empty:
            nothing = all(is_empty(report.left or {}) for report in reports) and self.overflow_empty
            news = self._news.is_set()
            self._news.clear()
            if self._patience.found(not nothing, moved=news):
                self._empty.set()

    def _run_tasks(self, spark: SparkSession, turn: Turn) -> list[TurnReport]:
        options = self._shipping.to(spark)
        tasks = [turn_task(options, turn, queues) for queues in self._deal]
        return [read_turn(row[0]) for row in run_each(spark, tasks, DDL, self._seats)]

    def _overflow_sent(self, sent: OverflowSent) -> None:
        self._tell_moved(self._spark, OVERFLOW_BATCH, of_overflow(sent))

    def _tell_moved(self, spark: SparkSession, batch_id: int, moved: tuple[Moved, ...]) -> None:
        if moved:
            self._news.set()
            self.moved += sum(each.moved for each in moved)
            tell(self._listeners, SyphonTurn(self.name, batch_id, moved))
            self._note(spark, batch_id, moved)

    def _note(self, spark: SparkSession, batch_id: int, moved: Sequence[Moved]) -> None:
        if self.options.state is None:
            return
        now = datetime.now(UTC)
        rows = list(transfer_rows(now, self.name, batch_id, moved))
        try:
            with self._write:
                DeltaState(spark, self.options.state).note_transfers(rows)
        except Exception as error:  # noqa: BLE001 - what was moved is moved: better an entry too few than no syphon
            tell(self._listeners, Warned(f"{len(rows)} rows for the table transfers are not written: {told(error)}"))

    def _let_go(self) -> None:
        if self._overflow is not None:
            overflow, self._overflow = self._overflow, None
            if not overflow.stop():
                text = "the overflow's stream does not stop in time; another syphon drains it once its lease is over"
                tell(self._listeners, Warned(text))
            self._overflow_drained = overflow.drained.is_set()
        if self._keeper is not None:
            self._loop.run(self._keeper.stop())
            self._keeper = None
            self._loop.close()
            leave_seats(self._seats)

    def __enter__(self) -> "RunningSyphon":
        return self

    def __exit__(self, *ended: object) -> None:
        self.stop()
