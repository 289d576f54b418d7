"""The links of one process, over a network in memory: who gets one, which are closed, and what a cap means."""

import asyncio

import pytest
from azure.servicebus.exceptions import ServiceBusConnectionError

from spark_sb_sink.errors import ClosedError
from spark_sb_sink.links import RECYCLE_AFTER, Links
from spark_sb_sink.transport import Link, MemoryLink, MemoryTransport, Side
from tests.paired.support import FakeClock


class Kept:
    """Links and what is below them."""

    def __init__(self, most: int = 4) -> None:
        self.memory = MemoryTransport()
        self.clock = FakeClock()
        self.links = Links(self.memory, most, self.clock.now)

    async def touch(self, entity: str) -> Link:
        async with self.links.use(Side.PRIMARY, entity) as lent:
            return lent.link

    async def open_now(self) -> int:
        await asyncio.sleep(0)  # closes go on by themselves
        assert self.links.open_count == self.memory.opened - self.memory.closed
        return self.links.open_count


async def test_a_link_thrown_away_late_does_not_take_the_one_in_its_place_with_it() -> None:
    kept = Kept()
    first = await kept.touch("orders")
    await kept.links.discard(Side.PRIMARY, "orders", first)
    second = await kept.touch("orders")
    await kept.links.discard(Side.PRIMARY, "orders", first)
    assert second is not first
    assert await kept.touch("orders") is second
    assert await kept.open_now() == 1


async def test_a_link_that_broke_while_nobody_used_it_is_replaced_and_counts_as_new() -> None:
    kept = Kept()
    first = await kept.touch("orders")
    first.broken = True  # type: ignore[misc]  # a link in memory
    kept.clock.time += 300
    async with kept.links.use(Side.PRIMARY, "orders") as lent:
        assert lent.link is not first
        assert lent.idle == 0
    assert await kept.open_now() == 1


async def test_openings_that_fail_use_up_no_room() -> None:
    kept = Kept(most=2)

    def fail(what: str, side: Side, path: str) -> None:
        if path == "dead":
            raise ServiceBusConnectionError

    kept.memory.fail = fail
    for _ in range(5):
        with pytest.raises(ServiceBusConnectionError):
            await kept.touch("dead")
    async with asyncio.timeout(20):
        for entity in ("a", "b", "c"):
            await kept.touch(entity)
    assert await kept.open_now() == 2


async def test_a_link_in_use_is_never_closed_to_make_room_and_who_waits_gets_the_next_free_one() -> None:
    kept = Kept(most=2)
    async with kept.links.use(Side.PRIMARY, "a") as one:
        async with kept.links.use(Side.SECONDARY, "b"):
            waiting = asyncio.create_task(kept.touch("c"))
            for _ in range(10):
                await asyncio.sleep(0)
            assert not waiting.done()
            assert kept.memory.closed == 0
        async with asyncio.timeout(20):
            await waiting
        assert await kept.open_now() == 2
    assert await kept.touch("a") is one.link


class Hanging(MemoryTransport):
    """Links to what is dead never open."""

    async def open(self, side: Side, path: str) -> MemoryLink:
        if path.startswith("dead"):
            self.opened += 1
            await asyncio.Event().wait()
        return await super().open(side, path)


async def test_entities_that_fail_get_three_quarters_of_the_links_and_the_others_never_wait_for_them() -> None:
    memory = Hanging()
    links = Links(memory, 4, FakeClock().now)

    async def ask(entity: str) -> None:
        async with links.use(Side.PRIMARY, entity, doubtful=True):
            pass

    dead = [asyncio.create_task(ask(f"dead-{number}")) for number in range(8)]
    for _ in range(10):
        await asyncio.sleep(0)
    assert memory.opened == 3
    async with asyncio.timeout(20), links.use(Side.PRIMARY, "healthy"):
        pass
    for task in dead:
        task.cancel()
    await asyncio.gather(*dead, return_exceptions=True)
    assert links.open_count == 1


async def test_of_links_that_are_used_all_the_time_those_that_fail_get_one_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("spark_sb_sink.links.JUST_USED", 0.02)
    memory = Hanging()
    links = Links(memory, 4, lambda: 0.0)  # so that every link was just used

    async def ask(entity: str, *, doubtful: bool) -> None:
        async with links.use(Side.PRIMARY, entity, doubtful=doubtful):
            pass

    for number in range(4):
        await ask(f"healthy-{number}", doubtful=False)
    dead = [asyncio.create_task(ask(f"dead-{number}", doubtful=True)) for number in range(8)]
    async with asyncio.timeout(20):
        while memory.opened < 5:
            await asyncio.sleep(0.01)
    for turn in range(500):
        await ask(f"healthy-{1 + turn % 3}", doubtful=False)
        await asyncio.sleep(0.0001)
    assert (memory.opened, memory.closed) == (5, 1)
    for task in dead:
        task.cancel()
    await asyncio.gather(*dead, return_exceptions=True)
    assert links.open_count == 3


async def test_only_links_idle_for_long_are_recycled_and_none_in_use() -> None:
    kept = Kept()
    await kept.touch("idle")
    async with kept.links.use(Side.PRIMARY, "used"):
        kept.clock.time += RECYCLE_AFTER - 1
        await kept.links.recycle()
        assert await kept.open_now() == 2
        kept.clock.time += 1
        await kept.links.recycle()
        assert await kept.open_now() == 1


async def test_a_link_in_use_when_all_are_closed_is_closed_when_it_is_given_back() -> None:
    kept = Kept()
    async with kept.links.use(Side.PRIMARY, "orders"):
        await kept.links.close()
    assert await kept.open_now() == 0
    with pytest.raises(ClosedError):
        await kept.touch("orders")
