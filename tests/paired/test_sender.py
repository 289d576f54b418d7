"""The lane of one entity, over a network in memory and under a clock that moves only when somebody waits."""

import asyncio
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus._pyamqp.error import MessageException
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_sb_sink.amqp import Long, encode_message
from spark_sb_sink.envelope import restore
from spark_sb_sink.errors import ClosedError, IncompatibleSdkError
from spark_sb_sink.failover import Health, PingSucceeded, SendFailed, SendSucceeded
from spark_sb_sink.reports import EntityReport
from spark_sb_sink.timing import MonotonicClock
from spark_sb_sink.transport import LinkLimits, MemoryLink, MemoryTransport, Side
from tests.paired.support import BACKLOG, Rig, ids, messages


def rejection(condition: bytes) -> ServiceBusError:
    """What the SDK makes of a rejected disposition."""
    return ServiceBusError("rejected", condition=condition, error=MessageException(condition, description="no"))


async def test_healthy_messages_go_to_the_primary_in_order_and_unchanged(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    sent = messages(10_000)
    report = await rig.send(sent)
    assert rig.primary() == sent
    assert (report.primary, report.total, report.changes) == (10_000, 10_000, ())
    assert report.transfers == 3  # 4,500 messages at most in one


async def test_a_fault_that_heals_within_the_interval_diverts_nothing(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.fail_primary(ServiceBusConnectionError)
    rig.clock.on_sleep = lambda seconds: rig.heal() if rig.clock.now() > 1030 else None
    report = await rig.send(messages(10))
    assert (report.primary, report.backlog) == (10, 0)
    assert [change.after for change in report.changes] == [Health.SUSPECT, Health.HEALTHY]


async def test_the_waits_between_attempts_grow_and_differ(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.fail_primary(ServiceBusConnectionError)
    await rig.send(messages(1))
    waits = [wait for wait in rig.clock.waited if wait]
    assert 0.05 <= waits[0] <= 0.1
    assert max(waits) <= 5.0
    assert len(waits) < 60


async def test_the_service_may_ask_for_a_longer_wait(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.fail_primary(lambda: ServiceBusServerBusyError(message="Please wait 25 seconds and try again."))
    rig.clock.on_sleep = lambda seconds: rig.heal()
    await rig.send(messages(1))
    assert rig.clock.waited == [25.0]


async def test_one_bad_message_is_found_and_the_others_are_sent(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    sent = messages(1000)
    bad = sent[637]
    _refuse_batches_with(rig, {bad})
    report = await rig.send(sent)
    assert [(one.position, one.message) for one in report.rejected] == [(637, bad)]
    assert "rejected" in report.rejected[0].reason
    assert rig.primary() == [message for message in sent if message != bad]
    assert (report.primary, report.total) == (999, 1000)
    assert rig.board.view("orders").health is Health.HEALTHY


@given(bad=st.sets(st.integers(0, 199), max_size=20), size=st.integers(1, 200))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
async def test_any_bad_messages_are_found_and_order_is_kept(tmp_path: Path, bad: set[int], size: int) -> None:
    rig = Rig(tmp_path)
    sent = messages(size)
    wrong = {sent[number] for number in bad if number < size}
    _refuse_batches_with(rig, wrong)
    report = await rig.send(sent)
    assert {one.message for one in report.rejected} == wrong
    assert rig.primary() == [message for message in sent if message not in wrong]
    assert report.total == size


def _refuse_batches_with(rig: Rig, bad: set[bytes]) -> None:
    """A broker that rejects any transfer with one of these in it."""
    rig.memory.refuse = lambda message: rejection(b"amqp:decode-error") if message in bad else None


async def test_an_entity_that_was_never_seen_is_a_bad_address_and_one_that_was_is_down(tmp_path: Path) -> None:
    rig = Rig(tmp_path, interval=0.0)
    rig.fail_primary(MessagingEntityNotFoundError)
    report = await rig.send(messages(3), "nowhere")
    assert len(report.rejected) == 3
    assert report.backlog == 0
    rig.heal()
    await rig.send(messages(1))
    rig.fail_primary(MessagingEntityNotFoundError)
    report = await rig.send(messages(3))
    assert (report.backlog, report.rejected) == (3, ())


async def test_the_first_fault_on_an_idle_link_is_tried_again_at_once_and_counts_for_nothing(tmp_path: Path) -> None:
    rig = Rig(tmp_path, interval=0.0)
    await rig.send(messages(1))
    rig.clock.time += 61
    left = [1]

    def once(what: str, side: Side, path: str) -> None:
        if what == "send" and left:
            left.pop()
            raise ServiceBusConnectionError

    rig.memory.fail = once
    report = await rig.send(messages(1))
    assert (report.primary, report.backlog, report.changes) == (1, 0, ())
    assert rig.memory.opened == 2


async def test_a_second_fault_after_an_idle_link_counts(tmp_path: Path) -> None:
    rig = Rig(tmp_path, interval=0.0)
    await rig.send(messages(1))
    rig.clock.time += 61
    rig.fail_primary(ServiceBusConnectionError)
    assert (await rig.send(messages(1))).backlog == 1


# The backlog


async def test_a_failed_backlog_queue_is_left_for_another_and_comes_back_after_its_cooldown(tmp_path: Path) -> None:
    rig = Rig(tmp_path, interval=0.0)
    dead: set[str] = set()

    def fail(what: str, side: Side, path: str) -> None:
        if side is Side.PRIMARY or path in dead:
            raise ServiceBusConnectionError

    rig.memory.fail = fail
    await rig.send(messages(1))
    [first] = [path for side, path in rig.memory.sent if side is Side.SECONDARY]
    dead.add(first)
    report = await rig.send(messages(5, start=1))
    assert report.backlog == 5
    assert ids([restore(message).message for message in rig.backlogged()]) == [f"m{n}" for n in range(6)]
    assert first not in [
        f"{BACKLOG}{queue.queue}" for queue in rig.board.snapshot().queues if not queue.is_out(rig.clock.now())
    ]
    dead.clear()
    rig.clock.time += 61
    assert all(not queue.is_out(rig.clock.now()) for queue in rig.board.snapshot().queues)


async def test_a_throttled_backlog_queue_is_passed_over_and_stays_in_the_rotation(tmp_path: Path) -> None:
    rig = Rig(tmp_path, interval=0.0)
    busy: set[str] = set()

    def fail(what: str, side: Side, path: str) -> None:
        if side is Side.PRIMARY:
            raise ServiceBusConnectionError
        if what == "send" and path in busy:
            raise ServiceBusServerBusyError

    rig.memory.fail = fail
    await rig.send(messages(1))
    busy |= {path for side, path in rig.memory.sent if side is Side.SECONDARY}
    report = await rig.send(messages(1))
    assert report.backlog == 1
    assert 10.0 not in rig.clock.waited
    assert not any(queue.is_out(rig.clock.now()) for queue in rig.board.snapshot().queues)


async def test_when_all_backlog_queues_throttle_it_waits(tmp_path: Path) -> None:
    rig = Rig(tmp_path, interval=0.0)
    calm = [False]

    def fail(what: str, side: Side, path: str) -> None:
        if side is Side.PRIMARY:
            raise ServiceBusConnectionError
        if what == "send" and not calm[0]:
            raise ServiceBusServerBusyError

    rig.memory.fail = fail
    rig.clock.on_sleep = lambda seconds: calm.__setitem__(0, seconds == 10.0 or calm[0])
    report = await rig.send(messages(1))
    assert report.backlog == 1
    assert 10.0 in rig.clock.waited


async def test_a_throttled_backlog_may_ask_for_a_longer_wait(tmp_path: Path) -> None:
    rig = Rig(tmp_path, interval=0.0)
    busy = [True]

    def fail(what: str, side: Side, path: str) -> None:
        if side is Side.PRIMARY:
            raise ServiceBusConnectionError
        if what == "send" and busy[0]:
            raise ServiceBusServerBusyError(message="Please wait 25 seconds and try again.")

    rig.memory.fail = fail
    rig.clock.on_sleep = lambda seconds: busy.__setitem__(0, seconds == 0.0)
    report = await rig.send(messages(3))
    assert (report.backlog, [waited for waited in rig.clock.waited if waited]) == (3, [25.0])


async def test_all_queues_out_reports_overflow_with_every_queues_last_error(tmp_path: Path) -> None:
    rig = Rig(tmp_path, interval=0.0)
    rig.memory.fail = _always(ServiceBusConnectionError)
    report = await rig.send(messages(7))
    assert [one.message for one in report.overflow] == messages(7)
    assert report.total == 7
    text = str(report.all_out)
    assert all(f"{BACKLOG}{queue}" in text for queue in range(3))
    assert report.error is None


def _always(error: Any) -> Any:
    def fail(what: str, side: Side, path: str) -> None:
        raise error()

    return fail


async def test_a_missing_claim_on_the_backlog_names_the_secondary(tmp_path: Path) -> None:
    rig = Rig(tmp_path, interval=0.0)

    def fail(what: str, side: Side, path: str) -> None:
        raise ServiceBusConnectionError() if side is Side.PRIMARY else ServiceBusAuthorizationError()

    rig.memory.fail = fail
    report = await rig.send(messages(2))
    assert report.abandoned == 2
    assert "secondary.example" in str(report.error)
    assert not any(queue.is_out(rig.clock.now()) for queue in rig.board.snapshot().queues)


async def test_a_bad_message_empties_no_rotation(tmp_path: Path) -> None:
    rig = Rig(tmp_path, interval=0.0)
    sent = messages(20)
    rig.fail_primary(ServiceBusConnectionError)
    bad = "m7"
    rig.memory.refuse = lambda m: rejection(b"amqp:not-allowed") if ids([m]) == [bad] else None
    report = await rig.send(sent)
    assert report.backlog == 19
    assert [one.position for one in report.overflow] == [7], "its own entity has not judged it"
    assert report.rejected == ()
    assert not any(queue.is_out(rig.clock.now()) for queue in rig.board.snapshot().queues)


async def test_a_message_that_the_envelope_makes_too_large_goes_to_overflow(tmp_path: Path) -> None:
    rig = Rig(tmp_path, interval=0.0)
    rig.memory.limits = LinkLimits(1000, 1000)
    near = encode_message(b"x" * 950, message_id="near")
    assert len(near) <= 1000
    assert (await rig.send([near])).primary == 1
    rig.fail_primary(ServiceBusConnectionError)
    report = await rig.send([near, *messages(2)])
    assert [one.message for one in report.overflow] == [near]
    assert "envelope" in report.overflow[0].reason
    assert report.backlog == 2


async def test_a_message_over_the_links_limit_is_rejected_without_a_send(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.memory.limits = LinkLimits(1000, 1000)
    report = await rig.send([*messages(1), encode_message(b"x" * 2000, message_id="big"), *messages(1, start=5)])
    assert [one.position for one in report.rejected] == [1]
    assert ids(rig.primary()) == ["m0", "m5"]


async def test_an_alias_among_the_properties_is_a_bad_message(tmp_path: Path) -> None:
    rig = Rig(tmp_path, interval=0.0)
    rig.fail_primary(ServiceBusConnectionError)
    wrong = encode_message(b"x", message_id="w", application_properties={"x-ms-path": "elsewhere"})
    report = await rig.send([*messages(1), wrong])
    assert (report.backlog, [one.message for one in report.rejected]) == (1, [wrong])


async def test_properties_of_every_type_come_back_from_the_envelope(tmp_path: Path) -> None:
    rig = Rig(tmp_path, interval=0.0)
    rig.fail_primary(ServiceBusConnectionError)
    message = encode_message(
        b"x", message_id="1", session_id="s", ttl_ms=60_000, created_ms=1, scheduled_ms=5,
        application_properties={"long": Long(5), "int": 5, "text": "t", "yes": True, "half": 0.5},
    )  # fmt: skip
    await rig.send([message])
    [held] = rig.backlogged()
    assert restore(held).message == message


# Batches


async def test_a_message_larger_than_a_batch_goes_alone(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.memory.limits = LinkLimits(10_000, 1000)
    big = encode_message(b"x" * 5000, message_id="big")
    sent = [*messages(2), big, *messages(2, start=2)]
    report = await rig.send(sent)
    assert rig.primary() == sent
    assert report.transfers == 3


@given(st.lists(st.integers(0, 900), min_size=1, max_size=60), st.integers(1000, 3000))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
async def test_batches_never_exceed_the_links_limit_and_keep_order(
    tmp_path: Path, sizes: list[int], limit: int
) -> None:
    rig = Rig(tmp_path)
    rig.memory.limits = LinkLimits(limit, limit)
    largest: list[int] = []
    rig.memory.seen = lambda payload: largest.append(len(payload))
    sent = [encode_message(b"x" * size, message_id=f"{n}") for n, size in enumerate(sizes)]
    report = await rig.send(sent)
    assert rig.primary() == sent
    assert max(largest) <= limit
    assert report.primary == len(sent)
    assert report.transfers == rig.memory.transfers, "a batch was over the limit, and had to be halved"


async def test_a_partitioned_entity_gets_batches_of_one_key_in_order(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    keys = ["a", "a", "b", "b", "a", None, None]
    sent = [encode_message(b"x", message_id=f"{n}", partition_key=key) for n, key in enumerate(keys)]
    report = await rig.send(sent, partitioned=True)
    assert rig.primary() == sent
    assert report.transfers == 4


# Coming back


async def test_after_a_successful_ping_the_next_batch_goes_to_the_primary(tmp_path: Path) -> None:
    rig = Rig(tmp_path, interval=0.0)
    rig.fail_primary(ServiceBusConnectionError)
    await rig.send(messages(1))
    assert not await rig.pinger.ping("orders")  # not due yet
    rig.clock.time += 60
    assert await rig.pinger.ping("orders")
    assert rig.board.view("orders").health is Health.FAILED_OVER
    rig.heal()
    rig.clock.time += 60
    assert await rig.pinger.ping("orders")
    assert rig.board.view("orders").health is Health.PROBATION
    report = await rig.send(messages(3))
    assert (report.primary, report.backlog) == (3, 0)
    assert rig.board.view("orders").health is Health.HEALTHY


async def test_an_entity_that_takes_pings_but_no_messages_does_not_flap(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.fail_primary(ServiceBusQuotaExceededError)
    await rig.send(messages(1))

    def full(what: str, side: Side, path: str) -> None:
        pass

    rig.memory.fail = full
    rig.clock.time += 61
    assert await rig.pinger.ping("orders")
    rig.fail_primary(ServiceBusQuotaExceededError)
    begun = rig.clock.now()
    report = await rig.send(messages(4))
    assert report.backlog == 4
    assert rig.clock.now() == begun  # at once, not after another interval


async def test_a_hint_is_settled_by_a_ping_before_the_next_batch(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.board.hint("orders")
    assert (await rig.send(messages(1))).primary == 1
    assert len(rig.primary()) == 2  # the ping and the message
    rig.clock.time += 100
    rig.fail_primary(ServiceBusConnectionError)
    rig.board.hint("orders")
    begun = rig.clock.now()
    assert (await rig.send(messages(2))).backlog == 2
    assert rig.clock.now() == begun  # no interval of its own


async def test_the_next_outage_begins_with_short_waits_again(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    sender = rig.sender()
    for _ in range(2):
        rig.clock.waited.clear()
        until = rig.clock.now() + 30
        rig.fail_primary(ServiceBusConnectionError)
        rig.clock.on_sleep = lambda seconds, until=until: rig.heal() if rig.clock.now() > until else None  # type: ignore[misc]
        await sender.send(messages(1))
        assert max(rig.clock.waited) > 2.0, "the waits did not grow"
        assert rig.clock.waited[0] <= 0.1
    assert sender.report().primary == 2


async def test_the_waits_are_short_again_also_where_another_process_saw_the_entity_heal(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    sender = rig.sender()
    rig.fail_primary(ServiceBusConnectionError)

    def healed(seconds: float) -> None:
        if rig.clock.now() > 1030:
            rig.heal()
            rig.board.record("orders", SendSucceeded(rig.board.view("orders").epoch))

    rig.clock.on_sleep = healed
    await sender.send(messages(1))
    rig.clock.on_sleep = lambda seconds: rig.heal()
    rig.clock.waited.clear()
    rig.fail_primary(ServiceBusConnectionError)
    await sender.send(messages(1))
    assert max(rig.clock.waited) <= 0.1
    assert sender.report().primary == 2


# What a review found


async def test_batches_grow_again_after_a_bad_message_was_found(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    sent = messages(9000)
    _refuse_batches_with(rig, {sent[0]})
    report = await rig.send(sent)
    assert (report.primary, len(report.rejected)) == (8999, 1)
    # Some twelve halvings of the first 4,500, as many doublings, then whole batches: never one by one.
    assert report.transfers < 30


async def test_a_batch_tries_each_backlog_queue_once_even_where_a_cooldown_ends_meanwhile(tmp_path: Path) -> None:
    rig = Rig(tmp_path, interval=0.0)
    tries: list[str] = []

    def fail(what: str, side: Side, path: str) -> None:
        if side is Side.PRIMARY:
            raise ServiceBusConnectionError
        tries.append(path)
        rig.clock.time += 61  # longer than the cool-down
        if len(tries) < 10:
            raise ServiceBusConnectionError

    rig.memory.fail = fail
    report = await rig.send(messages(2))
    assert sorted(tries) == [f"{BACKLOG}{queue}" for queue in range(3)]
    assert (report.backlog, len(report.overflow)) == (0, 2)


async def test_what_is_misconfigured_is_not_diverted_by_a_hint_either(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.fail_primary(ServiceBusAuthorizationError)
    rig.board.hint("orders")
    report = await rig.send(messages(3))
    assert (report.backlog, report.abandoned) == (0, 3)
    assert report.error is not None
    assert rig.board.view("orders").health is Health.HEALTHY


async def test_a_hinted_entity_is_not_diverted_because_this_process_had_no_link_to_spare(tmp_path: Path) -> None:
    rig = Rig(tmp_path, links=1)
    rig.board.hint("orders")
    async with rig.links.use(Side.PRIMARY, "other"):
        assert await rig.pinger.ping("orders")
    assert rig.board.view("orders").health is Health.HEALTHY
    assert not rig.board.view("orders").doubted


async def test_a_throttled_backlog_queue_is_not_sent_to_before_the_wait_is_over(tmp_path: Path) -> None:
    rig = Rig(tmp_path, interval=0.0, queues=1)
    tries: list[float] = []

    def fail(what: str, side: Side, path: str) -> None:
        if side is Side.PRIMARY:
            raise ServiceBusConnectionError
        if what == "send":
            tries.append(rig.clock.now())
            if len(tries) < 4:
                raise ServiceBusServerBusyError

    rig.memory.fail = fail
    assert (await rig.send(messages(3))).backlog == 3
    assert [later - earlier for earlier, later in pairwise(tries)] == [10.0, 10.0, 10.0]


async def test_what_waits_for_a_throttled_backlog_goes_to_the_primary_once_that_is_back(tmp_path: Path) -> None:
    rig = Rig(tmp_path, interval=0.0, queues=1, ping_interval=5.0)

    def fail(what: str, side: Side, path: str) -> None:
        assert rig.clock.now() < 2000, "stuck with the backlog"
        if side is Side.PRIMARY and rig.clock.now() < 1015:
            raise ServiceBusConnectionError
        if side is Side.SECONDARY:
            raise ServiceBusServerBusyError

    rig.memory.fail = fail

    async def pings() -> None:
        while True:
            await rig.pinger.ping("orders")
            await asyncio.sleep(0)

    pinging = asyncio.create_task(pings())
    report = await rig.send(messages(3))
    pinging.cancel()
    assert (report.primary, report.backlog) == (3, 0)


async def test_a_message_that_the_backlog_finds_too_large_is_for_overflow(tmp_path: Path) -> None:
    rig = Rig(tmp_path, interval=0.0)
    rig.fail_primary(ServiceBusConnectionError)
    rig.memory.refuse = lambda message: MessageSizeExceededError() if ids([message]) == ["m1"] else None
    report = await rig.send(messages(3))
    assert [one.position for one in report.overflow] == [1]
    assert (report.backlog, report.rejected) == (2, ())


async def test_a_healthy_batch_costs_one_look_at_the_board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(tmp_path)
    await rig.send(messages(1))
    looks: list[str] = []
    for name in ("view", "record"):
        whole = getattr(rig.board, name)
        monkeypatch.setattr(rig.board, name, lambda *a, n=name, w=whole: (looks.append(n), w(*a))[1])
    await rig.send(messages(1))
    assert looks == ["view"]


async def test_failing_entities_that_outnumber_the_links_leave_the_healthy_one_its_own(tmp_path: Path) -> None:
    class Slow(MemoryTransport):
        healthy = 0

        async def open(self, side: Side, path: str) -> MemoryLink:
            if path != "healthy":
                await asyncio.sleep(0.02)
                raise ServiceBusConnectionError
            self.healthy += 1
            return await super().open(side, path)

    slow = Slow()
    rig = Rig(tmp_path, slow, links=4, clock=MonotonicClock())
    for number in range(12):
        rig.board.record(f"dead-{number}", SendFailed(0, "gone"))
    failing = [asyncio.create_task(rig.send(messages(1), f"dead-{number}")) for number in range(12)]
    sender = rig.sender("healthy")
    for _ in range(50):
        await sender.send(messages(1))
        await asyncio.sleep(0.002)
    report = sender.report()
    for task in failing:
        task.cancel()
    await asyncio.gather(*failing, return_exceptions=True)
    assert (report.primary, report.changes, slow.healthy) == (50, (), 1)


class Hanging(MemoryTransport):
    """Some of the backlog queues answer nothing until a deadline, when they are opened or once they are open."""

    def __init__(self, dead: set[str], what: str) -> None:
        super().__init__()
        self.attempts: Counter[str] = Counter()

        async def hang(now: str, side: Side, path: str) -> None:
            if side is Side.PRIMARY:
                raise ServiceBusConnectionError
            if path in dead and now == what:
                self.attempts[path] += 1
                await asyncio.sleep(0.02)
                raise TimeoutError

        self.hang = hang

    async def open(self, side: Side, path: str) -> MemoryLink:
        await self.hang("open", side, path)
        link = await super().open(side, path)
        send = link.send

        async def hanging(payload: bytes, *, batch: bool) -> None:
            try:
                await self.hang("send", side, path)
            except BaseException:
                link.broken = True
                raise
            await send(payload, batch=batch)

        link.send = hanging  # type: ignore[method-assign]
        return link


@pytest.mark.parametrize("what", ["open", "send"])
async def test_one_lane_finds_out_for_all_that_wait_for_the_same_dead_backlog_queue(tmp_path: Path, what: str) -> None:
    dead = f"{BACKLOG}0"
    transport = Hanging({dead}, what)
    rig = Rig(tmp_path, transport, interval=0.0, queues=2)
    reports = await asyncio.gather(*(rig.send(messages(3), f"entity-{number}") for number in range(20)))
    assert [(report.backlog, report.total) for report in reports] == [(3, 3)] * 20
    assert transport.attempts == {dead: 1}
    await rig.links.close()
    assert rig.links.open_count == 0


async def test_where_all_backlog_queues_are_dead_each_is_tried_once_for_all(tmp_path: Path) -> None:
    transport = Hanging({f"{BACKLOG}{queue}" for queue in range(4)}, "open")
    rig = Rig(tmp_path, transport, interval=0.0, queues=4)
    reports = await asyncio.gather(*(rig.send(messages(3), f"entity-{number}") for number in range(40)))
    assert all(len(report.overflow) == report.total == 3 for report in reports)
    assert set(transport.attempts.values()) == {1}


async def test_what_waits_for_a_backlog_queue_goes_to_the_primary_that_came_back_meanwhile(tmp_path: Path) -> None:
    transport = Hanging({f"{BACKLOG}0"}, "open")
    rig = Rig(tmp_path, transport, interval=0.0, queues=1)

    async def calm(now: str, side: Side, path: str) -> None: ...

    begun = asyncio.create_task(rig.send(messages(1), "first"))
    rig.board.record("second", SendFailed(0, "gone"))
    waiting = asyncio.create_task(rig.send(messages(1), "second"))
    await asyncio.sleep(0)
    async with asyncio.timeout(20):
        while not transport.attempts:
            await asyncio.sleep(0)
        state = rig.board.view("second")
        rig.board.record("second", PingSucceeded(state.epoch, rig.clock.now()))
        transport.hang = calm
        assert (await waiting).primary == 1
        assert len((await begun).overflow) == 1


async def test_an_entity_that_fails_has_its_attempts_also_where_the_lanes_of_others_never_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_sb_sink.links.JUST_USED", 0.05)
    stop = asyncio.Event()

    class Refusing(MemoryTransport):
        async def open(self, side: Side, path: str) -> MemoryLink:
            if path == "refused":
                raise ServiceBusConnectionError
            return await super().open(side, path)

    rig = Rig(tmp_path, Refusing(), links=4, clock=MonotonicClock(), interval=0.2)

    async def never_stops(entity: str) -> EntityReport:
        sender = rig.sender(entity)
        while not stop.is_set():
            await sender.send(messages(1))
            await asyncio.sleep(0)
        return sender.report()

    busy = [asyncio.create_task(never_stops(f"busy-{number}")) for number in range(5)]
    async with asyncio.timeout(30):
        report = await rig.send(messages(1), "refused")
    stop.set()
    assert (report.backlog, [change.after for change in report.changes]) == (1, [Health.SUSPECT, Health.FAILED_OVER])
    assert all(lane.changes == () and lane.primary == lane.total > 0 for lane in await asyncio.gather(*busy))


async def test_a_hinted_entity_that_is_not_there_is_out_and_its_messages_are_not_to_blame(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.board.hint("orders")
    assert rig.board.take_ping("orders") is not None, "another process asks"
    rig.fail_primary(MessagingEntityNotFoundError)
    report = await rig.send(messages(3))
    assert (report.backlog, report.rejected) == (3, ())


async def test_an_entity_that_took_a_ping_and_is_gone_then_is_out(tmp_path: Path) -> None:
    rig = Rig(tmp_path, interval=0.0)
    rig.fail_primary(ServiceBusConnectionError)
    await rig.send(messages(1))
    rig.heal()
    rig.clock.time += 61
    assert await rig.pinger.ping("orders")
    assert rig.board.view("orders").health is Health.PROBATION
    rig.fail_primary(MessagingEntityNotFoundError)
    report = await rig.send(messages(3))
    assert (report.backlog, report.rejected) == (3, ())


@pytest.mark.parametrize("error", [IncompatibleSdkError(found="8", works="7", missing="it"), ClosedError("It")])
async def test_what_says_nothing_of_the_entity_is_raised_and_diverts_nobody(tmp_path: Path, error: Exception) -> None:
    rig = Rig(tmp_path, interval=0.0)
    rig.memory.fail = lambda what, side, path: (_ for _ in ()).throw(error)
    with pytest.raises(type(error)):
        await rig.send(messages(1))
    rig.board.hint("orders")
    with pytest.raises(type(error)):
        await rig.pinger.ping("orders")
    assert rig.board.view("orders").health is Health.HEALTHY
