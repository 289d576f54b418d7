"""A thousand hostile peers: the broker serves the others throughout, and nothing of the thousand stays behind."""

import asyncio
import contextlib
import functools
import gc
import os
import random
import socket
import ssl
import struct
import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from proton import Message, int32, symbol

from spark_sb_sink.broker import BrokerProcess, CutMidBatch, NamespaceHandle
from spark_sb_sink.broker.base_link import BaseLink
from spark_sb_sink.broker.connection import AmqpConnection
from spark_sb_sink.broker.frames import FrameWatcher
from spark_sb_sink.broker.queue import MessageQueue
from spark_sb_sink.broker.server import Broker, Spec
from spark_sb_sink.broker.settings import Settings
from spark_sb_sink.broker.shaping import Shaper
from tests.broker.test_security import own_sas
from tests.conftest import await_that

SEED = 20240229
STREAMS = 1000
WARM_UP = 300
AT_ONCE = 24
MEGABYTE = 1024 * 1024

# Just enough of AMQP 1.0 to speak it, and to speak it wrongly.

SASL, AMQP = b"AMQP\x03\x01\x00\x00", b"AMQP\x00\x01\x00\x00"
NULL, TRUE, FALSE = b"\x40", b"\x41", b"\x42"


def uint(value: int) -> bytes:
    return b"\x70" + struct.pack(">I", value & 0xFFFFFFFF)


def string(text: str) -> bytes:
    raw = text.encode()
    return b"\xb1" + struct.pack(">I", len(raw)) + raw


def sym(text: str) -> bytes:
    return b"\xb3" + struct.pack(">I", len(text)) + text.encode()


def binary(raw: bytes) -> bytes:
    return b"\xb0" + struct.pack(">I", len(raw)) + raw


def lst(*items: bytes, count: int | None = None, code: bytes = b"\xd0") -> bytes:
    body = b"".join(items)
    return code + struct.pack(">II", len(body) + 4, len(items) if count is None else count) + body


def mapping(*items: bytes) -> bytes:
    return lst(*items, code=b"\xd1")


def described(code: int, value: bytes) -> bytes:
    return b"\x00\x53" + bytes([code]) + value


def frame(body: bytes, *, channel: int = 0, kind: int = 0, size: int | None = None, doff: int = 2) -> bytes:
    return struct.pack(">IBBH", len(body) + 8 if size is None else size, doff, kind, channel) + body


@functools.cache
def nested(depth: int) -> bytes:
    """Lists in lists, so many deep."""
    return b"".join(b"\xd0" + struct.pack(">II", 9 * left + 5, 1) for left in range(depth - 1, -1, -1)) + b"\x45"


HANDSHAKE = SASL + frame(described(0x41, lst(sym("ANONYMOUS"))), kind=1) + AMQP
OPEN = frame(described(0x10, lst(string("hostile"))))


def begin(channel: int = 0) -> bytes:
    return frame(described(0x11, lst(NULL, uint(0), uint(2048), uint(2048))), channel=channel)


def attach(name: str, handle: int, node: bytes, *, sends: bool, extra: tuple[bytes, ...] = ()) -> bytes:
    source, target = described(0x28, lst(node)), described(0x29, lst(node))
    role = FALSE if sends else TRUE
    return frame(described(0x12, lst(string(name), uint(handle), role, NULL, NULL, source, target, *extra)))


def transfer(handle: int, number: int, payload: bytes, *, more: bool = False, batch: bool = False) -> bytes:
    tag = binary(number.to_bytes(4, "big"))
    form = uint(0x80013700) if batch else uint(0)
    head = lst(uint(handle), uint(number), tag, form, FALSE, TRUE if more else FALSE)
    return frame(described(0x14, head) + payload)


def flow(handle: bytes, credit: int, *more: bytes) -> bytes:
    fields = (uint(0), uint(2048), uint(0), uint(2048), handle, uint(0), uint(credit), *more)
    return frame(described(0x13, lst(*fields)))


