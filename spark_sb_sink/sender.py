"""Sends the messages of one entity, in order: to the primary, or to the backlog while the entity is failed over.

Takes encoded messages and reports what became of each. It never raises for the outcome of a send. What a failure means
is decided by `faults`, when to divert by `failover` on the board; where links come from is the business of `links`.
"""

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter

from spark_sb_sink.board import Board
from spark_sb_sink.errors import NO_OUTCOME, AllBacklogsOutError, MisconfiguredSendError
from spark_sb_sink.failover import EntityState, Event, Health, Route, SendFailed, SendSucceeded, SendThrottled, route
from spark_sb_sink.faults import Fault, Kind, Phase, sort, symptom_of
from spark_sb_sink.filling import Batch, Filler, Message
from spark_sb_sink.links import Links
from spark_sb_sink.pings import Pinger
from spark_sb_sink.reports import EntityReport, Tally, Unsent
from spark_sb_sink.rotation import AllOut
from spark_sb_sink.timing import Backoff, Clock
from spark_sb_sink.transport import Side

_BYTES: Callable[[Message], bytes] = itemgetter(1)


@dataclass(frozen=True, slots=True)
class Pair:
    """What senders share: links, board, pings, time, and the names that errors need."""

    links: Links
    board: Board
    pinger: Pinger
    clock: Clock
    rng: random.Random
    failover_interval: float
    backlog_path: str
    primary: str
    secondary: str


