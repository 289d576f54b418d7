"""Each fault comes out of a raw sender as what `faults` sorts into the row that DESIGN gives it, and in time."""

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusError

from spark_sb_sink import faults
from spark_sb_sink.broker import NamespaceHandle
from spark_sb_sink.broker.faults import (
    BlackHole,
    Busy,
    CbsAnswer,
    CutMidBatch,
    Fault,
    FullQuota,
    LoseAck,
    Refuse,
    Reject,
    Shape,
)
from spark_sb_sink.faults import Kind, Phase
from spark_sb_sink.wire import RawSender, ping_by_link
from spark_sb_sink.wire.deadline import Deadline
from spark_sb_sink.wire.line import CLOSE_WITHIN
from tests.conftest import await_that
from tests.ticking import ticking
from tests.wire.conftest import Open
from tests.wire.test_sending import message, received

DEADLINE = 1.5
SLACK = 1.0


@dataclass
class Failed:
    error: BaseException
    fault: faults.Fault


async def failing(call: Awaitable[object], during: Phase) -> Failed:
    """What the call raises, sorted; it must not take longer than its deadline."""
    async with ticking() as clock:
        begun = clock.now()
        with pytest.raises((ServiceBusError, TimeoutError)) as caught:
            await call
        assert clock.now() - begun < DEADLINE + SLACK
    return Failed(caught.value, faults.sort(faults.symptom_of(caught.value, during=during)))


@pytest.mark.parametrize(
    ("fault", "kind", "reason"),
    [
        (Refuse(), Kind.ENTITY_FAULT, "connection lost"),
        (BlackHole(after="accept"), Kind.ENTITY_FAULT, "deadline"),
        (CbsAnswer(status=401), Kind.MISCONFIGURED, "token refused"),
        (CbsAnswer(status=403), Kind.MISCONFIGURED, "token refused"),
        (CbsAnswer(status=404), Kind.ENTITY_FAULT, "entity gone"),
        (CbsAnswer(status=500), Kind.ENTITY_FAULT, "token not taken"),
        (Reject(condition="com.microsoft:server-busy", at="attach"), Kind.THROTTLED, "busy"),
        (Reject(condition="amqp:internal-error", at="attach"), Kind.ENTITY_FAULT, "service error"),
    ],
    ids=lambda value: value.kind if isinstance(value, Fault) else "",
)
async def test_an_opening_that_fails(
    client: ServiceBusClient, namespace: NamespaceHandle, queue: str, fault: Fault, kind: Kind, reason: str
) -> None:
    raw = RawSender(client, queue, send_timeout=DEADLINE)
    with namespace.fault(fault):
        failed = await failing(raw.open(), Phase.OPEN)
        assert (failed.fault.kind, failed.fault.reason) == (kind, reason), failed.error
        pinged = await failing(ping_by_link(client, queue, timeout=DEADLINE), Phase.OPEN)
        assert pinged.fault.kind is kind
    assert raw.broken
    await raw.close()
    await ping_by_link(client, queue)


async def test_an_entity_that_is_not_there(client: ServiceBusClient, name: str) -> None:
    failed = await failing(RawSender(client, name, send_timeout=DEADLINE).open(), Phase.OPEN)
    assert type(failed.error).__name__ == "MessagingEntityNotFoundError"
    assert failed.fault.reason == "entity gone"
    never_seen = faults.sort(faults.symptom_of(failed.error, during=Phase.OPEN, seen_healthy=False))
    assert never_seen.kind is Kind.BAD_MESSAGE


async def test_a_disabled_entity(client: ServiceBusClient, namespace: NamespaceHandle, queue: str) -> None:
    namespace.disable(queue)
    failed = await failing(RawSender(client, queue, send_timeout=DEADLINE).open(), Phase.OPEN)
    assert (failed.fault.kind, failed.fault.reason) == (Kind.ENTITY_FAULT, "disabled")


async def test_a_key_without_the_send_claim(namespace: NamespaceHandle, queue: str) -> None:
    listener = namespace.add_policy(f"listen-{queue}", ["Listen"])
    async with ServiceBusClient.from_connection_string(listener, retry_total=0) as client:
        failed = await failing(RawSender(client, queue, send_timeout=DEADLINE).open(), Phase.OPEN)
    assert failed.fault.kind is Kind.MISCONFIGURED
    assert failed.fault.claim == "Send"


