"""The lanes of a task over a network in memory: the bound, the order, and what becomes of what was fed."""

import asyncio
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from azure.servicebus.exceptions import MessageSizeExceededError, ServiceBusAuthorizationError, ServiceBusError

from spark_sb_sink import send_task
from spark_sb_sink.board import Board
from spark_sb_sink.errors import AllBacklogsOutError, ClosedError, MisconfiguredSendError
from spark_sb_sink.factory import PairedFactory
from spark_sb_sink.lanes import SAMPLES, Aside, Lanes, LaneTotals, Table, first_reasons
from spark_sb_sink.options import Options
from spark_sb_sink.rows import check_schema, fields_of_arrow
from spark_sb_sink.transport import LinkLimits, MemoryLink, MemoryTransport, Side
from tests.conftest import await_that
from tests.paired.support import ids, messages

MIB = 2**20
GIVEN: dict[str, Any] = {
    f"{side}": f"Endpoint=sb://{side}.example.net/;SharedAccessKeyName=n;SharedAccessKey=azE="
    for side in ("primary", "secondary")
} | {"failover_interval": "0s", "backlog_queue_count": 2}
OPTIONS = Options.from_dict(GIVEN)


class GatedLink(MemoryLink):
    async def send(self, payload: bytes, *, batch: bool) -> None:
        transport = self.transport
        assert isinstance(transport, GatedTransport)
        transport.reached.add(self.path)
        while self.path in transport.shut:
            await asyncio.sleep(0.005)
        await super().send(payload, batch=batch)


class GatedTransport(MemoryTransport):
    """The network in memory, with entities that take nothing until the test opens them."""

    def __init__(self) -> None:
        super().__init__()
        self.shut: set[str] = set()
        self.reached: set[str] = set()

    async def open(self, side: Side, path: str) -> MemoryLink:
        self.fail("open", side, path)
        return GatedLink(self, side, path)


class Ground:
    def __init__(self, folder: Path) -> None:
        self.network = GatedTransport()
        self.factory = PairedFactory(OPTIONS, Board.for_executor(folder, OPTIONS), transport=lambda: self.network)

    def lanes(self, bound: int = MIB, *, keep_unsent: bool = True) -> Lanes:
        return Lanes(self.factory, bound, keep_unsent=keep_unsent)

    def fail(self, side: Side, path: str, error: Exception) -> None:
        before = self.network.fail

        def fail(what: str, at: Side, where: str) -> None:
            before(what, at, where)
            if at is side and where.startswith(path):
                raise error

        self.network.fail = fail

    def arrived(self, entity: str) -> list[object]:
        return ids(self.network.sent[Side.PRIMARY, entity])

    def hold(self, entity: str, lanes: Lanes, count: int = 1, size: int = 20) -> list[bytes]:
        """Feed an entity that takes nothing, and wait until its link is at it."""
        self.network.shut.add(entity)
        held = messages(count, size)
        lanes.feed(entity, held)
        await_that(lambda: entity in self.network.reached)
        return held


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    made = Ground(tmp_path)
    yield made
    made.factory.close()
    made.factory.board.close()


def finish(lanes: Lanes) -> tuple[dict[str, LaneTotals], list[Aside]]:
    """As the send task does at its end."""
    aside: list[Aside] = []
    while not lanes.await_end():
        aside += lanes.take()
    aside += lanes.take()
    return {lane.entity: lane for lane in lanes.totals()}, aside


def test_what_is_fed_piece_by_piece_arrives_in_its_order_and_leaves_nothing_in_flight(ground: Ground) -> None:
    lanes = ground.lanes()
    for start in range(0, 100, 10):
        for entity in ("orders", "bills"):
            lanes.feed(entity, messages(10, start=start))
    totals, aside = finish(lanes)
    for entity in ("orders", "bills"):
        assert ground.arrived(entity) == [f"m{number}" for number in range(100)]
        assert replace(totals[entity], primary_bytes=0) == LaneTotals(entity, primary=100)
    assert (aside, lanes.in_flight) == ([], 0)


