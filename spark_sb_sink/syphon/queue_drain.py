"""One backlog queue: receive, restore, send, settle; and what to do while its destinations are down.

Runs as tasks in the factory's loop, from run to run. What it knows of the queue can be found again by looking at it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from spark_sb_sink.envelope import TtlPolicy
from spark_sb_sink.errors import ClosedError, redact
from spark_sb_sink.options import Ttl
from spark_sb_sink.syphon.deferred import Deferred
from spark_sb_sink.syphon.planning import Can, Do, ability, appetite, decide, fitting
from spark_sb_sink.syphon.receive import Intake
from spark_sb_sink.syphon.restore import Item, Unmovable, locked_until, refused, restored
from spark_sb_sink.syphon.send import Lane, Outlets
from spark_sb_sink.syphon.settle import Settler
from spark_sb_sink.syphon.shared import Shared
from spark_sb_sink.wire import COMPLETE, DEFER, RELEASE, Outcome, RawDelivery, RawReceiver, dead_letter

WINDOW = 6000
"""Messages of one queue in hand at the same time."""
LINGER = 5.0
"""Seconds that polls, and messages which came between two runs, wait for the next one."""
LOOK_EVERY = 0.1
"""Seconds between looks at the board while nothing can move; they cost no operation."""
LOCK_DURATION = 60.0
"""Seconds for which a backlog queue locks a message, as pairing makes it."""
CANCEL_AGAIN = 3.0
"""Seconds after which what was cancelled and goes on is cancelled again; longer than a link takes to close."""
_AT_ONCE = 200
"""Messages that are restored before others have their turn in the loop."""

_LOG = logging.getLogger(__name__)


async def end(tasks: Iterable["asyncio.Task[Any]"], again: float = CANCEL_AGAIN) -> None:
    """Cancel tasks and wait for their end. Again and again: see `wire.deadline` for why one may be forgotten."""
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=again)


class QueueDrain:
    """Empties one backlog queue while a run is on."""

    def __init__(self, queue: str, shared: Shared, room: int) -> None:
        """`room`: bytes of messages in hand."""
        self.queue = queue
        self._shared = shared
        self._room = room
        self._average = 64 * 1024.0
        self._ttl: TtlPolicy = "deduct" if shared.options.ttl is Ttl.DEDUCT else "full"
        self.intake = Intake(queue, shared)
        self.settler = Settler(self.intake, shared)
        self.deferred = Deferred(self.intake, shared, self)
        self.shown: set[str] = set()
        self.busy = False
        """Between a receive that brought something and the lanes having it."""
        self._lanes: dict[str, Lane] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._polling: asyncio.Task[list[RawDelivery]] | None = None
        self._ahead = 0.0
        """Seconds that this machine's clock seems to be ahead of the service's."""
        shared.queues.append(self._due)

    def start(self) -> None:
        """What does not run already."""
        loop = asyncio.get_running_loop()
        for work in (self._serve, self.settler.renew, self.deferred.run):
            known = self._tasks.get(work.__name__)
            if known is None or known.done():
                self._tasks[work.__name__] = loop.create_task(self._kept_up(work))

    async def stop_receiving(self) -> None:
        """End a poll that is under way, before messages are given back: its credit would bring them here again."""
        if self._polling is not None:
            await end([self._polling])
        await self.intake.pause()

    async def give_up(self) -> None:
        """End the poll and detach, so that no credit stays behind; what it brought meanwhile goes back."""
        await end([task for name, task in self._tasks.items() if name == self._serve.__name__])
        await self.intake.close()

    async def _kept_up(self, work: Callable[[], Awaitable[None]]) -> None:
        """What nobody thought of is logged, and tried again; only the end of the pair ends it."""
        while True:
            try:
                await work()
            except ClosedError:
                return
            except Exception as error:  # noqa: BLE001 - a queue must not go unserved while the process lives
                _LOG.error("backlog queue %s: %s; going on", self.queue, redact(repr(error)))
                await self._shared.pair.clock.sleep(1.0)

    @property
    def at_rest(self) -> bool:
        """Nothing of it is in hand, and nothing comes but what a poll brings."""
        idle = not self.intake.owed if self._polling is None else not self.intake.buffered
        return idle and not self.busy and not self.settler.held and not self.deferred.busy

    async def close(self) -> None:
        await end(self._tasks.values())
        await self.intake.close()
        await self.settler.finish()

    # Receive

    async def _serve(self) -> None:
        while True:
            await self._room_in_a_run()
            room = WINDOW - len(self.settler.held)
            most = appetite(
                self.abilities().values(), fitting(room, self._room - self.settler.held_bytes, self._average)
            )
            if not most:
                await self._wait_for_one_that_can()
                continue
            allowed = self.allowed()
            if allowed == 0:
                await self.intake.pause()
                await self._shared.pair.clock.sleep(LOOK_EVERY)
                continue
            most = most if allowed is None else min(most, allowed)
            if deliveries := await self._poll(most):
                await self._take_up(deliveries)

    async def _poll(self, most: int) -> list[RawDelivery]:
        """In a task of its own, as it is ended alone."""
        receive = self.intake.receive(most, self._room - self.settler.held_bytes)
        self._polling = asyncio.get_running_loop().create_task(receive)
        try:
            return await self._polling
        except asyncio.CancelledError:
            serving = asyncio.current_task()
            if serving is None or serving.cancelling():
                raise
            return []
        finally:
            self._polling = None

    async def _room_in_a_run(self) -> None:
        """Room may come by what the end of a run gives back: that is for the next one. Meanwhile nothing waits locked
        in the receiver, where nobody renews it."""
        window = WINDOW * 3 // 4
        while not self._shared.receiving.is_set() or self.settler.has(window, self._room):
            await self.intake.pause()
            await self._shared.receiving.wait()
            await self.settler.fewer_than(window, self._room)

    def allowed(self) -> int | None:
        """How many more to take in hand, so that no more is received than the rate lets go; None without a rate."""
        return self._shared.allowed(self._due())

    def _due(self) -> int:
        return sum(self._waiting(path) for path, can in self.abilities().items() if can is Can.MOVE)

    async def _wait_for_one_that_can(self) -> None:
        """Nothing moves: ask for nothing, and look no further than at the board. Pings go on by themselves."""
        if all(can is Can.NOT for can in self.abilities().values()):
            await self.intake.pause()
        while self._shared.receiving.is_set() and not appetite(self.abilities().values(), 1):
            self.deferred.look_for_others()
            await self._shared.pair.clock.sleep(LOOK_EVERY)

    async def _take_up(self, deliveries: Sequence[RawDelivery]) -> None:
        brought_by = self.intake.receiver
        self.learn_lock(deliveries[0].payload)
        await self._next_run()
        self.busy = True
        try:
            self._average = await self._restore(deliveries, brought_by) / len(deliveries)
        finally:
            self.busy = False

    def learn_lock(self, payload: bytes) -> None:
        """From a message that was locked a moment ago: how long its lock lasts, and what the service's clock says."""
        until = locked_until(payload)
        if until is not None:
            left = until - self._shared.wall_clock()
            self.settler.lock_lasts(left)
            # The service's time is that less the queue's lock duration. In doubt a message lives.
            self._ahead = max(0.0, LOCK_DURATION - left)

    async def _restore(self, deliveries: Sequence[RawDelivery], brought_by: RawReceiver | None) -> int:
        """In pieces, as others want their turn in the loop; how many bytes they were."""
        size = 0
        for start in range(0, len(deliveries), _AT_ONCE):
            now_ms = self.now_ms()
            items: list[Item] = []
            for delivery in deliveries[start : start + _AT_ONCE]:
                item = self.item(delivery.payload, delivery.tag, now_ms)
                item.delivery, item.brought_by = delivery, brought_by
                size += item.size
                items.append(item)
            self.settler.hold(items)
            self.dispatch(items)
            await asyncio.sleep(0)
        return size

    async def _next_run(self) -> None:
        """What came between two runs waits a little for the next; it is given back then, as nothing may be sent."""
        until = self._shared.now() + LINGER
        while not self._shared.sending.is_set() and self._shared.now() < until:
            await self._shared.pair.clock.sleep(LOOK_EVERY / 2)

    # Restore

    def now_ms(self) -> int:
        """Milliseconds since 1970, by the service's clock where ours is ahead of it."""
        return int((self._shared.wall_clock() - self._ahead) * 1000)

    def item(self, payload: bytes, tag: bytes, now_ms: int) -> Item:
        """The delivery as a message for its entity; one that can never be moved has the reason instead."""
        found = restored(payload, self._ttl, now_ms)
        if isinstance(found, Unmovable):
            return Item(tag, found.path, b"", len(payload), found.enqueued_ms, unmovable=found)
        path, message, enqueued_ms = found
        return Item(tag, path, message, len(payload), enqueued_ms)

    def dispatch(self, items: Iterable[Item]) -> None:
        """To the lanes of their entities, aside, or back."""
        by_path: dict[str, list[Item]] = {}
        for item in items:
            if item.unmovable is not None:
                self._never(item, item.unmovable)
            else:
                by_path.setdefault(item.path, []).append(item)
        if not by_path:
            return
        self.shown.update(by_path)
        cans = self.abilities()
        for path, group in by_path.items():
            if not self._shared.sending.is_set():
                self._back(group)
            elif decide(cans[path], cans.values()) is Do.SEND:
                self._lane(path).put(group)
            else:
                self._stranded(group)

    def abilities(self) -> dict[str, Can]:
        """What each destination that this queue has shown can take now."""
        shared = self._shared
        return {
            path: ability(
                shared.pair.board.view(path).health,
                self._waiting(path),
                refused=shared.refuses(path),
                doubtful=path in shared.refused,
                busy=shared.busy(path) > 0,
            )
            for path in self.shown
        }

    def _waiting(self, path: str) -> int:
        lane = self._lanes.get(path)
        return lane.waiting if lane is not None else 0

    # Send

    def _lane(self, path: str) -> Lane:
        if path not in self._lanes:
            outlets = Outlets(
                moved=lambda items: self.settler.settle_soon(items, COMPLETE),
                bad=lambda item, reason: self._never(item, refused(path, reason)),
                stranded=self._stranded,
                lost=self.settler.drop_lost,
            )
            self._lanes[path] = Lane(path, self._shared, outlets)
        return self._lanes[path]

    # Settle

    def _stranded(self, items: Sequence[Item]) -> None:
        """They cannot be sent now: aside if others can pass then, else back to where they were."""
        others = [can for path, can in self.abilities().items() if path != items[0].path]
        over = self._shared.ended or not self._shared.sending.is_set()
        if over or decide(Can.NOT, others) is Do.RELEASE:
            self._back(items)
            return
        path = items[0].path
        self.deferred.expect(path)
        # And again once they are: a look in between has not seen them.
        self.settler.settle_soon(items, DEFER, then=lambda: self.deferred.expect(path))

    def _back(self, items: Sequence[Item]) -> None:
        self.settler.settle_soon([i for i in items if i.deferred], DEFER)
        self.settler.settle_soon([i for i in items if not i.deferred], RELEASE, first=self.stop_receiving)

    def _never(self, item: Item, why: Unmovable) -> None:
        outcome: Outcome = dead_letter(why.reason, why.description)
        _LOG.warning("a message of %s is dead-lettered: %s: %s", self.queue, why.reason, why.description)
        self.settler.settle_soon([item], outcome)