async def test_a_wrong_key(namespace: NamespaceHandle, queue: str) -> None:
    head, _, _ = namespace.connection_string.partition("SharedAccessKey=")
    wrong = f"{head}SharedAccessKey=d3Jvbmc=;UseDevelopmentEmulator=true"
    async with ServiceBusClient.from_connection_string(wrong, retry_total=0) as client:
        failed = await failing(RawSender(client, queue, send_timeout=DEADLINE).open(), Phase.OPEN)
    assert (failed.fault.kind, failed.fault.reason) == (Kind.MISCONFIGURED, "token refused")


async def test_a_port_that_nobody_listens_on(queue: str) -> None:
    nowhere = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=a;SharedAccessKey=a2V5;UseDevelopmentEmulator=true"
    async with ServiceBusClient.from_connection_string(nowhere, retry_total=0) as client:
        failed = await failing(RawSender(client, queue, send_timeout=DEADLINE).open(), Phase.OPEN)
    assert (failed.fault.kind, failed.fault.reason) == (Kind.ENTITY_FAULT, "connection lost")


@pytest.mark.parametrize("info", [True, False])
@pytest.mark.parametrize(
    ("condition", "kind", "reason", "split"),
    [
        ("amqp:internal-error", Kind.ENTITY_FAULT, "service error", False),
        ("com.microsoft:operation-cancelled", Kind.ENTITY_FAULT, "service error", False),
        ("com.microsoft:entity-disabled", Kind.ENTITY_FAULT, "disabled", False),
        ("com.microsoft:timeout", Kind.ENTITY_FAULT, "timed out", False),
        ("amqp:resource-limit-exceeded", Kind.ENTITY_FAULT, "quota exceeded", False),
        ("amqp:not-found", Kind.ENTITY_FAULT, "entity gone", False),
        ("com.microsoft:server-busy", Kind.THROTTLED, "busy", False),
        ("amqp:unauthorized-access", Kind.MISCONFIGURED, "not authorised", False),
        ("amqp:not-allowed", Kind.BAD_MESSAGE, "rejected", True),
        ("com.microsoft:argument-error", Kind.BAD_MESSAGE, "rejected", True),
        ("amqp:link:message-size-exceeded", Kind.BAD_MESSAGE, "too large", True),
    ],
)
async def test_a_rejection_has_its_condition_and_leaves_the_link_alive(
    sender: Open,
    namespace: NamespaceHandle,
    queue: str,
    condition: str,
    kind: Kind,
    reason: str,
    split: bool,
    info: bool,
) -> None:
    raw = await sender(queue, send_timeout=DEADLINE)
    namespace.hang(Reject(condition=condition, description="what for", info=info, count=1), queue)
    failed = await failing(raw.send(message(1), batch=False), Phase.SEND)
    assert (failed.fault.kind, failed.fault.reason, failed.fault.split) == (kind, reason, split)
    assert "what for" in failed.fault.text
    assert not raw.broken
    await raw.send(message(2), batch=False)


async def test_server_busy(sender: Open, namespace: NamespaceHandle, queue: str) -> None:
    raw = await sender(queue, send_timeout=DEADLINE)
    namespace.hang(Busy(count=1), queue)
    failed = await failing(raw.send(message(1), batch=False), Phase.SEND)
    assert (failed.fault.kind, failed.fault.wait) == (Kind.THROTTLED, 10.0)
    await raw.send(message(1), batch=False)


async def test_a_full_quota(sender: Open, namespace: NamespaceHandle, queue: str) -> None:
    raw = await sender(queue, send_timeout=DEADLINE)
    with namespace.fault(FullQuota(), queue):
        failed = await failing(raw.send(message(1), batch=False), Phase.SEND)
        assert (failed.fault.kind, failed.fault.reason) == (Kind.ENTITY_FAULT, "quota exceeded")


