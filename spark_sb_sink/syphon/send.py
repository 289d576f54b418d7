"""The third step: the messages of one backlog queue for one entity of the primary, in order of arrival.

Tries as the paired sender does, with the same states on the same board, but never sends to the backlog: what cannot go
out is handed back to the queue that it came from.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spark_sb_sink.errors import ClosedError, MisconfiguredSendError, redact
from spark_sb_sink.failover import EntityState, Event, Health, Route, SendFailed, SendSucceeded, SendThrottled, route
from spark_sb_sink.faults import Fault, Kind, Phase, sort, symptom_of
from spark_sb_sink.filling import Batch, Filler, Message
from spark_sb_sink.reports import Tally
from spark_sb_sink.syphon.planning import PROBE
from spark_sb_sink.syphon.restore import Item
from spark_sb_sink.syphon.shared import Refusal, Shared
from spark_sb_sink.timing import Backoff
from spark_sb_sink.transport import Side

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outlets:
    """Who is told what became of messages."""

    moved: Callable[[Sequence[Item]], None]
    bad: Callable[[Item, str], None]
    stranded: Callable[[Sequence[Item]], None]
    """The entity takes none just now, or the run is over."""
    lost: Callable[[Sequence[Item]], None]


class Lane:
    """Works while something waits, and ends with it."""

    def __init__(self, path: str, shared: Shared, outlets: Outlets) -> None:
        self.path = path
        self._shared = shared
        self._pair = shared.pair
        self._out = outlets
        self._tally = Tally(path)
        self._filler = Filler(path, self._tally, partitioned=path in shared.options.partitioned, left=lambda size: None)
        self._waiting: deque[Message] = deque()
        self._items: dict[int, Item] = {}
        self._next = 0
        self._backoff = Backoff(uniform=self._pair.rng.uniform)
        self._task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """How many are not sent, those under way among them."""
        return len(self._items)

    def put(self, items: Sequence[Item]) -> None:
        for item in items:
            self._waiting.append((self._next, item.message))
            self._items[self._next] = item
            self._next += 1
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._work())

    async def _work(self) -> None:
        try:
            while self._waiting:
                await self._turn()
        except ClosedError:
            pass  # the pair is at its end; the locks go with the links
        except Exception as error:  # noqa: BLE001 - no outcome of a send, those are sorted; the board is lost, say
            _LOG.error("messages for %s go back to their backlog queue: %s", self.path, redact(repr(error)))
        finally:
            self._strand()

    async def _turn(self) -> None:
        self._drop_lost()
        state = self._pair.board.view(self.path)
        where = route(state)
        if where is Route.BACKLOG or self._shared.refuses(self.path) or not self._shared.sending.is_set():
            self._strand()
        elif wait := self._shared.busy(self.path):
            await self._shared.pause(wait)
        elif where is Route.PRIMARY or not await self._pair.pinger.ping(self.path):
            await self._send(state)

    async def _send(self, state: EntityState) -> None:
        """One attempt with one batch, and what follows from its outcome."""
        doubtful = state.health is Health.PROBATION or self.path in self._shared.refused
        most = PROBE if doubtful else len(self._waiting)
        now = self._shared.now()
        allowed = self._shared.bucket.take(now, min(most, len(self._waiting)))
        if not allowed:
            if self._waiting:
                await self._shared.pause(self._shared.bucket.wait(now))
            return
        portion = deque(self._waiting.popleft() for _ in range(allowed))
        try:
            batch, fault = await self._attempt(portion, doubtful=state.health is not Health.HEALTHY)
        finally:
            self._shared.bucket.give_back(len(portion))
            self._waiting.extendleft(reversed(portion))
        self._put_aside()
        if fault is None:
            self._accepted(batch, state)
        else:
            await self._failed(batch, fault, state)

    def _accepted(self, batch: Batch, state: EntityState) -> None:
        if not batch.messages:
            return
        self._out.moved(self._taken(batch.messages))
        self._shared.refused.pop(self.path, None)
        self._filler.progress()
        self._backoff = Backoff(uniform=self._pair.rng.uniform)
        if state.health is not Health.HEALTHY or not state.seen_healthy or state.doubted:
            self._record(SendSucceeded(state.epoch))

    async def _failed(self, batch: Batch, fault: Fault, state: EntityState) -> None:
        if fault.kind is Kind.BAD_MESSAGE and batch.messages:
            if fault.split and len(batch.messages) > 1:
                self._filler.halve(len(batch.messages))
                self._waiting.extendleft(reversed(batch.messages))
                return
            for item in self._taken(batch.messages):
                self._out.bad(item, str(fault))
            return
        self._shared.bucket.give_back(len(batch.messages))
        self._waiting.extendleft(reversed(batch.messages))
        match fault.kind:
            case Kind.THROTTLED:
                self._record(SendThrottled(state.epoch))
                self._shared.busy_until[self.path] = self._shared.now() + fault.wait
            case Kind.MISCONFIGURED if fault.claim_missing:
                error = MisconfiguredSendError(
                    namespace=self._pair.primary, entity=self.path, claim=fault.claim or "Send", detail=fault.text
                )
                until = self._shared.now() + self._shared.options.ping_interval
                self._shared.refused[self.path] = Refusal(error, until)
            case Kind.MISCONFIGURED:
                await self._shared.fault(Side.PRIMARY, self.path, fault)
                raise ClosedError(f"The link to {self.path}")
            case Kind.STALE_LINK:
                pass  # it is gone; the next turn opens another, and a fault on that one counts
            case _:
                # A link that does not open says nothing of the messages, whatever it says.
                self._record(SendFailed(state.epoch, str(fault)))
                await self._shared.pause(self._pause())

    async def _attempt(self, portion: deque[Message], *, doubtful: bool) -> tuple[Batch, Fault | None]:
        batch = Batch()
        phase, idle, link = Phase.OPEN, 0.0, None
        links = self._pair.links
        try:
            async with links.use(Side.PRIMARY, self.path, doubtful=doubtful) as lent:
                link = lent.link
                batch = self._filler.fill(portion, link.limits, wrapped=False)
                if batch.messages:
                    phase, idle = Phase.SEND, lent.idle
                    await link.send(batch.payload(), batch=len(batch.messages) > 1)
        except ClosedError:
            self._waiting.extendleft(reversed(batch.messages))
            raise
        except Exception as error:  # noqa: BLE001 - every failure is sorted, none is lost
            # An entity that was deleted counts as down, also for a syphon that never saw it: messages wait for it.
            fault = sort(symptom_of(error, during=phase, link_idle=idle, seen_healthy=True))
            if link is not None and fault.kind not in (Kind.THROTTLED, Kind.BAD_MESSAGE):
                await links.discard(Side.PRIMARY, self.path, link)
            return batch, fault
        return batch, None

    def _pause(self) -> float:
        """Back off, but be there when the failover interval ends."""
        state = self._pair.board.view(self.path)
        if state.health is not Health.SUSPECT or state.since is None:
            return 0.0
        left = state.since + self._pair.failover_interval - self._shared.now()
        return max(0.0, min(self._backoff.next(), left))

    def _put_aside(self) -> None:
        """What no link to the entity takes, too large say."""
        aside, self._tally.rejected = self._tally.rejected, []
        for unsent in aside:
            self._out.bad(self._items.pop(unsent.position), unsent.reason)

    def _drop_lost(self) -> None:
        lost = [position for position, item in self._items.items() if item.lost]
        if lost:
            gone = [self._items.pop(position) for position in lost]
            self._waiting = deque(message for message in self._waiting if message[0] in self._items)
            self._out.lost(gone)

    def _strand(self) -> None:
        if self._waiting:
            stranded = self._taken(self._waiting)
            self._waiting.clear()
            self._out.stranded(stranded)

    def _taken(self, messages: Sequence[Message] | deque[Message]) -> list[Item]:
        return [self._items.pop(position) for position, _ in messages]

    def _record(self, event: Event) -> None:
        self._pair.board.record(self.path, event)
