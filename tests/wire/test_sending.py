"""What leaves a raw sender is what was put in, once, at the speed of the link."""

import asyncio
import time
from collections.abc import Awaitable
from typing import Any

import pytest
from azure.servicebus.aio import ServiceBusClient

from spark_sb_sink.amqp import batch_payload, batch_prefix, encode_message
from spark_sb_sink.broker import BlackHole, NamespaceHandle
from spark_sb_sink.errors import ClosedError
from spark_sb_sink.transport import LinkLimits
from spark_sb_sink.wire import RawSender, ping_by_link
from tests.conftest import await_that
from tests.wire.conftest import Open


def message(number: int, size: int = 100) -> bytes:
    return encode_message(b"%d " % number + b"x" * size, message_id=f"m{number}", application_properties={"n": number})


async def received(client: ServiceBusClient, queue: str, count: int) -> list[Any]:
    """What the plain SDK receives."""
    found: list[Any] = []
    async with client.get_queue_receiver(queue, receive_mode="receiveanddelete") as plain:
        while len(found) < count:
            batch = await plain.receive_messages(count - len(found), max_wait_time=10)
            assert batch, f"{len(found)} of {count} came"
            found += batch
    return found


async def test_a_message_arrives_as_the_plain_sdk_would_have_sent_it(
    client: ServiceBusClient, sender: Open, queue: str
) -> None:
    raw = await sender(queue)
    await raw.send(message(7), batch=False)
    (found,) = await received(client, queue, 1)
    assert b"".join(found.body) == b"7 " + b"x" * 100
    assert found.message_id == "m7"
    assert found.application_properties == {b"n": 7}


async def test_a_batch_arrives_as_its_messages_in_order(client: ServiceBusClient, sender: Open, queue: str) -> None:
    raw = await sender(queue)
    messages = [message(number) for number in range(500)]
    await raw.send(batch_payload(batch_prefix(messages[0]), messages), batch=True)
    found = await received(client, queue, 500)
    assert [one.message_id for one in found] == [f"m{number}" for number in range(500)]


async def test_bytes_stay_the_same_bytes(sender: Open, receiver: Open, queue: str) -> None:
    """Also of what the SDK cannot write: a data section with a wide size, a described property."""
    body = b"\x00\x53\x75\xb0\x00\x00\x00\x03abc"
    properties = b"\x00\x53\x74\xc1\x16\x02\xa1\x01k\x00\xa3\x0acom.x:type\x80\x00\x00\x00\x00\x00\x00\x00\x05"
    properties = properties[:4] + bytes((len(properties) - 5,)) + properties[5:]
    raw = await sender(queue)
    await raw.send(properties + body, batch=False)
    (found,) = await (await receiver(queue)).receive(1, 10)
    assert found.payload.endswith(properties + body)


async def test_a_topic_is_sent_to_like_a_queue(
    client: ServiceBusClient, sender: Open, namespace: NamespaceHandle, name: str
) -> None:
    namespace.create_topic(name)
    namespace.create_subscription(name, "all")
    await (await sender(name)).send(message(1), batch=False)
    async with client.get_subscription_receiver(name, "all") as plain:
        assert [m.message_id for m in await plain.receive_messages(1, max_wait_time=10)] == ["m1"]


async def test_the_limits_are_the_links(sender: Open, queue: str) -> None:
    raw = await sender(queue)
    assert raw.limits == LinkLimits(max_message_size=256 * 1024, max_batch_size=256 * 1024)


async def test_payloads_of_many_frames_go_out_whole_also_side_by_side(sender: Open, receiver: Open, queue: str) -> None:
    raw = await sender(queue)
    await asyncio.gather(*(raw.send(message(number, 200_000), batch=False) for number in range(20)))
    into = await receiver(queue)
    sizes = [len(one.payload) for _ in range(20) for one in await into.receive(1, 10)]
    assert len(sizes) == 20
    assert min(sizes) > 200_000


async def test_sends_side_by_side_keep_their_order(client: ServiceBusClient, sender: Open, queue: str) -> None:
    raw = await sender(queue)
    await asyncio.gather(*(raw.send(message(number), batch=False) for number in range(2500)))
    found = await received(client, queue, 2500)
    assert [one.message_id for one in found] == [f"m{number}" for number in range(2500)]


async def test_a_batch_costs_no_work_per_message(sender: Open, namespace: NamespaceHandle, name: str) -> None:
    """1,100 messages in a transfer must cost about what one message of that size costs. Compared within one run."""
    namespace.create_queue(name, discard=True)
    raw = await sender(name)
    batch = batch_payload(b"", [message(1)] * 1100)

    async def cost(payload: bytes, *, batch: bool) -> float:
        before = time.process_time()
        for _ in range(10):
            await raw.send(payload, batch=batch)
        return time.process_time() - before

    many = min([await cost(batch, batch=True) for _ in range(5)])
    one = min([await cost(message(1, len(batch) - 200), batch=False) for _ in range(5)])
    assert many < 5 * one, f"{many / one:.1f} times as much"


async def test_an_opening_does_not_poll(client: ServiceBusClient, sender: Open, queue: str) -> None:
    """As the SDK's own does, for half a second. Compared within one run."""

    async def plain() -> None:
        async with client.get_queue_sender(queue) as opened:
            await opened.create_message_batch()  # for which the link has to be open

    async def took(opening: Awaitable[object]) -> float:
        begun = time.monotonic()
        await opening
        return time.monotonic() - begun

    ours, theirs = [], []
    for _ in range(3):
        ours.append(await took(sender(queue)))
        theirs.append(await took(plain()))
    assert min(ours) < 0.7 * min(theirs), (ours, theirs)


async def test_last_used_follows_the_given_clock(sender: Open, queue: str) -> None:
    now = 5.0
    raw = await sender(queue, clock=lambda: now)
    assert raw.last_used == 5.0
    now = 77.0
    await raw.send(message(1), batch=False)
    assert raw.last_used == 77.0


async def test_a_closed_sender_says_so(client: ServiceBusClient, queue: str) -> None:
    raw = RawSender(client, queue)
    await raw.open()
    await raw.close()
    await raw.close()
    with pytest.raises(ClosedError, match=f"The link to {queue} is closed"):
        await raw.send(message(1), batch=False)


async def test_a_ping_by_link_attaches_and_sends_nothing(
    client: ServiceBusClient, namespace: NamespaceHandle, queue: str
) -> None:
    await ping_by_link(client, queue)
    assert namespace.counts(queue)["active"] == 0
    await_that(lambda: namespace.overview()["connections"] == 0)


async def test_what_opening_took_is_taken_off_the_first_send(
    client: ServiceBusClient, namespace: NamespaceHandle, queue: str
) -> None:
    """So that one attempt, opening and sending, lasts one deadline. Compared within one run."""

    async def cut_off_after(raw: RawSender) -> float:
        begun = time.monotonic()
        with pytest.raises(TimeoutError):
            await raw.send(message(1), batch=False)
        return time.monotonic() - begun

    quick, slow = (RawSender(client, queue, send_timeout=3.0) for _ in range(2))
    await asyncio.gather(quick.open(), slow.open())
    slow._spent = 2.7  # as if opening had taken so long
    namespace.hang(BlackHole())
    waited = await asyncio.gather(cut_off_after(quick), cut_off_after(slow))
    assert waited[1] < 0.5 * waited[0]
    await asyncio.gather(quick.close(), slow.close())
