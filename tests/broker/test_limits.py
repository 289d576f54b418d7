"""How much the broker takes, by tier and by constant, and that what is settled or gone leaves room."""

import asyncio
import inspect
import struct
from collections.abc import AsyncIterator, Sized
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient
from proton import ConnectionException, ProtonException
from proton.utils import BlockingConnection

from spark_sb_sink.broker import BrokerProcess, ControlError, NamespaceHandle, connection, listener
from spark_sb_sink.broker.clock import Clock
from spark_sb_sink.broker.journal import Counters, Journal
from spark_sb_sink.broker.listener import Listener
from spark_sb_sink.broker.namespace import PING, TIERS, Namespace
from spark_sb_sink.broker.queue import MessageQueue, RefusedError
from spark_sb_sink.broker.sections import Incoming
from spark_sb_sink.broker.server import Broker, Spec
from spark_sb_sink.broker.settings import Settings
from tests.broker.sdk import QUICK
from tests.broker.test_security import own_sas, put_token
from tests.test_cli import TestRefusals as Refusals
from tests.test_cli import ready, run, running

KB = 1024
AMQP_HEADER = b"AMQP\x00\x01\x00\x00"


# Tiers


def largest(namespace: NamespaceHandle) -> int:
    """What a link to a queue of the namespace takes."""
    namespace.create_queue("q")
    with (
        ServiceBusClient.from_connection_string(namespace.connection_string, **QUICK) as client,
        client.get_queue_sender("q") as sender,
    ):
        return sender.create_message_batch().max_size_in_bytes // KB


def test_each_namespace_has_the_limits_of_its_own_tier() -> None:
    with BrokerProcess("big", "small", tier={"big": "premium", "small": "standard"}) as broker:
        assert {name: largest(handle) for name, handle in broker.namespaces.items()} == {"big": 1024, "small": 256}


def test_a_namespace_that_is_given_no_tier_is_standard() -> None:
    with BrokerProcess("big", "small", tier={"big": "premium"}) as broker:
        assert {name: largest(handle) for name, handle in broker.namespaces.items()} == {"big": 1024, "small": 256}


@pytest.mark.parametrize(
    ("tiers", "expected"),
    [
        ([], {"big": 256, "small": 256}),
        (["--tier", "premium"], {"big": 1024, "small": 1024}),
        (["--tier", "big=premium", "--tier", "small=standard"], {"big": 1024, "small": 256}),
    ],
    ids=["none", "all", "each"],
)
def test_the_command_takes_one_tier_or_one_for_each(tiers: list[str], expected: dict[str, int]) -> None:
    with running("--namespace", "big", "--namespace", "small", "--ready-json", *tiers) as process:
        handles = [NamespaceHandle(name, **data) for name, data in ready(process).items()]
        assert {handle.name: largest(handle) for handle in handles} == expected


@pytest.mark.parametrize(
    ("tiers", "text"),
    [
        (["gold"], "'gold'"),
        (["one=gold"], "'gold'"),
        (["one="], "''"),
        (["two=premium"], "not hosted"),
        (["one=premium", "two=standard"], "not hosted"),
    ],
)
def test_a_tier_that_cannot_be_is_one_sentence_and_exit_code_2(tiers: list[str], text: str) -> None:
    given = [part for tier in tiers for part in ("--tier", tier)]
    Refusals().is_one_sentence(run("broker", "--ready-json", "--namespace", "one", *given), text)


@pytest.mark.parametrize(("tier", "text"), [({"one": "gold"}, "'gold'"), ({"two": "premium"}, "not hosted")])
def test_a_broker_process_with_such_a_tier_does_not_start(tier: dict[str, str], text: str) -> None:
    with pytest.raises((ControlError, ValueError), match=text):
        BrokerProcess("one", tier=tier)


# The size of an entity


def data(size: int) -> bytes:
    """A message with a body of that size and nothing else."""
    return b"\x00\x53\x75\xb0" + struct.pack(">I", size) + b"x" * size


def ping() -> bytes:
    content_type = b"\xa3" + bytes([len(PING)]) + PING.encode()
    fields = b"\x40" * 6 + content_type
    return b"\x00\x53\x73\xc0" + bytes([len(fields) + 1, 7]) + fields + data(1)


def test_a_full_queue_refuses_messages_until_some_are_completed() -> None:
    namespace = Namespace("ns", TIERS["standard"], Clock())
    queue = namespace.create_queue("q")
    queue.settings.max_size_mb = 1  # less than the service offers, so that it can be filled
    for _ in range(6):
        namespace.accept(queue, data(200 * KB), batch=False)
    with pytest.raises(RefusedError) as caught:
        namespace.accept(queue, data(200 * KB), batch=False)
    assert caught.value.condition == "amqp:resource-limit-exceeded"
    assert "'q'" in caught.value.text
    assert queue.store.counts()["active"] == 6, "the one that reaches the limit is the last one taken"
    namespace.accept(queue, ping(), batch=False)
    for _ in range(2):
        taken = queue.store.take(namespace.clock.now(), lock=True)
        assert taken is not None
        assert taken.token is not None
        queue.store.complete(taken.token)
    namespace.accept(queue, data(200 * KB), batch=False)
    assert queue.store.counts()["active"] == 5


