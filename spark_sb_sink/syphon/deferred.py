"""Deferred messages of one backlog queue: found by peeking, brought home by sequence number once their entity is back.

The queue itself is all that is needed to find them; what is remembered here only saves looks. Looking also shows which
other destinations a queue has messages for, while nothing that it has shown so far can move.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
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
LOOK_FOR_BACK = 600.0
"""Seconds between such looks for an entity that takes pings again."""
AGAIN_AFTER = (0.5, 15.0)
"""Seconds until what another syphon seems to have is looked at again, growing."""
TICK = 0.1

_LOG = logging.getLogger(__name__)
_UP = (Can.MOVE, Can.PROBE)


@dataclass
class _Sweep:
    """Once over the queue, over the ends of runs: how far it came, and what it has seen."""

    expected: dict[str, int]
    """What was expected when it began."""
    start: int = 0
    found: Counter[str] = field(default_factory=Counter)
    taken: int = 0


class Deferred:
    """Of one backlog queue."""

    def __init__(self, intake: Intake, shared: Shared, drain: "QueueDrain") -> None:
        self._intake = intake
        self._shared = shared
        self._drain = drain
        self._expected: dict[str, int] = {}
        """Entities that messages are believed to be deferred for, and how often that was learnt. The empty one is for
        messages that name none: they can always go, into the dead-letter queue."""
        self._sweep: _Sweep | None = None
        self._not_before = 0.0
        self._look_at = self._looked_at = 0.0
        self._others_at = 0.0
        self._others_from = 0
        self._wanted_others = False
        self._out: set[str] = set()
        """Entities that were down, and have taken no message since."""
        self._again = AGAIN_AFTER[0]
        self.busy = False

    def expect(self, path: str) -> None:
        """Messages for that entity are being deferred."""
        self._expected[path] = self._expected.get(path, 0) + 1

    def notice(self, peeked: Sequence[RawPeeked]) -> None:
        """Somebody has seen these in the queue: those that are deferred are for whoever looks first."""
        for each in peeked:
            if each.state == "deferred":
                path = path_of(each.payload) or ""
                if path:
                    self._drain.shown.add(path)
                if path not in self._expected:
                    self.expect(path)

    def look_for_others(self) -> None:
        """Nothing that the queue has shown can move: see whether it has something else."""
        self._wanted_others = True

    async def run(self) -> None:
        """Until cancelled: look when there is a reason to."""
        while True:
            await self._shared.receiving.wait()
            now = self._shared.now()
            self._see_who_is_back(now)
            if now < self._not_before:
                await self._shared.pair.clock.sleep(TICK)
            elif now >= self._look_at or self._any_up():
                await self._guarded(self._go_on(look=now >= self._look_at))
            elif self._wanted_others and now >= self._others_at:
                await self._guarded(self._look())
            else:
                await self._shared.pair.clock.sleep(TICK)

    def _see_who_is_back(self, now: float) -> None:
        """For an entity that is back there may be messages which another syphon, that is gone by now, put aside."""
        cans = self._drain.abilities()
        back = {path for path in self._out if cans.get(path) is Can.MOVE}
        if back:
            self._look_at = now
        elif any(cans.get(path) is Can.PROBE for path in self._out):  # and may go again in a moment
            self._look_at = min(self._look_at, self._looked_at + LOOK_FOR_BACK)
        self._out = (self._out - back).union(path for path, can in cans.items() if can is Can.NOT)

    def _any_up(self) -> bool:
        cans = self._drain.abilities()
        return any(not path or cans.get(path) in _UP for path in self._expected)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        self.busy = True
        try:
            await work
        except ClosedError:
            raise
        except Exception as error:  # noqa: BLE001 - an outage of the secondary is waited out
            _LOG.warning("looking for deferred messages in %s: %s", self._intake.queue, redact(str(error)))
            self._not_yet()
        finally:
            self.busy = False

    def _not_yet(self) -> None:
        self._not_before = self._shared.now() + self._again
        self._again = min(AGAIN_AFTER[1], self._again * 2)

    async def _throttled(self, seconds: float) -> None:
        """Wait as the service asks; where the run ends before that, the next one waits for the rest."""
        self._not_before = self._shared.now() + seconds
        while self._shared.receiving.is_set() and self._shared.now() < self._not_before:
            await self._shared.pair.clock.sleep(TICK)

    async def _page(self, start: int) -> list[RawPeeked] | None:
        """The next messages; none where the run has ended. The service may show fewer than it could, so only an empty
        page is the end."""
        while self._shared.receiving.is_set():
            try:
                return await self._intake.ask(lambda receiver: receiver.peek(start, PAGE))
            except RefusedRequestError as refusal:
                if not refusal.fault.wait:
                    raise
                await self._throttled(refusal.fault.wait)
        return None

    async def _look(self) -> None:
        """Learn for which entities there are messages that came since the last look, as far as the run allows."""
        while page := await self._page(self._others_from):
            self._show(page)
            self.notice(page)
        if page is not None:
            self._wanted_others = False
            self._others_at = self._shared.now() + self._shared.options.ping_interval

    def _show(self, page: Sequence[RawPeeked]) -> list[str]:
        """The entity of each of them, which the queue has shown now; empty for one that names none."""
        paths = [path_of(each.payload) or "" for each in page]
        self._drain.shown.update(path for path in paths if path)
        self._others_from = max(self._others_from, page[-1].sequence_number + 1)
        return paths

    async def _go_on(self, *, look: bool) -> None:
        """Over the queue from where the last run came to: fetch what is deferred for entities that are back.

        Ends with the run, and where none is back any more; a look, which is for what nobody told of, goes on then.
        """
        sweep = self._sweep = self._sweep or _Sweep(dict(self._expected))
        probed: Counter[str] = Counter()
        while look or self._any_up():
            page = await self._page(sweep.start)
            if page is None:
                break
            if not page:
                self._whole(sweep)
                break
            deferred = [
                (path, each.sequence_number)
                for path, each in zip(self._show(page), page, strict=True)
                if each.state == "deferred"
            ]
            probes = probed.total()
            wanted = self._wanted(deferred, probed)
            part = wanted[: await self._allowed()]
            plan = Halving(part)
            await self._fetch(plan)
            if plan.next() or (wanted and not part):  # the run has ended
                break
            sweep.start = (page[-1].sequence_number if part == wanted else part[-1]) + 1
            sweep.found.update(path for path, _ in deferred)
            sweep.taken += len(plan.numbers) - plan.skipped
            if probed.total() > probes:  # what became of them decides about the next page
                await self._settled()
        await self._settled()

    async def _allowed(self) -> int | None:
        """How many may be fetched, so that no more are than the rate lets go; none where the run has ended."""
        while (allowed := self._drain.allowed()) == 0 and self._shared.receiving.is_set():
            await self._shared.pair.clock.sleep(TICK)
        return allowed

    def _wanted(self, deferred: Sequence[tuple[str, int]], probed: Counter[str]) -> list[int]:
        cans = self._drain.abilities()
        wanted: list[int] = []
        for path, number in deferred:
            can = cans[path] if path else Can.MOVE
            if can is Can.PROBE and probed[path] < PROBE:
                probed[path] += 1
                wanted.append(number)
            elif can is Can.MOVE:
                wanted.append(number)
        return wanted

    def _whole(self, sweep: _Sweep) -> None:
        """The whole queue was seen: what it has nothing deferred for, and had not meanwhile, is done."""
        self._sweep = None
        self._looked_at = self._shared.now()
        self._look_at = self._looked_at + LOOK_EVERY
        for path in sweep.found:
            if path not in self._expected:
                self.expect(path)
        for path, times in sweep.expected.items():
            if not sweep.found[path] and self._expected.get(path) == times:
                del self._expected[path]
        if sweep.taken:
            self._again = AGAIN_AFTER[0]
        elif self._any_up():
            self._not_yet()

    async def _fetch(self, plan: Halving) -> None:
        """Lock them and hand them over, as far as the run allows."""
        while asked := plan.next():
            await self._drain.settler.fewer_than_deferred(IN_HAND)
            if not self._shared.receiving.is_set():
                return
            try:
                got = await self._intake.ask(lambda receiver, asked=asked: receiver.receive_deferred(asked))  # type: ignore[misc]
            except RefusedRequestError as refusal:
                if refusal.fault.wait:
                    await self._throttled(refusal.fault.wait)
                else:
                    plan.failed()
                continue
            plan.succeeded()
            if got:
                self._drain.learn_lock(got[0].payload)
            now_ms = self._drain.now_ms()
            items = [self._drain.item(each.payload, each.lock_token.bytes_le, now_ms) for each in got]
            self._drain.settler.hold(items)
            self._drain.dispatch(items)
            await asyncio.sleep(0)

    async def _settled(self) -> None:
        """Until all that was fetched is settled: the next look would take it for deferred."""
        await self._drain.settler.fewer_than_deferred(1)