LISTEN = b"\x00\x00<listen>\x00\x00"
"""Not sent: here the peer waits for an answer, since transfers before the broker's begin end the connection."""
SESSION = HANDSHAKE + OPEN + begin()
CBS = attach("cbs-out", 0, string("$cbs"), sends=True) + attach("cbs-in", 1, string("$cbs"), sends=False)


@dataclass
class Making:
    """What the makers of hostile streams know."""

    namespace: NamespaceHandle
    rng: random.Random
    queue: str = "target"
    sessions: str = "target-sessions"
    token: bytes = field(init=False)

    def __post_init__(self) -> None:
        properties = {"operation": "put-token", "name": f"sb://{self.namespace.endpoint}/"}
        put = Message(properties=properties, body=own_sas(self.namespace, ""), reply_to="cbs-in")
        self.token = SESSION + CBS + flow(uint(1), 100) + LISTEN + transfer(0, 0, put.encode()) + LISTEN

    def noise(self, most: int = 2000) -> bytes:
        return self.rng.randbytes(self.rng.randint(1, most))


def random_bytes(m: Making) -> bytes:
    return m.noise()


def random_bytes_after_a_header(m: Making) -> bytes:
    return m.rng.choice([b"A", b"AMQ", SASL, AMQP, SASL + AMQP, HANDSHAKE, SESSION]) + m.noise()


def a_conversation_cut_short(m: Making) -> bytes:
    whole = m.token + attach("s", 5, string(m.queue), sends=True) + transfer(5, 1, Message(b"x").encode())
    return whole[: m.rng.randint(1, len(whole))]


def a_conversation_with_bytes_changed(m: Making) -> bytes:
    whole = bytearray(m.token + attach("s", 5, string(m.queue), sends=True) + transfer(5, 1, Message(b"x").encode()))
    start = m.rng.choice([8, whole.rindex(LISTEN) + len(LISTEN)])
    for _ in range(m.rng.randint(1, 12)):
        whole[m.rng.randrange(start, len(whole))] = m.rng.randrange(256)
    return bytes(whole)


def a_frame_of_impossible_size(m: Making) -> bytes:
    size = m.rng.choice([0, 1, 7, 65537, 2**24, 2**31, 2**32 - 1])
    return m.rng.choice([SASL, HANDSHAKE, SESSION]) + frame(b"\x00" * 64, size=size) + b"\x00" * 100_000


def a_frame_with_an_impossible_head(m: Making) -> bytes:
    return SESSION + frame(m.noise(50), doff=m.rng.choice([0, 1, 3, 200, 255]), kind=m.rng.randrange(256))


def frames_in_the_wrong_order(m: Making) -> bytes:
    pieces = [
        AMQP,
        SASL,
        OPEN,
        begin(),
        attach("s", 0, string(m.queue), sends=True),
        transfer(0, 0, b"early"),
        flow(uint(0), 10),
        frame(described(0x15, lst(TRUE, uint(0), uint(2**32 - 1), TRUE, described(0x24, lst())))),
        frame(described(0x16, lst(uint(0), TRUE))),
        frame(described(0x17, lst())),
        frame(described(0x18, lst())),
    ]
    m.rng.shuffle(pieces)
    return m.rng.choice([b"", HANDSHAKE]) + b"".join(pieces)


def a_giant_list(m: Making) -> bytes:
    code = m.rng.choice([0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x41])
    count = m.rng.choice([2**31, 2**32 - 1, 100_000])
    return m.rng.choice([SASL, HANDSHAKE, SESSION]) + frame(described(code, lst(NULL, count=count)))


def a_full_frame_of_nulls(m: Making) -> bytes:
    return SESSION + frame(described(m.rng.choice([0x10, 0x12, 0x13, 0x14]), lst(*[NULL] * 60_000)))