def test_dead_letters_take_room_too() -> None:
    namespace = Namespace("ns", TIERS["standard"], Clock())
    queue = namespace.create_queue("q")
    namespace.accept(queue, data(200 * KB), batch=False)
    taken = queue.store.take(namespace.clock.now(), lock=True)
    assert taken is not None
    assert taken.token is not None
    queue.store.dead_letter(taken.token, "r", None)
    assert queue.size() > 200 * KB
    queue.settings.max_size_mb = 0
    with pytest.raises(RefusedError, match="maximum entity size"):
        namespace.accept(queue, data(1), batch=False)


# What is settled leaves nothing behind


def biggest(queue: MessageQueue) -> dict[str, int]:
    """The sizes of all that the queue keeps."""
    return {name: len(value) for name, value in vars(queue).items() if isinstance(value, Sized) and name != "path"}


@pytest.mark.parametrize("end", ["complete", "dead_letter", "receive and delete"])
def test_books_of_times_and_locks_forget_messages_that_are_gone(end: str) -> None:
    settings, clock, journal = Settings(), Clock(), Journal(enabled=False)
    dead = MessageQueue("q/$DeadLetterQueue", settings, clock, journal, [Counters()])
    queue = MessageQueue("q", settings, clock, journal, [Counters()], dead)
    message = Incoming(b"", message_id="1", ttl=3600.0, size=1)
    now = clock.now()
    for number in range(50_000):
        queue.put(message, now)
        stored = queue.take(now, lock=end != "receive and delete")
        assert stored is not None
        if end == "complete" and stored.token is not None:
            queue.complete(stored.token)
        elif end == "dead_letter" and stored.token is not None:
            queue.dead_letter(stored.token, None, None)
        if number % 1000 == 0:
            queue.tick(now)
    sizes = biggest(queue)
    assert max(sizes.pop("_over"), sizes.pop("_over_before")) <= 5000, "of locks that are over, the latest"
    assert {name: size for name, size in sizes.items() if size > 3 * len(queue.messages) + 2000} == {}


def test_a_lock_renewed_over_and_over_is_kept_once() -> None:
    clock = Clock()
    queue = MessageQueue("q", Settings(), clock, Journal(enabled=False), [Counters()])
    queue.put(Incoming(b"", message_id="1", size=1), clock.now())
    stored = queue.take(clock.now(), lock=True)
    assert stored is not None
    assert stored.token is not None
    for _ in range(5_000):
        queue.renew(stored.token)
    assert max(biggest(queue).values()) < 2003
    clock.advance(61)
    queue.tick(clock.now())
    assert queue.counts() == {"active": 1, "deferred": 0, "scheduled": 0, "locked": 0}


# Links and connections


def test_a_link_is_idle_after_ten_minutes_unless_told_otherwise() -> None:
    assert inspect.signature(Listener).parameters["idle_detach"].default == 600.0


@pytest.fixture
async def here() -> AsyncIterator[Broker]:
    """A broker in this process, so that its constants can be made small."""
    broker = Broker()
    await broker.start([Spec("ns")])
    broker.hosted["ns"].namespace.create_queue("q")
    yield broker
    await broker.close()


async def test_a_connection_has_only_so_many_links(here: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MAX_LINKS", 3)
    handle = NamespaceHandle("ns", **here.ready()["ns"])

    def attach_four() -> list[str]:
        client = BlockingConnection(f"amqp://{handle.endpoint}", timeout=10, allowed_mechs="ANONYMOUS")
        try:
            assert put_token(client, f"sb://{handle.endpoint}/q", own_sas(handle, "q"))[0] == 202
            seen = []
            for number in range(4):
                try:
                    client.create_sender("q", name=f"link-{number}")
                    seen.append("attached")
                except (ConnectionException, ProtonException) as error:
                    seen.append(str(error))
            return seen
        finally:
            client.close()

    *taken, refused = await asyncio.to_thread(attach_four)
    assert taken == ["attached"] * 3
    assert "amqp:resource-limit-exceeded" in refused
    assert "at most 3 links" in refused


async def test_a_namespace_has_only_so_many_connections(here: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "MAX_CONNECTIONS", 3)
    host, port = here.hosted["ns"].endpoint.split(":")

    async def come() -> tuple[bytes, Any]:
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(AMQP_HEADER)
            return await asyncio.wait_for(reader.read(8), 10), writer
        except ConnectionError:
            return b"", writer

    writers = [(await come())[1] for _ in range(3)]
    refused, writer = await come()
    assert refused == b""
    writer.close()
    writers.pop().close()
    async with asyncio.timeout(20):
        while True:
            answer, writer = await come()
            writers.append(writer)
            if answer.startswith(b"AMQP"):
                break
    for writer in writers:
        writer.close()