async def test_a_message_over_the_limit(sender: Open, queue: str) -> None:
    raw = await sender(queue, send_timeout=DEADLINE)
    failed = await failing(raw.send(message(1, 300_000), batch=False), Phase.SEND)
    assert (failed.fault.kind, failed.fault.reason) == (Kind.BAD_MESSAGE, "too large")


@pytest.mark.parametrize(
    ("fault", "reason", "stored"),
    [
        (LoseAck(count=1), "connection lost", 1),
        (CutMidBatch(after_bytes=100_000, count=1), "connection lost", 0),
        (Refuse(), "connection lost", 0),
    ],
    ids=lambda value: value.kind if isinstance(value, Fault) else "",
)
async def test_a_connection_that_is_cut_leaves_open_what_became_of_the_message(
    sender: Open, namespace: NamespaceHandle, queue: str, fault: Fault, reason: str, stored: int
) -> None:
    raw = await sender(queue, send_timeout=DEADLINE)
    hung = namespace.hang(fault, queue)
    failed = await failing(raw.send(message(1, 150_000), batch=False), Phase.SEND)
    namespace.undo(hung) if isinstance(fault, Refuse) else None
    assert (failed.fault.kind, failed.fault.reason) == (Kind.ENTITY_FAULT, reason)
    assert raw.broken
    assert namespace.counts(queue)["active"] == stored


@pytest.mark.parametrize("size", [100, 250_000])
async def test_a_black_hole_after_the_attach_ends_at_the_deadline(
    client: ServiceBusClient, namespace: NamespaceHandle, queue: str, size: int
) -> None:
    with namespace.fault(BlackHole(after="attach"), queue):
        raw = RawSender(client, queue, send_timeout=DEADLINE)
        failed = await failing(_open_and_send(raw, message(1, size)), Phase.SEND)
        assert (failed.fault.kind, failed.fault.reason) == (Kind.ENTITY_FAULT, "deadline")
        assert queue in str(failed.error)
        assert raw.broken
        async with ticking() as clock:
            begun = clock.now()
            await raw.close()
            assert clock.now() - begun < CLOSE_WITHIN + SLACK


async def _open_and_send(raw: RawSender, payload: bytes) -> None:
    await raw.open()
    await raw.send(payload, batch=False)


async def test_a_network_too_slow_for_the_payload_ends_at_the_deadline(
    sender: Open, namespace: NamespaceHandle, queue: str
) -> None:
    raw = await sender(queue, send_timeout=DEADLINE)
    with namespace.fault(Shape(bandwidth=20_000)):
        failed = await failing(raw.send(message(1, 250_000), batch=False), Phase.SEND)
    assert failed.fault.reason == "deadline"


@pytest.mark.parametrize(
    ("happen", "reason"),
    [
        (lambda namespace, queue: namespace.delete(queue), "entity gone"),
        (lambda namespace, queue: namespace.disable(queue), "disabled"),
        (lambda namespace, queue: namespace.cut(queue), "connection lost"),
        (lambda namespace, queue: namespace.stop(), "connection lost"),
    ],
    ids=["deleted", "disabled", "cut", "stopped"],
)
async def test_what_ends_an_idle_link_is_known_before_the_next_send(
    sender: Open, namespace: NamespaceHandle, queue: str, happen: Callable[[NamespaceHandle, str], None], reason: str
) -> None:
    raw = await sender(queue, send_timeout=DEADLINE)
    await raw.send(message(1), batch=False)
    happen(namespace, queue)
    async with asyncio.timeout(10):
        while not raw.broken:
            await asyncio.sleep(0.01)
    failed = await failing(raw.send(message(2), batch=False), Phase.SEND)
    assert (failed.fault.kind, failed.fault.reason) == (Kind.ENTITY_FAULT, reason)


async def test_an_idle_sender_that_the_service_detached_is_a_stale_link(
    sender: Open, namespace: NamespaceHandle, queue: str
) -> None:
    raw = await sender(queue)
    namespace.idle_detach_after(0.2)
    try:
        async with asyncio.timeout(10):
            while not raw.broken:
                await asyncio.sleep(0.01)
    finally:
        namespace.idle_detach_after(600)
    failed = await failing(raw.send(message(1), batch=False), Phase.SEND)
    stale = faults.sort(faults.symptom_of(failed.error, link_idle=61.0))
    assert stale.kind is Kind.STALE_LINK


