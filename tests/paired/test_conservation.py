"""Whatever happens to a lane, each message is acknowledged on exactly one route, and the report says on which.

The real sender, filler, links, pings and board over a network in memory that keeps its own account of what it has
acknowledged. To show that the machine would notice, it is also run over senders with a bug planted in them.
"""

import asyncio
import tempfile
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from azure.servicebus._pyamqp.error import MessageException
from azure.servicebus.exceptions import (
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusServerBusyError,
)
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from spark_sb_sink.amqp import encode_message
from spark_sb_sink.envelope import restore
from spark_sb_sink.faults import Kind
from spark_sb_sink.sender import PairedSender
from spark_sb_sink.transport import LinkLimits, MemoryLink, MemoryTransport, Side, members
from tests.paired.support import Rig

ENTITY = "orders"
LIMITS = LinkLimits(600, 900)
FAILURES: dict[str, Callable[[], Exception]] = {
    "down": ServiceBusConnectionError,
    "busy": ServiceBusServerBusyError,
    "refused": ServiceBusAuthorizationError,
    "stored, then lost": TimeoutError,
}
GOOD, REFUSED, LARGE, NEARLY, ALIAS = "good", "refused", "too large", "too large with the envelope", "an alias"
SIZES = {LARGE: 700, NEARLY: 545}


def rejection() -> ServiceBusError:
    """What the SDK makes of a rejected disposition."""
    return ServiceBusError("no", condition=b"amqp:not-allowed", error=MessageException(b"amqp:not-allowed"))


@dataclass
class World(MemoryTransport):
    """Each call meets the next thing on the list; when the list is at its end, all goes well."""

    limits: LinkLimits = LIMITS
    coming: "deque[str]" = field(default_factory=deque)
    acknowledged: dict[Side, list[bytes]] = field(default_factory=lambda: {side: [] for side in Side})

    def next(self) -> str:
        return self.coming.popleft() if self.coming else "well"

    async def open(self, side: Side, path: str) -> MemoryLink:
        happens = self.next()
        if happens in FAILURES:
            raise FAILURES[happens]()
        return WorldLink(self, side, path)


@dataclass
class WorldLink(MemoryLink):
    transport: World

    async def send(self, payload: bytes, *, batch: bool) -> None:
        assert not self.broken, "a broken link was used again"
        assert len(payload) <= (LIMITS.max_batch_size if batch else LIMITS.max_message_size), "more than the link takes"
        happens = self.transport.next()
        self.broken = happens in FAILURES and happens != "busy"
        if (self.broken and happens != "stored, then lost") or happens == "busy":
            raise FAILURES[happens]()
        found = members(payload) if batch else [payload]
        if self.side is Side.PRIMARY and any(REFUSED.encode() in message for message in found):
            self.broken = False
            raise rejection()
        if happens == "stored, then lost":
            raise FAILURES[happens]()
        self.transport.acknowledged[self.side] += found