def test_what_several_entities_are_fed_at_once_arrives_at_each(ground: Ground) -> None:
    lanes = ground.lanes()
    ground.hold("orders", lanes)
    lanes.feed_all({"orders": messages(3, start=1), "bills": messages(3), "returns": messages(2)})
    await_that(lambda: len(ground.arrived("bills")) == 3 and len(ground.arrived("returns")) == 2)
    ground.network.shut.clear()
    totals, _ = finish(lanes)
    assert ground.arrived("orders") == ["m0", "m1", "m2", "m3"]
    assert {entity: lane.primary for entity, lane in totals.items()} == {"orders": 4, "bills": 3, "returns": 2}
    assert lanes.in_flight == 0
    lanes.feed_all({"bills": messages(1, start=3), "returns": messages(1, start=2)})
    assert {entity: lane.primary for entity, lane in finish(lanes)[0].items()} == {
        "orders": 4,
        "bills": 4,
        "returns": 3,
    }


def test_there_is_room_until_the_bound(ground: Ground) -> None:
    lanes = ground.lanes(bound=1000)
    assert lanes.has_room(5000)
    held = sum(map(len, ground.hold("orders", lanes, size=700)))
    assert lanes.has_room(1000 - held)
    assert not lanes.has_room(1001 - held)
    ground.network.shut.clear()
    finish(lanes)


def test_what_waits_behind_a_send_goes_out_in_one_batch(ground: Ground) -> None:
    lanes = ground.lanes()
    ground.hold("orders", lanes)
    for start in range(1, 11):
        lanes.feed("orders", messages(1, start=start))
    ground.network.shut.clear()
    finish(lanes)
    assert ground.network.transfers == 2
    assert ground.arrived("orders") == [f"m{number}" for number in range(11)]


def test_an_entity_that_takes_nothing_does_not_hold_up_another(ground: Ground) -> None:
    lanes = ground.lanes()
    ground.hold("orders", lanes)
    lanes.feed("bills", messages(5))
    await_that(lambda: len(ground.arrived("bills")) == 5)
    assert ground.arrived("orders") == []
    ground.network.shut.clear()
    assert finish(lanes)[0]["orders"].primary == 1


def test_at_the_bound_the_task_waits_until_something_has_left(ground: Ground) -> None:
    lanes = ground.lanes(bound=1000)
    held = sum(map(len, ground.hold("orders", lanes, size=700)))
    assert lanes.in_flight == held
    assert lanes.await_room(1000 - held)
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(lanes.await_room, 1001 - held)
        lanes.feed("bills", messages(1))
        await_that(lambda: ground.arrived("bills"))
        assert not waits.done()
        ground.network.shut.clear()
        assert waits.result(20)
    finish(lanes)
    assert lanes.in_flight == 0


def test_what_is_larger_than_the_bound_goes_alone(ground: Ground) -> None:
    lanes = ground.lanes(bound=1000)
    assert lanes.await_room(5000)
    ground.hold("orders", lanes, size=5000)
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(lanes.await_room, 1)
        ground.network.shut.clear()
        assert waits.result(20)
    assert finish(lanes)[0]["orders"].primary == 1


def test_a_task_that_waits_for_room_is_told_to_take_first_what_was_not_sent(ground: Ground) -> None:
    lanes = ground.lanes(bound=1000)
    ground.hold("orders", lanes, size=700)
    ground.network.refuse = lambda message: MessageSizeExceededError(message="too large")
    lanes.feed("bills", messages(1))
    assert not lanes.await_room(900)
    [taken] = lanes.take()
    assert (taken.entity, taken.table, ids([taken.message])) == ("bills", Table.QUARANTINE, ["m0"])
    ground.network.refuse = lambda message: None
    ground.network.shut.clear()
    assert lanes.await_room(900)
    assert finish(lanes)[1] == []


