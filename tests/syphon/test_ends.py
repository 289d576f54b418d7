"""How a drain ends when a side of its pair does: in a run, between runs, and with another drain beside it."""

import asyncio
import contextlib
import threading

import pytest

from spark_sb_sink.errors import FaultedError
from spark_sb_sink.pair_life import GRACE
from spark_sb_sink.syphon import Drain
from spark_sb_sink.syphon.queue_drain import end
from spark_sb_sink.transport import Side
from tests.conftest import await_that
from tests.paired.ground import MovableClock
from tests.syphon.field import Field


def ends(drain: Drain, *, meanwhile: threading.Event) -> threading.Thread:
    """A run that is to end by a fault, in a thread of its own."""

    def run() -> None:
        with pytest.raises(FaultedError) as caught:
            drain.run(60)
        assert caught.value.first == "secondary"
        meanwhile.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("side", Side)
def test_a_side_that_is_closed_in_a_run_takes_the_other_with_it_and_nothing_is_lost(field: Field, side: Side) -> None:
    entity, other = field.entities(2)
    clock = MovableClock()
    drain = field.drain(clock=clock, max_rate=500)
    ids = field.backlog_for(entity, 1500) + field.backlog_for(other, 1500)
    closed = threading.Event()

    def close() -> bool:
        if not closed.is_set() and field.accepted(entity) > 50:
            drain.factory.end(side, "an operator closed it", fault=False)
            closed.set()
            clock.ahead += GRACE
        return False

    with pytest.raises(FaultedError, match="an operator closed it") as caught:
        drain.run(60, until=close)
    assert caught.value.first == side.value
    taken = field.taken(entity) | field.taken(other)
    assert set(taken) <= set(ids)
    told = drain.untold()
    completed = sum(what.get("completed", 0) for what in field.secondary.tally(field.queue(0)).values())
    assert 0 < told.moved <= completed <= told.moved + told.total("unconfirmed"), "receipts of the run that raised"
    assert drain.untold().receipts == ()
    counts = field.in_backlog()
    # What was sent and could not be settled any more comes again, with the same id.
    assert len(taken) + counts["active"] + counts["locked"] >= len(ids)
    assert counts["deferred"] == 0
    with pytest.raises(FaultedError):
        drain.run(1)
    again = field.drain()
    field.secondary.expire_locks(field.queue(0))
    field.until_empty(again)
    assert set(field.taken(entity) | field.taken(other)) == set(ids)


def test_a_side_that_ended_ends_every_drain_of_the_process_also_those_that_only_poll(field: Field) -> None:
    clock = MovableClock()
    one = field.drain([0], clock=clock, backlog_queue_count=2, long_poll="60s")
    two = Drain(one.factory, [field.queue(1)])
    over = [threading.Event(), threading.Event()]
    threads = [ends(drain, meanwhile=event) for drain, event in zip((one, two), over, strict=True)]
    await_that(lambda: one.polls == two.polls == 1)
    one.factory.end(Side.SECONDARY, "its credential was refused", fault=True)
    clock.ahead += GRACE
    for thread in threads:
        thread.join(30)
    assert [event.is_set() for event in over] == [True, True]
    assert one.closed
    assert two.closed


def test_a_run_after_the_end_of_a_side_says_which_went_first(field: Field) -> None:
    clock = MovableClock()
    drain = field.drain(clock=clock)
    drain.run(0.2)
    drain.factory.end(Side.PRIMARY, "an operator closed it", fault=False)
    clock.ahead += GRACE
    with pytest.raises(FaultedError, match="primary side of the pair came to its end first: an operator closed it"):
        drain.run(60)


async def test_a_task_that_forgets_a_cancellation_is_cancelled_again() -> None:
    # As asyncio.wait_for does up to Python 3.11, which the SDK calls for every frame.
    async def forgetful() -> None:
        for _ in range(2):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(600)
        await asyncio.sleep(600)

    task = asyncio.create_task(forgetful())
    await asyncio.sleep(0)
    async with asyncio.timeout(30):
        await end([task], again=0.01)
    assert task.cancelled()