def deep_nesting_in_a_frame(m: Making) -> bytes:
    inner = m.rng.choice([nested(6000), b"\x00" * 60_000, b"\x00\x53" * 30_000, nested(900)])
    return HANDSHAKE + m.rng.choice(
        [
            frame(described(0x10, lst(string("c"), *[NULL] * 8, inner))),
            OPEN + begin() + frame(described(0x12, lst(string("x"), uint(0), TRUE, NULL, NULL, inner))),
            OPEN + begin() + attach("x", 0, inner, sends=True),
            frame(inner),
        ]
    )


def deep_nesting_in_a_request(m: Making) -> bytes:
    inner = m.rng.choice(
        [nested(500), nested(20_000), nested(100_000), b"\x00\x53\x01" * 300_000 + NULL, b"\x00" * 900_000]
    )
    body = described(0x77, inner)
    parts = [body[at : at + 60_000] for at in range(0, len(body), 60_000)]
    sent = b"".join(transfer(0, 0, part, more=part is not parts[-1]) for part in parts)
    return SESSION + CBS + flow(uint(1), 10) + LISTEN + sent


def deep_nesting_in_a_disposition(m: Making) -> bytes:
    error = described(0x1D, lst(sym("x"), string("y"), mapping(sym("DeadLetterReason"), nested(3000))))
    rejected = described(0x25, lst(error))
    return (
        m.token
        + attach("s", 5, string(m.queue), sends=True)
        + transfer(5, 1, Message(b"x").encode())
        + attach("r", 6, string(m.queue), sends=False)
        + flow(uint(6), 1)
        + LISTEN
        + frame(described(0x15, lst(TRUE, uint(0), uint(3), FALSE, rejected)))
    )


def tls_garbage(m: Making) -> bytes:
    return b"\x16\x03\x01" + m.noise()


def a_tls_hello_and_then_garbage(m: Making) -> bytes:
    out = ssl.MemoryBIO()
    hello = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        hello.do_handshake()
    return out.read() + m.noise()


def http_garbage(m: Making) -> bytes:
    return m.rng.choice(
        [
            b"GET / HTTP/1.1\r\n\r\n",
            b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
            b"POST /q HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\nx",
            b"POST /q HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
            b"PUT /q HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 5000,
            b"GET / HT",
            b"OPTIONS * HTTP/9.9\r\n\r\n",
            b"PUT /q?api-version=2021-05 HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n<entry>&&",
            b"get " + m.noise(200).replace(b"\n", b"") + b"\r\n\r\n",
        ]
    )


def half_a_handshake(m: Making) -> bytes:
    return HANDSHAKE[: m.rng.randint(1, len(HANDSHAKE) - 1)]


def many_links(m: Making) -> bytes:
    nodes = [string("$cbs"), string(m.queue), NULL, string("amqps://[x/y"), uint(5), sym("x"), binary(b"\xff")]
    links = (attach(f"l{n}", n, m.rng.choice(nodes), sends=n % 2 == 0) for n in range(200))
    return SESSION + b"".join(links)


def a_link_attached_and_detached_over_and_over(m: Making) -> bytes:
    pairs = (
        attach(f"l{n}", n, string("$cbs"), sends=True) + frame(described(0x16, lst(uint(n), TRUE))) for n in range(200)
    )
    return SESSION + b"".join(pairs)


def many_sessions(m: Making) -> bytes:
    return HANDSHAKE + OPEN + b"".join(begin(channel) for channel in range(0, m.rng.choice([4999, 6000]), 3))


def transfers_on_a_link_that_was_refused(m: Making) -> bytes:
    sent = b"".join(transfer(0, n, bytes(5000), more=n % 7 == 0) for n in range(100))
    return SESSION + attach("s", 0, string(m.queue), sends=True) + LISTEN + sent


def a_request_without_end(m: Making) -> bytes:
    return SESSION + CBS + LISTEN + b"".join(transfer(0, 0, bytes(60_000), more=True) for _ in range(30))


def a_request_in_crumbs(m: Making) -> bytes:
    return SESSION + CBS + LISTEN + b"".join(transfer(0, 0, b"x", more=True) for _ in range(3000))