class Machine(RuleBasedStateMachine):
    sender: ClassVar[type[PairedSender]] = PairedSender

    @initialize(interval=st.sampled_from([0.0, 5.0]), queues=st.integers(1, 2), partitioned=st.booleans())
    def start(self, interval: float, queues: int, partitioned: bool) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.runner = asyncio.Runner()
        self.world = World()
        self.rig = Rig(Path(self.folder.name), self.world, interval=interval, queues=queues, links=3)
        self.freed = 0
        self.number = 0
        self.lane = self.sender(ENTITY, self.rig.pair, partitioned=partitioned, left=self.let_go)

    def let_go(self, size: int) -> None:
        self.freed += size

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            with suppress(Exception):
                self.rig.board.close()
            self.runner.close()
            self.folder.cleanup()

    @rule(seconds=st.sampled_from([1.0, 61.0]))
    def tick(self, seconds: float) -> None:
        self.rig.clock.time += seconds

    @rule()
    def hint(self) -> None:
        self.rig.board.hint(ENTITY)

    @rule(happens=st.sampled_from(["well", "down", "busy"]))
    def ping(self, happens: str) -> None:
        self.world.coming = deque([happens])
        before = {side: list(found) for side, found in self.world.acknowledged.items()}
        self.runner.run(self.rig.pinger.ping(ENTITY))
        self.world.acknowledged = before  # a ping is no message of ours

    @rule(
        kinds=st.lists(st.sampled_from([GOOD, GOOD, GOOD, REFUSED, LARGE, NEARLY, ALIAS]), min_size=1, max_size=12),
        coming=st.lists(st.sampled_from(["well", "well", *FAILURES]), max_size=10),
    )
    def send(self, kinds: list[str], coming: list[str]) -> None:
        given = {self.encoded(kind): kind for kind in kinds}
        self.world.coming = deque(coming)
        for found in self.world.acknowledged.values():
            found.clear()
        self.freed = 0
        self.runner.run(self.bounded(list(given)))
        report = self.lane.report()
        primary = [message for message in self.world.acknowledged[Side.PRIMARY] if message in given]
        diverted = [restore(message) for message in self.world.acknowledged[Side.SECONDARY]]
        backlog = [message.message for message in diverted]

        assert all(message.path == ENTITY for message in diverted), "diverted for another entity"
        assert (report.primary, report.backlog) == (len(primary), len(backlog)), "the counts are not what arrived"
        aside = [*report.overflow, *report.rejected]
        outcomes = Counter([*primary, *backlog, *(unsent.message for unsent in aside)])
        assert all(count == 1 for count in outcomes.values()), "one message, two routes"
        missing = [message for message in given if message not in outcomes]
        assert len(missing) == report.abandoned, "a message without an outcome"
        assert report.error is None or "refused" in coming, "an error out of nothing"
        assert not missing or report.error is not None, "abandoned without an error"
        assert set(outcomes) <= set(given), "a message that nobody gave"
        assert report.total == len(given), "the report does not add up"
        assert self.freed == sum(map(len, given)), "the memory of a message was kept, or freed twice"

        places = list(given)
        first = self.number - len(places)
        assert all(places[unsent.position - first] == unsent.message for unsent in aside), "told by a wrong place"
        for route in (primary, backlog):
            assert route == sorted(route, key=places.index), "the order was not kept"
        rejected = {given[unsent.message] for unsent in report.rejected}
        assert rejected <= {REFUSED, LARGE, ALIAS}, "a good message was rejected"
        assert not {given[message] for message in primary} & {REFUSED, LARGE, ALIAS}, "a bad message was accepted"
        overflow = {given[unsent.message] for unsent in report.overflow}
        assert report.all_out is not None or overflow <= {NEARLY, LARGE}, "overflow for no reason"

    def encoded(self, kind: str) -> bytes:
        self.number += 1
        body = (REFUSED if kind == REFUSED else "x").encode() * (SIZES.get(kind, 8) if kind != REFUSED else 1)
        alias = {"x-ms-path": "elsewhere"} if kind == ALIAS else {}
        return encode_message(body, message_id=f"m{self.number}", application_properties=alias)

    async def bounded(self, messages: list[bytes]) -> None:
        async with asyncio.timeout(60):  # of real time: a lane that never ends
            await self.lane.send(messages)


SMALL = settings(max_examples=100, stateful_step_count=8, deadline=None, suppress_health_check=list(HealthCheck))
TestConservation = Machine.TestCase
TestConservation.settings = SMALL


# Bugs


class ForgetsThrottled(PairedSender):
    async def _attempt(self, *args: Any, **settings: Any) -> Any:
        batch, fault = await super()._attempt(*args, **settings)
        if fault is not None and fault.kind is Kind.THROTTLED:
            batch = replace(batch, messages=[])
        return batch, fault


class TakesALostAcknowledgementForOne(PairedSender):
    async def _attempt(self, *args: Any, **settings: Any) -> Any:
        batch, fault = await super()._attempt(*args, **settings)
        return batch, None if fault is not None and fault.reason == "deadline" else fault


class TurnsABatchRound(PairedSender):
    async def _attempt(self, *args: Any, **settings: Any) -> Any:
        batch, fault = await super()._attempt(*args, **settings)
        if fault is not None and fault.kind is Kind.ENTITY_FAULT:
            batch = replace(batch, messages=batch.messages[::-1])
        return batch, fault


class CountsTwice(PairedSender):
    async def _to_backlog(self, *args: Any) -> None:
        before = self._tally.backlog
        await super()._to_backlog(*args)
        self._tally.backlog += self._tally.backlog - before


class OverflowsTwice(PairedSender):
    def _overflow(self, *args: Any) -> None:
        super()._overflow(*args)
        self._tally.overflow *= 2


class BlamesTheWholeBatch(PairedSender):
    def _single_out(self, batch: Any, fault: Any, *args: Any) -> None:
        super()._single_out(batch, replace(fault, split=False), *args)


@pytest.mark.parametrize(
    ("planted", "noticed"),
    [
        (ForgetsThrottled, "without an outcome"),
        (TakesALostAcknowledgementForOne, "the counts are not what arrived"),
        (TurnsABatchRound, "order was not kept"),
        (CountsTwice, "the counts are not what arrived"),
        (OverflowsTwice, "one message, two routes|does not add up"),
        (BlamesTheWholeBatch, "a good message was rejected|overflow for no reason"),
    ],
)
def test_the_machine_finds_a_planted_bug(planted: type[PairedSender], noticed: str) -> None:
    class Planted(Machine):
        sender = planted

    find = settings(SMALL, max_examples=1000, derandomize=True, database=None, phases=[Phase.generate])
    with pytest.raises(AssertionError, match=noticed):
        run_state_machine_as_test(Planted, settings=find)