def test_one_bad_message_is_put_aside_with_its_reason_and_the_others_are_sent(ground: Ground) -> None:
    def refuse(message: bytes) -> Exception | None:
        return MessageSizeExceededError(message="too large") if ids([message]) == ["m3"] else None

    ground.network.refuse = refuse
    lanes = ground.lanes()
    lanes.feed("orders", messages(8))
    totals, aside = finish(lanes)
    assert (totals["orders"].primary, totals["orders"].quarantine) == (7, 1)
    assert ground.arrived("orders") == [f"m{number}" for number in range(8) if number != 3]
    assert [(ids([each.message]), each.table) for each in aside] == [(["m3"], Table.QUARANTINE)]
    assert totals["orders"].reasons == (aside[0].reason,)
    assert "too large" in aside[0].reason


@pytest.mark.parametrize("keep_unsent", [True, False])
def test_what_neither_side_takes_is_overflow_and_kept_only_where_somebody_wants_it(
    ground: Ground, keep_unsent: bool
) -> None:
    for side in Side:
        ground.fail(side, "", ServiceBusError("out", error=None))
    lanes = ground.lanes(keep_unsent=keep_unsent)
    lanes.feed("orders", messages(5))
    totals, aside = finish(lanes)
    assert totals["orders"].overflow == 5
    assert isinstance(totals["orders"].all_out, AllBacklogsOutError)
    assert [each.table for each in aside] == [Table.OVERFLOW] * (5 if keep_unsent else 0)
    assert lanes.in_flight == 0


def test_an_entity_that_refuses_us_is_not_tried_again_and_every_message_of_it_is_accounted_for(ground: Ground) -> None:
    tries: list[str] = []

    def fail(what: str, side: Side, path: str) -> None:
        if path == "orders":
            tries.append(what)
            raise ServiceBusAuthorizationError(message="Unauthorized access. 'Send' claim(s) are required.")

    ground.network.fail = fail
    lanes = ground.lanes()
    lanes.feed("orders", messages(5))
    finish(lanes)
    before = len(tries)
    lanes.feed("orders", messages(5, start=5))
    lanes.feed("orders", messages(5, start=10))
    lanes.feed("bills", messages(3))
    totals, aside = finish(lanes)
    assert len(tries) == before
    assert (totals["orders"].total, totals["orders"].abandoned) == (15, 15)
    assert isinstance(totals["orders"].error, MisconfiguredSendError)
    assert replace(totals["bills"], primary_bytes=0) == LaneTotals("bills", primary=3)
    assert (aside, lanes.in_flight) == ([], 0)


def test_a_factory_that_is_closed_meanwhile_ends_whoever_waits(ground: Ground) -> None:
    lanes = ground.lanes(bound=1000)
    ground.hold("orders", lanes, size=900)
    with ThreadPoolExecutor(2) as pool:
        waits = [pool.submit(lanes.await_room, 900), pool.submit(lanes.await_end)]
        ground.factory.close()
        for each in waits:
            with pytest.raises(ClosedError):
                each.result(20)
    for call in (lanes.take, lanes.await_end, lambda: lanes.feed("orders", messages(1))):
        with pytest.raises(ClosedError):
            call()


def test_after_cancel_nothing_that_waits_is_sent(ground: Ground) -> None:
    lanes = ground.lanes()
    ground.hold("orders", lanes)
    lanes.feed("orders", messages(5, start=1))
    lanes.cancel()
    ground.network.shut.clear()
    other = ground.lanes()
    other.feed("orders", messages(1, start=9))
    finish(other)
    assert ground.arrived("orders") == ["m9"]


def test_cancel_after_the_end_changes_nothing(ground: Ground) -> None:
    lanes = ground.lanes()
    lanes.feed("orders", messages(5))
    totals, _ = finish(lanes)
    lanes.cancel()
    assert {lane.entity: lane for lane in lanes.totals()} == totals


def test_a_task_that_was_fed_nothing_ends_at_once(ground: Ground) -> None:
    assert finish(ground.lanes()) == ({}, [])


