"""The fourth step: tells the backlog queue what became of each message, in ranges, and keeps locks alive until then.

What came over a link that is gone, and what was deferred, is settled by lock token. The broker alone says whether a
lock still holds; the local clock only says when to ask.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from spark_sb_sink.errors import redact
from spark_sb_sink.syphon.planning import Halving
from spark_sb_sink.syphon.receive import Intake, RefusedRequestError
from spark_sb_sink.syphon.restore import Item
from spark_sb_sink.syphon.shared import Shared
from spark_sb_sink.timing import Backoff
from spark_sb_sink.wire import COMPLETE, DEFER, RELEASE, Outcome, RawReceiver, Settled, SettleResult

AT_ONCE = 200
"""Lock tokens in one request."""
RENEW_AFTER = 15.0
"""Seconds after which a lock is renewed; backlog queues are made with locks of a minute."""
RENEW_AFTER_AT_LEAST = 2.0

_COUNTS = {COMPLETE: "moved", DEFER: "deferred"}
_LOG = logging.getLogger(__name__)


class Settler:
    """Of one backlog queue. `held` are the messages that are locked here and not settled."""

    def __init__(self, intake: Intake, shared: Shared) -> None:
        self._intake = intake
        self._shared = shared
        self.held: set[Item] = set()
        self.held_bytes = 0
        self._held_deferred = 0
        self.renew_after = RENEW_AFTER
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()

    def hold(self, items: Iterable[Item]) -> None:
        now = self._shared.now()
        for item in items:
            item.since = now
            self.held.add(item)
            self.held_bytes += item.size
            self._held_deferred += item.deferred

    def lock_lasts(self, seconds: float) -> None:
        """How long a lock seems to last. A guess, as two clocks are compared: it only makes us renew sooner."""
        self.renew_after = min(RENEW_AFTER, max(RENEW_AFTER_AT_LEAST, seconds / 3))

    def settle_soon(
        self,
        items: Sequence[Item],
        outcome: Outcome,
        *,
        first: Callable[[], Awaitable[None]] | None = None,
        then: Callable[[], None] | None = None,
    ) -> None:
        """Settle while the next messages are already on their way; with what is to be done first, and then."""
        if items:
            task = asyncio.get_running_loop().create_task(self._settle(items, outcome, first, then))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _settle(
        self,
        items: Sequence[Item],
        outcome: Outcome,
        first: Callable[[], Awaitable[None]] | None,
        then: Callable[[], None] | None,
    ) -> None:
        try:
            if first is not None:
                await first()
        finally:
            await self.settle(items, outcome)
        if then is not None:
            then()

    async def finish(self) -> None:
        """Once the link is closed: until what was being settled has an outcome, so that the receipts tell of it."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._shared.options.send_timeout)

    async def settle(self, items: Sequence[Item], outcome: Outcome) -> None:
        try:
            for item, answer in await self._answers(items, outcome):
                self._note(item, outcome, answer)
        finally:
            for item in items:
                self._let_go(item)

    def _let_go(self, item: Item) -> None:
        if item in self.held:
            self.held.discard(item)
            self.held_bytes -= item.size
            self._held_deferred -= item.deferred
            self._changed.set()

    def _note(self, item: Item, outcome: Outcome, answer: Settled) -> None:
        if answer is Settled.LOCK_LOST:
            what = "lost_locks"
        elif outcome == RELEASE or (outcome == DEFER and item.deferred):
            return  # as it was before
        elif answer is Settled.UNKNOWN:
            what = "unconfirmed"
        else:
            what = _COUNTS.get(outcome, "dead_lettered")
        self._shared.ledger.note(self._intake.queue, item.path, what, item.enqueued_ms, item.size)

    async def _answers(self, items: Sequence[Item], outcome: Outcome) -> list[tuple[Item, Settled]]:
        answers: list[tuple[Item, Settled]] = []
        asked: set[Item] = set()
        """Those whose settlement may have been applied already, unheard: then their lock is gone by that."""
        by_token: list[Item] = []
        linked: list[Item] = []
        for item in items:
            alive = item.brought_by is not None and not item.brought_by.broken
            (linked if item.delivery is not None and alive else by_token).append(item)
        # A delivery's id is good for the receiver that brought it, and names another message on the next one.
        for receiver in dict.fromkeys(item.brought_by for item in linked):
            mine = [(item, item.delivery) for item in linked if item.brought_by is receiver and item.delivery]
            results: Mapping[int, SettleResult] = {}
            try:
                if receiver is not None:
                    results = await receiver.settle([delivery for _, delivery in mine], outcome)
            except Exception as error:  # noqa: BLE001 - closed meanwhile, no token to be had: by token then
                _LOG.debug("settling over the link to %s: %s", self._intake.queue, redact(repr(error)))
            for item, delivery in mine:
                result = results.get(delivery.delivery_id)
                if result is None or result.settled is Settled.UNKNOWN:
                    by_token.append(item)
                    asked.add(item)
                else:
                    answers.append((item, result.settled))
        # By token there is no release: what came over a link that is gone becomes free when its lock runs out.
        if outcome == RELEASE:
            outcome = DEFER
            by_token = [item for item in by_token if item.deferred]
        for start in range(0, len(by_token), AT_ONCE):
            portion = by_token[start : start + AT_ONCE]
            found: dict[Item, Settled] = {}
            try:
                await self._by_token(portion, outcome, asked, found)
            except Exception as error:  # noqa: BLE001 - the locks run out, and whoever gets them then settles them
                _LOG.warning("messages of %s not settled: %s", self._intake.queue, redact(repr(error)))
            answers += [(item, found.get(item, Settled.UNKNOWN)) for item in portion]
        return answers

    async def _by_token(
        self, items: Sequence[Item], outcome: Outcome, asked: set[Item], found: dict[Item, Settled]
    ) -> None:
        """A request fails as a whole for one lock that is lost: halve until that one stands alone, while some are not.

        One that is refused for another reason is made again, until the time for a settlement is up.
        """
        backoff = Backoff()
        until = self._shared.now() + self._shared.options.send_timeout
        plan = Halving(range(len(items)))
        while numbers := plan.next():
            part = [items[number] for number in numbers]
            tokens = [item.token for item in part]
            tries = 0

            async def settle(receiver: RawReceiver) -> None:
                nonlocal tries
                tries += 1
                await receiver.settle_deferred(tokens, outcome)  # noqa: B023 - it is over before the next turn

            try:
                await self._intake.ask(settle)
            except RefusedRequestError as refusal:
                if tries > 1 or not refusal.fault.lock_lost:
                    asked.update(part)
                if refusal.fault.lock_lost:
                    plan.failed()
                    if len(part) == 1:
                        found[part[0]] = Settled.UNKNOWN if part[0] in asked else Settled.LOCK_LOST
                    continue
                if not refusal.fault.wait and self._shared.now() >= until:
                    raise
                await self._shared.pair.clock.sleep(refusal.fault.wait or backoff.next())
            else:
                plan.succeeded()
                found.update(dict.fromkeys(part, Settled.ACCEPTED))

    async def renew(self) -> None:
        """Until cancelled: renew the locks of what is held for long."""
        while True:
            await self._shared.pair.clock.sleep(self.renew_after / 4)
            now = self._shared.now()
            due = [item for item in self.held if not item.lost and now - item.since >= self.renew_after]
            for start in range(0, len(due), AT_ONCE):
                try:
                    await self._renew(due[start : start + AT_ONCE])
                except Exception as error:  # noqa: BLE001 - the locks may hold all the same; settling tells
                    _LOG.warning("locks of %s not renewed: %s", self._intake.queue, redact(repr(error)))

    async def _renew(self, items: Sequence[Item]) -> None:
        plan = Halving(range(len(items)))
        left = set(items)
        while numbers := plan.next():
            part = [items[number] for number in numbers if items[number] in self.held]
            tokens = [item.token for item in part]
            try:
                await self._intake.ask(lambda receiver, tokens=tokens: receiver.renew_locks(tokens))  # type: ignore[misc]
            except RefusedRequestError as refusal:
                if not refusal.fault.lock_lost:
                    return  # the locks hold all the same, and the next look asks again
                plan.failed()
                continue
            plan.succeeded()
            left.difference_update(items[number] for number in numbers)
            now = self._shared.now()
            for item in part:
                item.since = now
        # Settled a moment ago, or lost, alone or one of many: then it is not sent any more, for somebody else may have
        # it. What is not lost in truth comes again once its lock is over.
        for item in left:
            item.lost = item in self.held

    def drop_lost(self, items: Iterable[Item]) -> None:
        """Those whose lock is lost before they were sent: they are somebody else's."""
        for item in items:
            self._note(item, COMPLETE, Settled.LOCK_LOST)
            self._let_go(item)

    def has(self, count: int, held_bytes: int) -> bool:
        """Whether so many are held."""
        return len(self.held) >= count or self.held_bytes >= held_bytes

    async def fewer_than(self, count: int, held_bytes: int) -> None:
        """Wait until fewer are held."""
        while self.has(count, held_bytes):
            self._changed.clear()
            await self._changed.wait()

    async def fewer_than_deferred(self, count: int) -> None:
        """Wait until fewer are held of those that came by their sequence number."""
        while self._held_deferred >= count:
            self._changed.clear()
            await self._changed.wait()