def requests_that_are_none(m: Making) -> bytes:
    bodies: list[Any] = [None, 5, [1, [2, [3]]], {"a": 1}, b"\x00" * 100, "SharedAccessSignature sr=%zz&sig=&se=&skn="]
    names: list[Any] = ["sb://[x", "", 5, None, "%", "sb://h:99999999/x", symbol("s")]
    out = SESSION + CBS + (flow(uint(1), 1000) if m.rng.random() < 0.5 else b"") + LISTEN
    for n in range(20):
        properties = {"operation": m.rng.choice(["put-token", 7, None]), "name": m.rng.choice(names)}
        request = Message(body=m.rng.choice(bodies), properties=properties).encode()
        out += transfer(0, n, request if n % 4 else m.noise(300))
    return out


def answers_that_nobody_fetches(m: Making) -> bytes:
    request = Message(body="x", properties={"operation": "put-token", "name": "sb://x/y"}).encode()
    return SESSION + CBS + LISTEN + b"".join(transfer(0, n, request) for n in range(1500))


def management_requests_that_are_none(m: Making) -> bytes:
    node = string(f"{m.queue}/$management")
    out = m.token + attach("m-out", 7, node, sends=True) + attach("m-in", 8, node, sends=False) + flow(uint(8), 100)
    values: list[Any] = [None, -1, 2**62, "x", float("inf"), float("nan"), [1], {"a": 2}, b"z", int32(7)]
    names = ["message-count", "from-sequence-number", "sequence-numbers", "lock-tokens", "messages", "session-id"]
    operations = ["peek-message", "receive-by-sequence-number", "update-disposition", "schedule-message", "renew-lock"]
    operations += ["cancel-scheduled-message", "set-session-state", "get-message-sessions", "nothing"]
    for n in range(1, 12):
        body = {name: m.rng.choice(values) for name in m.rng.sample(names, m.rng.randint(0, len(names)))}
        body["disposition-status"] = m.rng.choice(values)
        properties = {"operation": "com.microsoft:" + m.rng.choice(operations)}
        out += transfer(7, n, Message(body=body, properties=properties).encode())
    return out


def messages_that_are_none(m: Making) -> bytes:
    out = m.token + attach("s", 5, string(m.queue), sends=True)
    good = Message(b"x", id="a").encode()
    for n in range(1, 10):
        kind = m.rng.randrange(6)
        payload = [
            m.noise(500),
            good[: m.rng.randint(0, len(good))],
            described(0x73, lst(*[NULL] * 200)) + described(0x75, binary(b"x")),
            described(0x72, mapping(sym("x-opt-scheduled-enqueue-time"), string("soon")))
            + described(0x75, binary(b"")),
            described(0x70, lst(TRUE, NULL, b"\x82" + struct.pack(">d", float("nan")))) + described(0x75, binary(b"")),
            b"\x00" * 1000,
        ][kind]
        out += transfer(5, n, payload, batch=m.rng.random() < 0.5)
    return out


def a_message_without_end(m: Making) -> bytes:
    return (
        m.token
        + attach("s", 5, string(m.queue), sends=True)
        + b"".join(transfer(5, 1, bytes(60_000), more=True) for _ in range(20))
    )


def a_session_filter_that_is_none(m: Making) -> bytes:
    value = m.rng.choice([NULL, uint(5), nested(20), binary(b"\xff"), described(0x01, string("s"))])
    filters = m.rng.choice([mapping(sym("com.microsoft:session-filter"), value), lst(value), string("x")])
    source = described(0x28, lst(string(m.sessions), *[NULL] * 6, filters))
    wait = m.rng.choice([uint(5), string("x"), b"\x82" + struct.pack(">d", float("nan")), NULL])
    properties = mapping(sym("com.microsoft:timeout"), wait)
    fields = lst(string("r"), uint(9), TRUE, NULL, NULL, source, described(0x29, lst()), *[NULL] * 6, properties)
    return m.token + frame(described(0x12, fields))