def test_the_first_reasons_that_differ_are_told() -> None:
    assert first_reasons((), ["a", "a", "b", "c", "d"]) == ("a", "b", "c")
    assert first_reasons(("a", "b"), ["b", "c", "d"]) == ("a", "b", "c")
    assert len(first_reasons((), map(str, range(100)))) == SAMPLES


def test_a_task_that_feeds_at_the_bound_while_the_loop_sends_loses_nothing(ground: Ground) -> None:
    lanes = ground.lanes(bound=2000)
    refused = {f"m{number}" for number in range(0, 500, 7)}
    ground.network.refuse = lambda message: (
        MessageSizeExceededError(message="too large") if ids([message])[0] in refused else None
    )
    aside: list[Aside] = []
    most = 0
    for number in range(500):
        piece = messages(1, start=number)
        while not lanes.await_room(len(piece[0])):
            aside += lanes.take()
        lanes.feed("orders", piece)
        most = max(most, lanes.in_flight)
    totals, more = finish(lanes)
    aside += more
    assert most <= 2000
    assert {ids([each.message])[0] for each in aside} == refused
    assert ground.arrived("orders") == [f"m{number}" for number in range(500) if f"m{number}" not in refused]
    assert totals["orders"].total == 500


class HoldingLink(MemoryLink):
    """Takes what it is sent and keeps nothing of it; the transfer with a message `last` waits for the gate."""

    async def send(self, payload: bytes, *, batch: bool) -> None:
        transport = self.transport
        assert isinstance(transport, GatedTransport)
        held = b"last" in payload
        del payload
        if held:
            transport.reached.add(self.path)
            while transport.shut:
                await asyncio.sleep(0.005)


class HoldingTransport(GatedTransport):
    """The network for such links."""

    async def open(self, side: Side, path: str) -> MemoryLink:
        return HoldingLink(self, side, path)


def test_a_task_that_stops_reading_at_the_bound_holds_no_more_in_memory_than_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each entity all is sent but the last transfer: what was sent is to be gone, though its lane is at work."""
    options = Options.from_dict(GIVEN | {"max_in_flight": MIB, "max_links": 400})
    network = HoldingTransport()
    network.limits = LinkLimits(32 * 1024, 32 * 1024)
    network.shut.add("all")
    factory = PairedFactory(options, Board.for_executor(tmp_path, options), transport=lambda: network)
    made: list[Lanes] = []
    monkeypatch.setattr(send_task, "factory_for", lambda options, folder: factory)
    monkeypatch.setattr(send_task, "Lanes", lambda *a, **named: made.append(Lanes(*a, **named)) or made[-1])
    rows, read = 200, 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal read
        while read < 100:
            read += 1
            ids = [f"m{number}" for number in range(1, rows)] + ["last"]
            yield pa.record_batch([[b"x" * 1000] * rows, [f"e{read}"] * rows, ids], schema)

    def stopped() -> bool:
        """Every entity fed has all but its end sent, and the next one has no room."""
        return read > 1 and len(network.reached) == read - 1 and not made[0].has_room(rows * 1040)

    schema = pa.schema([("body", pa.binary()), ("entity", pa.string()), ("message_id", pa.string())])
    batch = send_task.BatchPlan(check_schema(fields_of_arrow(schema)), "query", 0, keep_unsent=True)
    tracemalloc.start()
    try:
        with ThreadPoolExecutor(1) as pool:
            receipts = pool.submit(lambda: list(send_task.run(batch, options, 0, batches(), str(tmp_path))))
            try:
                await_that(stopped, 20)
                ours = tracemalloc.Filter(True, f"{Path(send_task.__file__).parent}/*")
                found = tracemalloc.take_snapshot().filter_traces([ours]).statistics("filename")
            finally:
                network.shut.clear()
            assert sum(receipt.num_rows for receipt in receipts.result(60)) == 1, "something was not sent"
    finally:
        tracemalloc.stop()
        factory.close()
        factory.board.close()
    in_memory = sum(each.size for each in found)
    assert in_memory < 2.5 * MIB, "more than the bound, once more for transfers under way, and a slice"
