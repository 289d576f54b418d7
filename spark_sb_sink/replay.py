"""Sends quarantined messages again, as they are and under their old ids, after somebody mended what was wrong.

Some at a time: send, then note in the table `replays`. A crash between the two sends those once more, with the same
ids; what is noted is never sent again. The quarantine itself is not changed. One replay of a `state` runs at a time.
"""

import logging
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_sb_sink.amqp.errors import CodecError
from spark_sb_sink.board import Board
from spark_sb_sink.driver_loop import DriverLoop
from spark_sb_sink.envelope import TtlPolicy
from spark_sb_sink.errors import OptionError, ReplayRefusedError, SendError, told
from spark_sb_sink.factory import PairedFactory
from spark_sb_sink.options import Options, Ttl
from spark_sb_sink.pairing_keeper import PairingKeeper
from spark_sb_sink.quarantine import KEY, Filter, Quarantine, Quarantined, brief, in_brief
from spark_sb_sink.reports import EntityReport
from spark_sb_sink.syphon.lease import FOR_SECONDS, RENEW_AFTER, Lease
from spark_sb_sink.syphon.overflow import dated

AT_ONCE = 2000
"""Messages that are sent before they are noted: so many come twice after a crash, at most."""
AT_ONCE_BYTES = 16 * 2**20
LISTED = 1000
"""Rows that are named in the outcome; more are counted."""
NO_MESSAGE = "it never became a message, so there is nothing to send; mend it at the source, by its column row"
EXPIRED = "its time to live ran out while it waited, and the option ttl is deduct"
_LEASE = "replay"
_LOG = logging.getLogger(__name__)
_TRIES = 3