async def test_a_token_that_runs_out_is_renewed_before_a_send(sender: Open, queue: str) -> None:
    raw = await sender(queue)
    authenticator = raw._line.handler._cbs_authenticator
    authenticator._refresh_window = 10**6  # it is always time for a new one
    await raw.send(message(1), batch=False)
    assert authenticator._refresh_window < 10**6


async def test_a_token_that_is_refused_when_renewed_fails_the_send(
    sender: Open, namespace: NamespaceHandle, queue: str
) -> None:
    raw = await sender(queue, send_timeout=DEADLINE)
    raw._line.handler._cbs_authenticator._refresh_window = 10**6
    with namespace.fault(CbsAnswer(status=401)):
        failed = await failing(raw.send(message(1), batch=False), Phase.SEND)
    assert (failed.fault.kind, failed.fault.reason) == (Kind.MISCONFIGURED, "token refused")
    assert raw.broken


async def test_a_deadline_holds_against_code_that_loses_a_cancellation() -> None:
    lost = 0

    async def deaf() -> None:
        nonlocal lost
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                lost += 1
                if lost == 3:
                    raise

    with pytest.raises(TimeoutError):
        async with Deadline(0.05):
            await deaf()
    assert lost == 3


async def test_a_process_that_stood_still_reads_what_came_meanwhile_before_its_time_is_up() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        reader, writer = await asyncio.open_connection(sock=ours)

        def stand_still() -> None:
            theirs.send(b"x")
            time.sleep(0.3)

        asyncio.get_running_loop().call_soon(stand_still)
        async with Deadline(0.1):
            assert await reader.readexactly(1) == b"x"
        asyncio.get_running_loop().call_soon(time.sleep, 0.3)
        with pytest.raises(TimeoutError):
            await _within(Deadline(0.1), reader.readexactly(1))
        writer.close()


async def _within(deadline: Deadline, work: Awaitable[object]) -> object:
    async with deadline:
        return await work


async def test_a_deadline_leaves_a_cancellation_from_outside_alone() -> None:
    async def bounded() -> None:
        async with Deadline(30):
            await asyncio.sleep(60)

    task = asyncio.create_task(bounded())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_send_cancelled_from_outside_breaks_the_sender(
    sender: Open, namespace: NamespaceHandle, queue: str
) -> None:
    raw = await sender(queue)
    with namespace.fault(Shape(latency=2.0)):
        sending = asyncio.create_task(raw.send(message(1), batch=False))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
    assert raw.broken


async def test_fifty_broken_senders_leave_nothing_behind(
    client: ServiceBusClient, namespace: NamespaceHandle, queue: str
) -> None:
    await ping_by_link(client, queue)
    tasks, files = len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd"))
    some = [LoseAck(), BlackHole(after="attach"), BlackHole(after="accept"), CbsAnswer(status=500), Refuse()]
    for fault in some:
        with namespace.fault(fault, None if fault == BlackHole(after="accept") else queue):
            senders = [RawSender(client, queue, send_timeout=0.5) for _ in range(10)]
            tried = await asyncio.gather(*(_open_and_send(raw, message(1)) for raw in senders), return_exceptions=True)
            assert all(isinstance(error, ServiceBusError | TimeoutError) for error in tried), tried
            await asyncio.gather(*(raw.close() for raw in senders))
    assert len(asyncio.all_tasks()) == tasks
    assert len(os.listdir("/proc/self/fd")) == files
    await_that(lambda: namespace.overview()["connections"] == 0)


async def test_a_healthy_sender_leaves_nothing_behind_either(
    client: ServiceBusClient, namespace: NamespaceHandle, queue: str
) -> None:
    await ping_by_link(client, queue)
    tasks, files = len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd"))
    raw = RawSender(client, queue)
    await raw.open()
    await raw.send(message(1), batch=False)
    await raw.close()
    assert len(asyncio.all_tasks()) == tasks
    assert len(os.listdir("/proc/self/fd")) == files
    assert [m.message_id for m in await received(client, queue, 1)] == ["m1"]