def flows_that_are_none(m: Making) -> bytes:
    out = m.token + attach("r", 6, string(m.queue), sends=False)
    return out + b"".join(
        flow(
            m.rng.choice([uint(6), uint(77), NULL, string("x")]),
            m.rng.choice([0, 1, 2**31, 2**32 - 1]),
            NULL,
            TRUE,
            TRUE,
        )
        for _ in range(20)
    )


MAKERS: list[Callable[[Making], bytes]] = [
    random_bytes,
    random_bytes_after_a_header,
    a_conversation_cut_short,
    a_conversation_with_bytes_changed,
    a_frame_of_impossible_size,
    a_frame_with_an_impossible_head,
    frames_in_the_wrong_order,
    a_giant_list,
    a_full_frame_of_nulls,
    deep_nesting_in_a_frame,
    deep_nesting_in_a_request,
    deep_nesting_in_a_disposition,
    tls_garbage,
    a_tls_hello_and_then_garbage,
    http_garbage,
    half_a_handshake,
    many_links,
    a_link_attached_and_detached_over_and_over,
    many_sessions,
    transfers_on_a_link_that_was_refused,
    a_request_without_end,
    a_request_in_crumbs,
    requests_that_are_none,
    answers_that_nobody_fetches,
    management_requests_that_are_none,
    messages_that_are_none,
    a_message_without_end,
    a_session_filter_that_is_none,
    flows_that_are_none,
]


async def until_quiet(reader: asyncio.StreamReader) -> None:
    """Read what the broker answers, until it has no more to say."""
    wait = 5.0
    with contextlib.suppress(TimeoutError):
        while await asyncio.wait_for(reader.read(65536), wait):
            wait = 0.05


async def attack(making: Making, maker: Callable[[Making], bytes], *, patience: float = 0.15) -> None:
    """One hostile peer: says its piece, listens a moment, leaves in one of three ways."""
    rng = making.rng
    data = maker(making)
    host, port = making.namespace.endpoint.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    leaves = rng.choice(["closes", "resets", "half-closes"])
    first, *rest = data.split(LISTEN)
    cut = rng.randrange(len(first) + 1)
    try:
        writer.write(first[:cut])
        await asyncio.wait_for(writer.drain(), 5)
        writer.write(first[cut:])
        for part in rest:
            await until_quiet(reader)
            writer.write(part)
            await asyncio.wait_for(writer.drain(), 5)
        if leaves == "half-closes":
            writer.write_eof()
        async with asyncio.timeout(patience):
            while await reader.read(65536):
                pass
    except (OSError, TimeoutError, RuntimeError):
        pass
    if leaves == "resets":
        with contextlib.suppress(OSError):  # unless the broker was faster
            raw = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    writer.close()


async def attack_all(making: Making, makers: list[Callable[[Making], bytes]]) -> None:
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(maker: Callable[[Making], bytes]) -> None:
        async with gate:
            await attack(making, maker)

    await asyncio.gather(*(one(maker) for maker in makers))


