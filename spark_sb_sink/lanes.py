"""The lanes of a task: its entities side by side in the factory's loop, and a bound on the bytes that wait.

One thread feeds (the task), one loop sends. Knows nothing of Spark, rows or Arrow.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from spark_sb_sink.errors import AllBacklogsOutError, SendError
from spark_sb_sink.factory import PairedFactory
from spark_sb_sink.reports import EntityReport, Unsent
from spark_sb_sink.sender import PairedSender

SAMPLES = 3
"""So many reasons of an entity are told where the messages themselves are not."""


class Table(Enum):
    """Where in Delta a message goes that no namespace took."""

    OVERFLOW = "overflow"
    QUARANTINE = "quarantine"


class Aside(NamedTuple):
    """A message that was not sent, and where it belongs."""

    entity: str
    table: Table
    message: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class LaneTotals:
    """What became of all messages of one entity in one task."""

    entity: str
    primary: int = 0
    backlog: int = 0
    overflow: int = 0
    quarantine: int = 0
    abandoned: int = 0
    error: SendError | None = None
    all_out: AllBacklogsOutError | None = None
    reasons: tuple[str, ...] = ()
    """Of overflow and quarantine, the first few that differ."""
    primary_bytes: int = 0

    @property
    def total(self) -> int:
        return self.primary + self.backlog + self.overflow + self.quarantine + self.abandoned

    def plus(self, report: EntityReport) -> "LaneTotals":
        """The totals with one more report."""
        return LaneTotals(
            self.entity,
            self.primary + report.primary,
            self.backlog + report.backlog,
            self.overflow + len(report.overflow),
            self.quarantine + len(report.rejected),
            self.abandoned + report.abandoned,
            self.error or report.error,
            self.all_out or report.all_out,
            first_reasons(self.reasons, (unsent.reason for unsent in (*report.rejected, *report.overflow))),
            self.primary_bytes + report.primary_bytes,
        )


def first_reasons(known: tuple[str, ...], more: Iterable[str]) -> tuple[str, ...]:
    """The first few reasons that differ."""
    found = dict.fromkeys(known)
    for reason in more:
        if len(found) >= SAMPLES:
            break
        found[reason] = None
    return tuple(found)


@dataclass(slots=True)
class _Lane:
    sender: PairedSender
    totals: LaneTotals
    waiting: deque[Sequence[bytes]] = field(default_factory=deque)
    work: "Future[None] | None" = None


class Lanes:
    """Feed it from one thread. At the bound `await_room` waits, and so the task stops reading."""

    def __init__(
        self, factory: PairedFactory, max_in_flight: int, *, keep_unsent: bool, from_overflow: bool = False
    ) -> None:
        """`keep_unsent`: whether somebody takes the messages that were not sent; else they are only counted.

        `from_overflow`: they were accepted once. An entity that is missing is down, not a reason to blame them, and
        those that were abandoned come back too.
        """
        self._factory = factory
        self._most = max_in_flight
        self._keep = keep_unsent
        self._from_overflow = from_overflow
        self._changed = threading.Condition()
        self._lanes: dict[str, _Lane] = {}
        self._in_flight = 0
        self._aside: list[Aside] = []
        self._failure: BaseException | None = None
        self._cancelled = False

    @property
    def in_flight(self) -> int:
        """Bytes of messages that wait or are being sent."""
        return self._in_flight

    def await_room(self, size: int) -> bool:
        """Whether so many bytes can be fed now. Waits for that, but returns False as soon as `take` has something."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure or self._aside or self._has_room(size))
            self._check()
            return self._has_room(size)

    def _has_room(self, size: int) -> bool:
        # What is larger than the bound goes alone.
        return self._in_flight == 0 or self._in_flight + size <= self._most

    def has_room(self, size: int) -> bool:
        """Whether so many bytes can be fed now."""
        with self._changed:
            return self._has_room(size)

    def feed(self, entity: str, messages: Sequence[bytes]) -> None:
        """Messages for one entity, behind those that it was fed before."""
        self.feed_all({entity: messages})

    def feed_all(self, streams: Mapping[str, Sequence[bytes]]) -> None:
        """The same for several; the loop is woken once for all of them."""
        with self._changed:
            self._check()
            idle = []
            for entity, messages in streams.items():
                self._in_flight += sum(map(len, messages))
                lane = self._lanes.get(entity)
                if lane is None:
                    sender = self._factory.sender(entity, left=self._left, missing_is_down=self._from_overflow)
                    lane = _Lane(sender, LaneTotals(entity))
                    self._lanes[entity] = lane
                lane.waiting.append(messages)
                if lane.work is None:
                    idle.append(lane)
            if idle:
                work = self._factory.submit(self._run_all(idle))
                for lane in idle:
                    lane.work = work
                work.add_done_callback(self._ended)

    def take(self) -> list[Aside]:
        """What could not be sent, since the last call."""
        with self._changed:
            self._check()
            taken, self._aside = self._aside, []
            return taken

    def await_end(self) -> bool:
        """Whether all that was fed has its outcome. Waits for that, but no longer than until `take` has something."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure or self._aside or self._idle())
            self._check()
            return self._idle() and not self._aside

    def _idle(self) -> bool:
        return all(lane.work is None for lane in self._lanes.values())

    def totals(self) -> tuple[LaneTotals, ...]:
        """What became of everything, by entity."""
        with self._changed:
            return tuple(lane.totals for lane in self._lanes.values())

    def cancel(self) -> None:
        """Send no more: the task has ended, and nobody will hear of it. Does nothing where all is done."""
        with self._changed:
            self._cancelled = True
            works = [lane.work for lane in self._lanes.values() if lane.work is not None]
            for lane in self._lanes.values():
                lane.waiting.clear()
        for work in works:
            work.cancel()

    # In the loop

    async def _run_all(self, lanes: Sequence[_Lane]) -> None:
        if len(lanes) == 1:
            await self._run(lanes[0])
        else:
            await asyncio.gather(*map(self._run, lanes))

    async def _run(self, lane: _Lane) -> None:
        while handed := self._next(lane):
            if lane.totals.error is not None:  # it was refused for good: nothing more is tried
                self._abandon(lane, handed.pop())
                continue
            # Nothing here may hold them: each is gone from memory once it is gone from the bound.
            await lane.sender.send(handed.pop())
            report = lane.sender.report()
            with self._changed:
                lane.totals = lane.totals.plus(report)
                if self._keep:
                    self._aside += _aside(lane.totals.entity, Table.QUARANTINE, report.rejected)
                    self._aside += _aside(lane.totals.entity, Table.OVERFLOW, report.overflow)
                    self._hand_back(lane.totals, report.untried)
                self._changed.notify_all()

    def _next(self, lane: _Lane) -> list[Sequence[bytes]]:
        """All that waits, as one; empty where nothing does."""
        with self._changed:
            if not lane.waiting or self._cancelled:
                lane.work = None
                self._changed.notify_all()
                return []
            if len(lane.waiting) == 1:
                return [lane.waiting.popleft()]
            # All at once, so that batches are full.
            messages = [message for part in lane.waiting for message in part]
            lane.waiting.clear()
            return [messages]

    def _abandon(self, lane: _Lane, messages: Sequence[bytes]) -> None:
        with self._changed:
            lane.totals = replace(lane.totals, abandoned=lane.totals.abandoned + len(messages))
            self._hand_back(lane.totals, messages)
        self._left(sum(map(len, messages)))

    def _hand_back(self, totals: LaneTotals, untried: Sequence[bytes]) -> None:
        if self._from_overflow:
            reason = str(totals.error)
            self._aside += [Aside(totals.entity, Table.OVERFLOW, message, reason) for message in untried]

    def _left(self, size: int) -> None:
        with self._changed:
            self._in_flight -= size
            self._changed.notify_all()

    def _ended(self, work: "Future[None]") -> None:
        error = None if work.cancelled() else work.exception()
        if error is not None:  # never for the outcome of a send: the factory was closed, or the board is lost
            with self._changed:
                self._failure = self._failure or error
                self._changed.notify_all()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure


def _aside(entity: str, table: Table, unsent: Sequence[Unsent]) -> list[Aside]:
    return [Aside(entity, table, each.message, each.reason) for each in unsent]