@dataclass(frozen=True, slots=True)
class Kept:
    """A row that stays in quarantine, and why."""

    row: Quarantined
    why: str


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay came to: `matched` rows were meant, `primary` and `backlog` took so many, the rest is `kept`."""

    matched: int
    primary: int = 0
    backlog: int = 0
    kept: tuple[Kept, ...] = ()
    kept_count: int = 0
    entities: dict[str, int] = field(default_factory=dict)
    """How many were sent for each entity."""
    errors: tuple[SendError, ...] = ()
    stopped: bool = False

    @property
    def sent(self) -> int:
        return self.primary + self.backlog

    @property
    def complete(self) -> bool:
        """Nothing that was meant is left."""
        return self.sent == self.matched


def plan(spark: SparkSession, options: Options, wanted: Filter) -> Replayed:
    """What a replay would send: all that are kept are those that cannot be sent. Sends nothing."""
    quarantine = _quarantine(spark, options)
    with quarantine.reading(wanted):
        rows = quarantine.waiting(wanted)
        if rows is None:
            return Replayed(0)
        by_entity = rows.where(F.col("message").isNotNull()).groupBy("entity").count().collect()
        counts = {str(row["entity"]): int(row["count"]) for row in by_entity}
        bad = rows.where(F.col("message").isNull())
        kept = tuple(Kept(brief(row), NO_MESSAGE) for row in in_brief(bad).limit(LISTED).collect())
        left = int(bad.count()) if len(kept) == LISTED else len(kept)
    return Replayed(sum(counts.values()) + left, kept=kept, kept_count=left, entities=counts)


def replay(
    spark: SparkSession,
    options: Options,
    wanted: Filter,
    *,
    stop: Callable[[], bool] = lambda: False,
    noted: Callable[[int], None] = lambda sent: None,
) -> Replayed:
    """Send what waits there and is meant. `noted` is told the number sent so far after each note."""
    planned = plan(spark, options, wanted)
    if not planned.entities:
        return planned
    quarantine = _quarantine(spark, options)
    with _leased(spark, quarantine, options) as check, _paired(options) as factory, quarantine.reading(wanted):
        rows = quarantine.waiting(wanted)  # only now: another replay may have ended a moment ago
        if rows is None:
            return planned
        work = _Work(quarantine, factory, options, planned)
        messages = rows.where(F.col("message").isNotNull()).orderBy("stored_at", *KEY)
        for part in _in_parts(messages.toLocalIterator(prefetchPartitions=True)):
            if stop():
                work.stopped = True
                break
            check()
            noted(work.send(part))
        return work.outcome()


class _Work:
    """A replay under way."""

    def __init__(self, quarantine: Quarantine, factory: PairedFactory, options: Options, planned: Replayed) -> None:
        self._quarantine = quarantine
        self._factory = factory
        self._partitioned = options.partitioned
        self._ttl: TtlPolicy = "deduct" if options.ttl is Ttl.DEDUCT else "full"
        self._planned = planned
        self._kept = list(planned.kept)
        self._kept_count = planned.kept_count
        self._sent: Counter[str] = Counter()
        self._primary = self._backlog = 0
        self._errors: dict[str, SendError] = {}
        self.stopped = False

    def send(self, part: Sequence[Any]) -> int:
        """Send and note; how many were sent so far."""
        ready: dict[str, list[tuple[Any, bytes]]] = {}
        now = int(time.time() * 1000)
        for row in part:
            if row["entity"] in self._errors:
                continue  # refused for good: its rows stay, and the error tells why
            try:
                found = dated(bytes(row["message"]), row["entity"], _milliseconds(row["stored_at"]), now, self._ttl)
            except CodecError as error:
                self._keep(row, f"it cannot be sent: {error}")
                continue
            if found.expired:
                self._keep(row, EXPIRED)
            else:
                ready.setdefault(row["entity"], []).append((row, found.message))
        reports = self._factory.send({entity: [message for _, message in rows] for entity, rows in ready.items()})
        gone = [row for entity, report in reports.items() for row in self._outcome(entity, ready[entity], report)]
        if gone:
            at = datetime.now(UTC)
            counts = Counter(tuple(row[key] for key in KEY) for row in gone)
            self._quarantine.state.note_replays([(at, *key, count) for key, count in counts.items()])
        return sum(self._sent.values())

    def _outcome(self, entity: str, rows: Sequence[tuple[Any, bytes]], report: EntityReport) -> Iterator[Any]:
        """The rows that were accepted."""
        self._primary += report.primary
        self._backlog += report.backlog
        self._sent[entity] += report.primary + report.backlog
        left = {unsent.position: unsent.reason for unsent in (*report.rejected, *report.overflow)}
        tried = len(rows) - report.abandoned
        if report.error is not None:
            self._errors[entity] = report.error
            if entity in self._partitioned:
                return  # sent by key, not in order: which of them went is not known, and twice is better than never
        for position, (row, _) in enumerate(rows[:tried]):
            if position in left:
                self._keep(row, left[position])
            else:
                yield row

    def _keep(self, row: Any, why: str) -> None:
        self._kept_count += 1
        if len(self._kept) < LISTED:
            self._kept.append(Kept(brief({**row.asDict(), "replayable": True}), why))

    def outcome(self) -> Replayed:
        return Replayed(
            self._planned.matched,
            self._primary,
            self._backlog,
            tuple(self._kept),
            self._kept_count,
            dict(self._sent),
            tuple(self._errors.values()),
            self.stopped,
        )


def _quarantine(spark: SparkSession, options: Options) -> Quarantine:
    if options.state is None:
        raise OptionError("replay reads the quarantine, which takes the option state to know where that is.")
    return Quarantine(spark, options.state)


def _in_parts(rows: Iterable[Any]) -> Iterator[list[Any]]:
    part: list[Any] = []
    size = 0
    for row in rows:
        part.append(row)
        size += len(row["message"])
        if len(part) >= AT_ONCE or size >= AT_ONCE_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


@contextmanager
def _leased(spark: SparkSession, quarantine: Quarantine, options: Options) -> Iterator[Callable[[], None]]:
    """Two replays at once would send everything twice. Gives what raises once the lease is not ours any more."""
    lease = Lease(spark, quarantine.state, uuid.uuid4().hex, name=_LEASE)
    lost, over = threading.Event(), threading.Event()

    def take() -> None:
        # A syphon renews its own in the same table, and one of two that do so at once has to try again.
        if not any(lease.take() for _ in range(_TRIES)):
            lost.set()

    def keep() -> None:
        while not over.wait(RENEW_AFTER):
            try:
                take()
            except Exception as error:  # noqa: BLE001 - without a lease nothing more is sent, whatever the reason
                _LOG.warning("the lease of the replay was not renewed: %s", told(error))
                lost.set()

    def check() -> None:
        if lost.is_set():
            raise ReplayRefusedError(state=str(options.state), seconds=FOR_SECONDS)

    take()
    check()
    keeper = threading.Thread(target=keep, name="spark-sb-sink-replay-lease", daemon=True)
    keeper.start()  # a send to an entity that is out takes a failover interval, and that may be longer than a lease
    try:
        yield check
    finally:
        over.set()
        keeper.join()
        lease.give_back()


@contextmanager
def _paired(options: Options) -> Iterator[PairedFactory]:
    """A paired factory in this process, after the pairing that the options ask for."""
    loop = DriverLoop("spark-sb-sink-replay")
    keeper = PairingKeeper(options)
    try:
        loop.run(keeper.start())
        with tempfile.TemporaryDirectory(prefix="spark-sb-sink-") as folder:
            board = Board.for_executor(folder, options)
            factory = PairedFactory(options, board)
            try:
                yield factory
            finally:
                factory.close()
                board.close()
    finally:
        loop.run(keeper.stop())
        loop.close()


def _milliseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