def memory(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


class Others:
    """A well-behaved client of the SDK that sends and receives all the while."""

    def __init__(self, namespace: NamespaceHandle) -> None:
        self._namespace = namespace
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.rounds = 0
        self.error: Exception | None = None

    def __enter__(self) -> "Others":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join(60)

    def _run(self) -> None:
        try:
            with (
                ServiceBusClient.from_connection_string(self._namespace.connection_string, retry_total=0) as client,
                client.get_queue_sender("others") as sender,
                client.get_queue_receiver("others") as receiver,
            ):
                while not self._over.is_set():
                    sender.send_messages(ServiceBusMessage(f"round {self.rounds}"))
                    (message,) = receiver.receive_messages(max_wait_time=10)
                    assert str(message) == f"round {self.rounds}"
                    receiver.complete_message(message)
                    self.rounds += 1
                    self._over.wait(0.05)
        except Exception as error:  # noqa: BLE001 - handed to the test
            self.error = error


@pytest.fixture
def victim() -> Iterator[BrokerProcess]:
    with BrokerProcess("victim") as broker:
        for name in ("others", "target"):
            broker["victim"].create_queue(name)
        broker["victim"].create_queue("target-sessions", requires_session=True)
        yield broker


def test_a_thousand_hostile_streams_leave_nothing_behind(victim: BrokerProcess) -> None:
    namespace = victim["victim"]
    making = Making(namespace, random.Random(SEED))
    makers = [MAKERS[n % len(MAKERS)] for n in range(STREAMS)]
    warm_up, rest = makers[:WARM_UP], makers[WARM_UP:]  # all kinds in both, so that the first has seen the worst
    making.rng.shuffle(warm_up)
    making.rng.shuffle(rest)

    def settled() -> bool:
        return open_files(victim.pid) <= files and namespace.overview()["connections"] == 0

    namespace.overview()
    files = open_files(victim.pid)
    with Others(namespace) as others:
        await_that(lambda: others.rounds > 0 or others.error)
        asyncio.run(attack_all(making, warm_up))
        warm = memory(victim.pid)
        assert victim.running, victim.errors()
        seen = others.rounds
        asyncio.run(attack_all(making, rest))
    assert others.error is None
    assert others.rounds > seen
    await_that(settled)
    grown = memory(victim.pid) - warm
    assert grown < 12 * MEGABYTE, f"{grown / MEGABYTE:.1f} MB more than after {WARM_UP} streams"
    assert victim.running
    assert victim.errors() == ""
    with Others(namespace) as after:
        await_that(lambda: after.rounds > 3 or after.error)
    assert after.error is None


@pytest.mark.parametrize("frames", [1, 2])
def test_a_batch_that_is_cut_between_its_frames_is_cut_before_the_last_one_and_leaves_nothing(
    namespace: NamespaceHandle, queue: str, frames: int
) -> None:
    """By bytes that are told apart: the client sends some frames of three, and waits for its end."""
    members = [Message(b"x" * 20_000, id=f"{queue}-{n}").encode() for n in range(3)]
    pieces = [described(0x75, binary(member)) for member in members]
    said = Making(namespace, random.Random(SEED)).token + attach("s", 5, string(queue), sends=True) + LISTEN
    cut = CutMidBatch(after_bytes=sum(map(len, pieces[:frames])), count=1)
    namespace.hang(cut, queue)

    async def send() -> None:
        reader, writer = await asyncio.open_connection(*namespace.endpoint.split(":"))
        for part in said.split(LISTEN)[:-1]:
            writer.write(part)
            await until_quiet(reader)
        for number, piece in enumerate(pieces[:frames]):
            assert len(namespace.faults()) == 1, "it was cut too early"
            writer.write(transfer(5, 1, piece, more=True, batch=True))
            if number < frames - 1:
                writer.write(attach(f"after {number}", 6 + number, string(queue), sends=True))
                assert await reader.read(65536), "the frame before was taken, or it would not have come to this one"
        async with asyncio.timeout(30):
            with contextlib.suppress(ConnectionResetError):
                while await reader.read(65536):
                    pass
        writer.close()

    asyncio.run(send())
    assert namespace.faults() == [], "it struck, once"
    assert namespace.counts(queue)["active"] == 0
    assert [namespace.journal(f"{queue}-{n}") for n in range(3)] == [[]] * 3


async def test_no_object_of_a_hostile_peer_stays_alive() -> None:
    """Looks inside, where a process that has grown once has room to hide what a few hundred peers leave behind."""
    broker = Broker()
    await broker.start([Spec("victim")])
    hosted = broker.hosted["victim"]

    async def rounds(count: int) -> int:
        for queue, settings in (("target", Settings()), ("target-sessions", Settings(requires_session=True))):
            hosted.namespace.create_queue(queue, settings)
        await attack_all(making, MAKERS * count)
        async with asyncio.timeout(60):
            while hosted.listener.connections or hosted.listener.sniffers or hosted.http.connections:
                await asyncio.sleep(0.02)
        for queue in ("target", "target-sessions"):
            hosted.namespace.delete(queue)
        hosted.namespace.journal.clear()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        making = Making(NamespaceHandle("victim", **broker.ready()["victim"]), random.Random(SEED))
        before, after = await rounds(2), await rounds(4)
        of_peers = (AmqpConnection, BaseLink, FrameWatcher, MessageQueue, Shaper)
        alive = Counter(type(each).__name__ for each in gc.get_objects() if isinstance(each, of_peers))
        assert alive == {}
        grown = after - before
        assert grown < 128 * 1024, f"{grown / 1024:.0f} KB more after {4 * len(MAKERS)} more streams"
    finally:
        tracemalloc.stop()
        await broker.close()


@pytest.mark.parametrize("maker", MAKERS, ids=lambda maker: maker.__name__)
def test_each_kind_of_stream_is_taken_without_a_word(maker: Callable[[Making], bytes], kinds: BrokerProcess) -> None:
    making = Making(kinds["victim"], random.Random(SEED))
    asyncio.run(attack_all(making, [maker] * 5))
    assert kinds.running, f"it died: {kinds.errors()}"
    await_that(lambda: kinds["victim"].overview()["connections"] == 0)
    assert kinds.errors() == ""


@pytest.fixture(scope="module")
def kinds() -> Iterator[BrokerProcess]:
    with BrokerProcess("victim") as broker:
        broker["victim"].create_queue("target")
        broker["victim"].create_queue("target-sessions", requires_session=True)
        yield broker


@pytest.mark.parametrize(
    "start",
    [b"", b"A", SASL, SASL + b"\x00", HANDSHAKE, b"\x16\x03\x01", b"GET / HTTP/1.1\r\nHost", b"GET"],
    ids=[
        "nothing",
        "a letter",
        "a header",
        "half a frame",
        "no open",
        "half a TLS hello",
        "half a request",
        "a method",
    ],
)
async def test_a_connection_that_never_comes_to_the_point_is_cut(start: bytes) -> None:
    broker = Broker()
    await broker.start([Spec("quick")])
    try:
        listener = broker.hosted["quick"].listener
        listener.open_within = 0.3
        reader, writer = await asyncio.open_connection(listener.host, listener.port)
        writer.write(start)
        async with asyncio.timeout(10):
            with contextlib.suppress(ConnectionResetError):
                while await reader.read(1000):
                    pass
        writer.close()
        assert not listener.connections
    finally:
        await broker.close()


async def test_a_peer_that_does_not_answer_a_close_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_sb_sink.broker.connection.CLOSE_WITHIN", 0.3)
    broker = Broker()
    await broker.start([Spec("quick")])
    try:
        listener = broker.hosted["quick"].listener
        reader, writer = await asyncio.open_connection(listener.host, listener.port)
        writer.write(SESSION)
        async with asyncio.timeout(10):
            while not listener.connections:
                await asyncio.sleep(0.01)
            (connection,) = listener.connections
            await reader.read(1000)
            connection.close("amqp:connection:forced", "enough")
            with contextlib.suppress(ConnectionResetError):
                while await reader.read(1000):
                    pass
        writer.close()
        assert not listener.connections
    finally:
        await broker.close()


async def test_a_frame_watcher_forgets_links_that_are_gone() -> None:
    from spark_sb_sink.broker.frames import FrameWatcher

    watcher = FrameWatcher()
    for n in range(1000):
        watcher.feed(attach(f"l{n}", n, string("$cbs"), sends=True) + frame(described(0x16, lst(uint(n), TRUE))))
    watcher.feed(attach("kept", 1, string("$cbs"), sends=True) + frame(described(0x17, lst())))
    assert watcher._names == {}