class PairedSender:
    """The lane of one entity. Not for two callers at once: order is its point."""

    def __init__(
        self,
        entity: str,
        pair: Pair,
        *,
        partitioned: bool = False,
        left: Callable[[int], None] = lambda size: None,
        missing_is_down: bool = False,
    ) -> None:
        """`left` is told the size of each message that needs no memory any more.

        `missing_is_down`: an entity that is not there is down, also where nobody remembers that it ever was.
        """
        self.entity = entity
        self._pair = pair
        self._left = left
        self._missing_is_down = missing_is_down
        self._tally = Tally(entity)
        self._filler = Filler(entity, self._tally, partitioned=partitioned, left=left)
        self._backoff = self._new_backoff()
        self._position = 0

    def report(self) -> EntityReport:
        """What became of all messages since the last report."""
        report = self._tally.report()
        self._tally.clear()
        return report

    async def send(self, messages: Sequence[bytes]) -> None:
        """Send them, in this order. Returns when each is accepted somewhere, or stands in the report."""
        waiting = deque(enumerate(messages, self._position))
        self._position += len(messages)
        del messages  # whoever let go of them as well has them in memory only while they wait
        while waiting:
            before = len(waiting)
            if self._tally.error is not None:
                self._tally.abandoned += len(waiting)
                self._tally.untried += [message for _, message in waiting]
                self._let_go(waiting)
                return
            state = self._pair.board.view(self.entity)
            match route(state):
                case Route.PRIMARY:
                    await self._to_primary(waiting, state)
                case Route.PING_FIRST:
                    # One process asks; while another does, no batch waits: the primary is tried.
                    if not await self._pair.pinger.ping(self.entity):
                        await self._to_primary(waiting, state)
                case Route.BACKLOG:
                    await self._to_backlog(waiting)
            if len(waiting) < before:
                self._filler.progress()

    # The primary

    async def _to_primary(self, waiting: deque[Message], state: EntityState) -> None:
        """One attempt with one batch, and what follows from its outcome."""

        def failed(fault: Fault) -> None:
            if fault.kind is Kind.ENTITY_FAULT:
                self._record(SendFailed(state.epoch, str(fault)))

        batch, fault = await self._attempt(
            Side.PRIMARY,
            self.entity,
            waiting,
            state.exists or self._missing_is_down,
            doubtful=state.health is Health.SUSPECT,
            still=lambda: self._pair.board.view(self.entity).epoch == state.epoch,
            failed=failed,
        )
        if fault is None:
            self._tally.primary += len(batch.messages)
            self._tally.primary_bytes += self._let_go(batch.messages)
            if batch.messages:
                self._backoff = self._new_backoff()
            # While all is well, a success is no news, and the look before the batch was the only one.
            well = state.health is Health.HEALTHY and state.seen_healthy and not state.doubted
            if batch.messages and not well:
                self._record(SendSucceeded(state.epoch))
            return
        if fault.kind is Kind.BAD_MESSAGE:
            self._single_out(batch, fault, waiting, self._tally.rejected)
            return
        waiting.extendleft(reversed(batch.messages))
        match fault.kind:
            case Kind.ENTITY_FAULT:
                await self._pair.clock.sleep(self._pause())
            case Kind.THROTTLED:
                self._record(SendThrottled(state.epoch))
                await self._pair.clock.sleep(fault.wait)
            case Kind.MISCONFIGURED:
                self._misconfigured(self._pair.primary, self.entity, fault)
            case _:
                pass  # a stale link is gone; the next turn opens another, and a fault on that one counts

    def _pause(self) -> float:
        """Back off, but be there when the failover interval ends: the fault at that moment is the one that diverts."""
        state = self._pair.board.view(self.entity)
        if state.health is not Health.SUSPECT or state.since is None:
            return 0.0
        left = state.since + self._pair.failover_interval - self._pair.clock.now()
        return max(0.0, min(self._backoff.next(), left))

    def _single_out(self, batch: Batch, fault: Fault, waiting: deque[Message], where: list[Unsent]) -> None:
        """Some message of the batch is bad. Halve until it stands alone; where all are, say so of each."""
        if fault.split and len(batch.messages) > 1:
            waiting.extendleft(reversed(batch.messages))
            self._filler.halve(len(batch.messages))
            return
        where += [Unsent(position, message, str(fault)) for position, message in batch.messages]
        self._let_go(batch.messages)

    # The backlog

    async def _to_backlog(self, waiting: deque[Message]) -> None:
        """One batch to a backlog queue, to as many of them as it takes."""
        tried: set[int] = set()
        busy: set[int] = set()
        wait = 0.0
        while waiting and self._tally.error is None and route(self._pair.board.view(self.entity)) is Route.BACKLOG:
            choice = self._pair.board.choose_backlog(self.entity, tried=tried, busy=busy)
            if isinstance(choice, AllOut):
                self._overflow(waiting, choice)
                return
            if choice.busy:
                # All that are left have throttled us: wait as the last one asked. The primary may be back by then.
                await self._pair.clock.sleep(wait)
                return
            path = f"{self._pair.backlog_path}{choice.queue}"
            # A backlog queue that is not there is one that is out, never a reason to blame the message.
            batch, fault = await self._attempt(
                Side.SECONDARY,
                path,
                waiting,
                exists=True,
                still=partial(self._is_usable, choice.queue),
                failed=partial(self._take_out, choice.queue),
            )
            if fault is None and batch.messages:
                self._tally.backlog += len(batch.messages)
                self._let_go(batch.messages)
                return
            if fault is None:
                # It failed for somebody else while this lane waited for its turn: as good as tried.
                tried.add(choice.queue)
                continue
            if fault.kind is Kind.BAD_MESSAGE:
                # Its own entity has not judged it: what a backlog queue refuses, for its size say, may be good there.
                self._single_out(batch, fault, waiting, self._tally.overflow)
                return
            waiting.extendleft(reversed(batch.messages))
            match fault.kind:
                case Kind.ENTITY_FAULT:
                    tried.add(choice.queue)
                case Kind.THROTTLED:
                    busy.add(choice.queue)
                    wait = fault.wait
                case Kind.MISCONFIGURED:
                    self._misconfigured(self._pair.secondary, path, fault)
                case _:
                    pass  # a stale link, as above

    def _overflow(self, waiting: deque[Message], out: AllOut) -> None:
        named = [(f"{self._pair.backlog_path}{queue}", error) for queue, error in out.errors]
        self._tally.all_out = AllBacklogsOutError(namespace=self._pair.secondary, entity=self.entity, errors=named)
        reason = "all backlog queues are out"
        self._tally.overflow += [Unsent(position, message, reason) for position, message in waiting]
        self._let_go(waiting)
        waiting.clear()

    # Both

    async def _attempt(
        self,
        side: Side,
        path: str,
        waiting: deque[Message],
        exists: bool,
        *,
        doubtful: bool = False,
        still: Callable[[], bool],
        failed: Callable[[Fault], None],
    ) -> tuple[Batch, Fault | None]:
        """Take one batch off what waits and send it. The batch comes back with the fault, if there was one.

        An empty one without a fault: nothing was tried, as `still` said no when the link was to be had at last.
        `failed` hears of a fault before the next in line has its turn, so that not each has to find out by itself.
        """
        batch = Batch()
        phase, idle, link = Phase.OPEN, 0.0, None
        async with self._pair.links.turn(side, path) as turn:
            try:
                lent = await turn.link(doubtful=doubtful, still=still)
                if lent is None:
                    return batch, None
                link = lent.link
                batch = self._filler.fill(waiting, link.limits, wrapped=side is Side.SECONDARY)
                if not batch.messages:
                    return batch, None
                phase, idle = Phase.SEND, lent.idle
                self._tally.transfers += 1
                await link.send(batch.payload(), batch=len(batch.messages) > 1)
            except NO_OUTCOME:
                waiting.extendleft(reversed(batch.messages))
                raise
            except Exception as error:  # noqa: BLE001 - every failure is sorted, none is lost
                fault = sort(symptom_of(error, during=phase, link_idle=idle, seen_healthy=exists))
                failed(fault)
                if link is not None and fault.kind not in (Kind.THROTTLED, Kind.BAD_MESSAGE):
                    await self._pair.links.discard(side, path, link)
                if not batch.messages:
                    # The link did not open, so nothing was taken; for what is said of all of them, all are taken now.
                    batch = self._filler.all_of(waiting) if fault.kind is Kind.BAD_MESSAGE else batch
                return batch, fault
        return batch, None

    def _is_usable(self, queue: int) -> bool:
        return not self._pair.board.is_out(queue)

    def _take_out(self, queue: int, fault: Fault) -> None:
        if fault.kind is Kind.ENTITY_FAULT:
            self._pair.board.take_out(queue, str(fault))

    def _record(self, event: Event) -> None:
        change = self._pair.board.record(self.entity, event)
        if change is not None:
            self._tally.changes.append(change)

    def _misconfigured(self, namespace: str, entity: str, fault: Fault) -> None:
        self._tally.error = MisconfiguredSendError(
            namespace=namespace, entity=entity, claim=fault.claim or "Send", detail=fault.text
        )

    def _let_go(self, messages: Sequence[Message] | deque[Message]) -> int:
        """Their bytes need no memory any more; how many those are."""
        size = sum(map(len, map(_BYTES, messages)))
        self._left(size)
        return size

    def _new_backoff(self) -> Backoff:
        return Backoff(uniform=self._pair.rng.uniform)
