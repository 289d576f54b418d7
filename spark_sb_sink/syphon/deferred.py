"""Deferred messages of one backlog queue: found by peeking, brought home by sequence number once their entity is back.

The queue itself is all that is needed to find them; what is remembered here only saves looks. Looking also shows which
other destinations a queue has messages for, while nothing that it has shown so far can move.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from spark_sb_sink.errors import ClosedError, redact
from spark_sb_sink.syphon.planning import PROBE, Can, Halving
from spark_sb_sink.syphon.receive import Intake, RefusedRequestError
from spark_sb_sink.syphon.restore import path_of
from spark_sb_sink.syphon.shared import Shared
from spark_sb_sink.wire import RawPeeked

if TYPE_CHECKING:
    from spark_sb_sink.syphon.queue_drain import QueueDrain

PAGE = 250
"""The service shows no more with one peek."""
IN_HAND = 1000
"""Deferred messages that are fetched before those under way are settled."""
LOOK_EVERY = 3600.0
"""Seconds between looks at a queue in which nothing is known to be deferred: another syphon may have died."""
AGAIN_AFTER = (0.5, 15.0)
"""Seconds until what another syphon seems to have is looked at again, growing."""
TICK = 0.1

_LOG = logging.getLogger(__name__)
_UP = (Can.MOVE, Can.PROBE)


class Deferred:
    """Of one backlog queue."""

    def __init__(self, intake: Intake, shared: Shared, drain: "QueueDrain") -> None:
        self._intake = intake
        self._shared = shared
        self._drain = drain
        self._expected: dict[str, int] = {}
        """Entities that messages are believed to be deferred for, and how often that was learnt."""
        self._not_before = 0.0
        self._look_at = 0.0
        self._others_at = 0.0
        self._others_from = 0
        self._wanted_others = False
        self._again = AGAIN_AFTER[0]
        self.busy = False

    def expect(self, path: str) -> None:
        """Messages for that entity are being deferred."""
        self._expected[path] = self._expected.get(path, 0) + 1

    def look_for_others(self) -> None:
        """Nothing that the queue has shown can move: see whether it has something else."""
        self._wanted_others = True

    async def run(self) -> None:
        """Until cancelled: look when there is a reason to."""
        while True:
            await self._shared.receiving.wait()
            now = self._shared.now()
            cans = self._drain.abilities()
            if now < self._not_before:
                await self._shared.pair.clock.sleep(TICK)
            elif now >= self._look_at:
                self._look_at = now + LOOK_EVERY
                await self._guarded(self._look(0))
            elif any(cans.get(path) in _UP for path in self._expected):
                await self._guarded(self._bring_home())
            elif self._wanted_others and now >= self._others_at:
                self._wanted_others = False
                self._others_at = now + self._shared.options.ping_interval
                await self._guarded(self._look(self._others_from))
            else:
                await self._shared.pair.clock.sleep(TICK)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        self.busy = True
        try:
            await work
        except ClosedError:
            raise
        except Exception as error:  # noqa: BLE001 - an outage of the secondary is waited out
            _LOG.warning("looking for deferred messages in %s: %s", self._intake.queue, redact(str(error)))
            self._not_yet()
            self._look_at = min(self._look_at, self._not_before)
        finally:
            self.busy = False

    def _not_yet(self) -> None:
        self._not_before = self._shared.now() + self._again
        self._again = min(AGAIN_AFTER[1], self._again * 2)

    async def _page(self, start: int) -> list[RawPeeked]:
        """The next messages; the service may show fewer than it could, so only an empty page is the end."""
        while True:
            try:
                return await self._intake.ask(lambda receiver: receiver.peek(start, PAGE))
            except RefusedRequestError as refusal:
                if not refusal.fault.wait:
                    raise
                await self._shared.pause(refusal.fault.wait)

    async def _look(self, start: int) -> None:
        """Learn for which entities there are messages, and for which of them deferred ones."""
        while self._shared.receiving.is_set() and (page := await self._page(start)):
            start = page[-1].sequence_number + 1
            for peeked in page:
                path = path_of(peeked.payload)
                if path is None:
                    continue
                self._drain.shown.add(path)
                if peeked.state == "deferred" and path not in self._expected:
                    self.expect(path)
            self._others_from = start

    async def _bring_home(self) -> None:
        """Once over the queue: fetch what is deferred for entities that are back."""
        before = dict(self._expected)
        found: dict[str, int] = defaultdict(int)
        start, skipped, taken = 0, 0, 0
        while self._shared.receiving.is_set() and (page := await self._page(start)):
            start = page[-1].sequence_number + 1
            cans = self._drain.abilities()
            wanted: list[int] = []
            for peeked in page:
                path = path_of(peeked.payload) if peeked.state == "deferred" else None
                if path is None:
                    continue
                self._drain.shown.add(path)
                found[path] += 1
                can = cans.get(path, Can.MOVE)
                if can is Can.MOVE or (can is Can.PROBE and found[path] <= PROBE):
                    wanted.append(peeked.sequence_number)
            missed = await self._fetch(wanted)
            skipped += missed
            taken += len(wanted) - missed
        else:
            if self._shared.receiving.is_set():
                self._forget(before, found)
        await self._settled()
        if taken:
            self._again = AGAIN_AFTER[0]
        elif self._expected:
            self._not_yet()

    def _forget(self, before: dict[str, int], found: dict[str, int]) -> None:
        """The whole queue was seen: what it has nothing deferred for, and had not meanwhile, is done."""
        for path, times in before.items():
            if not found.get(path) and self._expected.get(path) == times:
                del self._expected[path]

    async def _fetch(self, numbers: list[int]) -> int:
        """Lock them and hand them over; how many could not be had."""
        plan = Halving(numbers)
        while asked := plan.next():
            await self._drain.settler.fewer_than_deferred(IN_HAND)
            if not self._shared.sending.is_set():
                return len(numbers)
            try:
                got = await self._intake.ask(lambda receiver, asked=asked: receiver.receive_deferred(asked))  # type: ignore[misc]
            except RefusedRequestError as refusal:
                if refusal.fault.wait:
                    await self._shared.pause(refusal.fault.wait)
                else:
                    plan.failed()
                continue
            plan.succeeded()
            now_ms = int(self._shared.wall_clock() * 1000)
            items = [self._drain.item(each.payload, each.lock_token, now_ms) for each in got]
            self._drain.settler.hold(items)
            self._drain.dispatch(items)
            await asyncio.sleep(0)
        return plan.skipped

    async def _settled(self) -> None:
        """Until all that was fetched is settled: the next look would take it for deferred."""
        await self._drain.settler.fewer_than_deferred(1)
