"""Each fault, for one entity and for a namespace: what the real SDK makes of it, at once, and that undo ends it."""

import asyncio
import contextlib
import http.client
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from azure.servicebus import ServiceBusClient
from azure.servicebus.exceptions import OperationTimeoutError
from proton import ConnectionException, ProtonException, Timeout
from proton.utils import BlockingConnection, LinkDetached

from spark_sb_sink.broker import (
    BlackHole,
    BrokerProcess,
    Busy,
    CbsAnswer,
    CutMidBatch,
    FullQuota,
    LoseAck,
    NamespaceHandle,
    Refuse,
    Reject,
)
from spark_sb_sink.broker.faults import Fault
from tests.broker.faulty import PATIENCE, Came, Links, message, outcome, quick, two_open, words
from tests.broker.test_security import own_sas, put_token, raw  # noqa: F401 - `raw` is a fixture

CUT = "ServiceBusConnectionError amqp:socket-error"
INTERNAL = "ServiceBusError amqp:internal-error"
BUSY = "ServiceBusServerBusyError com.microsoft:server-busy"
CBS_401 = "ServiceBusAuthenticationError 401"
FULL = "ServiceBusQuotaExceededError amqp:resource-limit-exceeded"

# A `$cbs` that refuses is asked when a connection is made: open links go on until their token is renewed.
CASES: dict[str, tuple[Fault, Came]] = {
    "refuse": (Refuse(), Came(CUT, CUT, CUT, CUT)),
    "black-hole": (BlackHole(), Came(*["TimeoutError"] * 4)),
    "black-hole-once-attached": (BlackHole("attach"), Came(*["TimeoutError"] * 4)),
    "cbs-401": (CbsAnswer(401), Came("sent", CBS_401, "received", CBS_401)),
    "reject": (Reject("amqp:internal-error"), Came(INTERNAL, INTERNAL)),
    "reject-without-info": (Reject("amqp:internal-error", info=False), Came("TimeoutError", "TimeoutError")),
    "reject-at-attach": (Reject(at="attach"), Came("sent", INTERNAL, "received", INTERNAL)),
    "busy": (Busy(), Came(BUSY, BUSY)),
    "lose-ack": (LoseAck(), Came(CUT, CUT)),
    "cut-mid-batch": (CutMidBatch(), Came(CUT, CUT)),
    "full-quota": (FullQuota(), Came(FULL, FULL)),
}
STATUSES: dict[str, tuple[Fault, Came]] = {
    f"cbs-{status}": (
        CbsAnswer(status),
        Came(new_send=f"ServiceBusAuthenticationError {status}", new_receive=f"ServiceBusAuthenticationError {status}"),
    )
    for status in (404, 500, 503)
}
HANGS = {"black-hole", "black-hole-once-attached", "reject-without-info"}


@pytest.fixture
def secondary(broker: BrokerProcess) -> Iterator[NamespaceHandle]:
    handle = broker["secondary"]
    handle.undo()
    yield handle
    handle.undo()


@pytest.mark.parametrize("case", CASES)
async def test_a_fault_strikes_open_and_new_links_of_its_entity_or_of_all_until_it_is_undone(
    case: str, namespace: NamespaceHandle, secondary: NamespaceHandle, name: str
) -> None:
    fault, came = CASES[case]

    async def for_one_entity() -> None:
        async with quick(namespace) as client:
            struck, other = await two_open(client, namespace, name)
            with namespace.fault(fault, entity=name):
                assert await asyncio.gather(struck.try_all(came), other.try_all(Came())) == [came, Came()]
            assert await asyncio.gather(struck.send_anew(), struck.receive_anew()) == ["sent", "received"]

    async def for_the_namespace() -> None:
        async with quick(secondary) as client:
            both = await two_open(client, secondary, name)
            with secondary.fault(fault):
                assert await asyncio.gather(*(links.try_all(came) for links in both)) == [came, came]
            assert await asyncio.gather(*(links.send_anew() for links in both)) == ["sent", "sent"]

    await asyncio.gather(for_one_entity(), for_the_namespace())


def test_the_sync_sdk_raises_the_same_errors(namespace: NamespaceHandle, name: str) -> None:
    cases = {case: both for case, both in {**CASES, **STATUSES}.items() if case not in HANGS}
    receiving = [case for case, (_, came) in cases.items() if came.new_receive != "received"]

    def call(case: str, receives: bool) -> str:
        entity = f"{name}-{case}"
        with ServiceBusClient.from_connection_string(namespace.connection_string, retry_total=0) as client:
            try:
                if receives:
                    client.get_queue_receiver(entity).receive_messages(1, max_wait_time=20)
                else:
                    client.get_queue_sender(entity).send_messages(message())
            except Exception as error:  # noqa: BLE001
                return words(error)
        return "nothing"

    for case, (fault, _) in cases.items():
        namespace.create_queue(f"{name}-{case}")
        namespace.hang(fault, f"{name}-{case}")
    with ThreadPoolExecutor(len(cases) + len(receiving)) as pool:
        sends = {case: pool.submit(call, case, False) for case in cases}
        receives = {case: pool.submit(call, case, True) for case in receiving}
    assert {case: each.result() for case, each in sends.items()} == {c: came.new_send for c, (_, came) in cases.items()}
    assert {case: each.result() for case, each in receives.items()} == {c: cases[c][1].new_receive for c in receiving}


async def test_every_answer_of_cbs_is_told_by_its_status(namespace: NamespaceHandle, name: str) -> None:
    async with quick(namespace) as client:

        async def both(case: str) -> Came:
            namespace.create_queue(f"{name}-{case}")
            namespace.hang(STATUSES[case][0], f"{name}-{case}")
            links = Links(client, f"{name}-{case}")
            sends, receives = await asyncio.gather(outcome(links.send_anew()), outcome(links.receive_anew()))
            return Came(new_send=sends, new_receive=receives)

        assert await asyncio.gather(*map(both, STATUSES)) == [came for _, came in STATUSES.values()]


async def test_a_message_can_be_rejected_with_any_condition(namespace: NamespaceHandle, name: str) -> None:
    expected = {
        "com.microsoft:server-busy": "ServiceBusServerBusyError",
        "amqp:not-found": "MessagingEntityNotFoundError",
        "com.microsoft:entity-disabled": "MessagingEntityDisabledError",
        "amqp:unauthorized-access": "ServiceBusAuthorizationError",
        "amqp:resource-limit-exceeded": "ServiceBusQuotaExceededError",
        "com.microsoft:operation-cancelled": "ServiceBusError",
        "com.microsoft:argument-error": "ServiceBusError",
        "amqp:not-allowed": "ServiceBusError",
        "example:never-heard-of": "ServiceBusError",
    }
    queues = {condition: f"{name}-{number}" for number, condition in enumerate(expected)}
    for condition, queue in queues.items():
        namespace.create_queue(queue)
        namespace.hang(Reject(condition, f"as a test has it: {queue}"), queue)
    async with quick(namespace) as client:
        sends = (client.get_queue_sender(queue).send_messages(message()) for queue in queues.values())
        errors = await asyncio.gather(*sends, return_exceptions=True)
    for error, (condition, kind) in zip(errors, expected.items(), strict=True):
        assert isinstance(error, Exception)
        assert words(error) == f"{kind} {condition}"
        assert f"as a test has it: {queues[condition]}" in str(error)
        assert namespace.counts(queues[condition])["active"] == 0


async def test_a_rejection_without_info_is_seen_by_no_call_of_the_sdk(namespace: NamespaceHandle, queue: str) -> None:
    """Its callback fails on the missing map, and the send waits for ever: only a deadline around it ends it."""
    async with quick(namespace) as client, client.get_queue_sender(queue) as sender:
        namespace.hang(Reject("amqp:not-allowed", info=False, count=1), queue)
        assert await outcome(_sent(sender, message()), PATIENCE) == "TimeoutError"
        assert namespace.faults() == [], "the broker did reject it"
    assert namespace.counters(queue)["events"]["rejected"] == 1
    assert namespace.counts(queue)["active"] == 0


async def _sent(sender: object, *messages: object) -> str:
    await sender.send_messages(*messages)  # type: ignore[attr-defined]
    return "sent"


async def test_rejecting_at_attach_and_rejecting_at_transfer_do_not_hide_each_other(
    namespace: NamespaceHandle, queue: str
) -> None:
    async with quick(namespace) as client:
        links = await Links(client, queue).open()
        namespace.hang(Reject("amqp:internal-error", at="attach"), queue)
        namespace.hang(Reject("amqp:not-allowed"), queue)
        found = await asyncio.gather(outcome(links.send()), outcome(links.send_anew()))
    assert found == ["ServiceBusError amqp:not-allowed", INTERNAL]


async def test_refused_connections_are_cut_when_open_and_reset_when_new(
    namespace: NamespaceHandle, queue: str, open_socket: Callable[[], socket.socket]
) -> None:
    before = open_socket()
    before.sendall(b"AMQP\x03\x01\x00\x00")
    assert before.recv(8) == b"AMQP\x03\x01\x00\x00"
    namespace.hang(Refuse())
    assert _ended(before)
    with contextlib.suppress(ConnectionResetError):  # it may be reset before it is ours
        assert _ended(open_socket())
    namespace.undo()
    after = open_socket()
    after.sendall(b"AMQP\x03\x01\x00\x00")
    assert after.recv(8) == b"AMQP\x03\x01\x00\x00"


async def test_a_black_hole_takes_connections_and_says_nothing_to_amqp_http_or_tls(
    namespace: NamespaceHandle, open_socket: Callable[[], socket.socket]
) -> None:
    asked = http.client.HTTPConnection(namespace.endpoint, timeout=10)
    asked.request("GET", "/nothing")
    asked.getresponse().read()
    namespace.hang(BlackHole())
    asked.request("GET", "/nothing")
    held = [asked.sock]
    for hello in (b"AMQP\x03\x01\x00\x00", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x00\x05hello"):
        held.append(open_socket())
        held[-1].sendall(hello)
    for each in held:
        each.settimeout(0.2)
        with pytest.raises(TimeoutError):
            each.recv(1)
    namespace.undo()
    for each in held:
        assert _ended(each), "after an undo a silenced connection could only confuse"
    asked.close()


async def test_a_receiver_cannot_tell_a_link_that_fell_silent_from_an_empty_queue(
    namespace: NamespaceHandle, queue: str
) -> None:
    async with quick(namespace) as client:
        links = await Links(client, queue).open()
        namespace.hang(BlackHole(), queue)
        assert await links.receiver.receive_messages(1, max_wait_time=0.5) == []
        new = client.get_queue_receiver(queue)
        with pytest.raises(OperationTimeoutError):
            await asyncio.wait_for(new.receive_messages(1, max_wait_time=0.5), 30)
        assert namespace.counts(queue) == {"active": 9, "deferred": 0, "scheduled": 0, "locked": 1}
        namespace.undo()


async def test_a_black_hole_after_attach_answers_until_then(namespace: NamespaceHandle, queue: str) -> None:
    async with quick(namespace) as client:
        namespace.hang(BlackHole("attach"), queue)
        async with client.get_queue_sender(queue) as sender:  # connection, token and link: all answered
            assert await outcome(_sent(sender, message()), PATIENCE) == "TimeoutError"
            namespace.undo()
    assert namespace.counts(queue)["active"] == 0


@pytest.mark.parametrize("where", ["", "/$management"], ids=["token for the queue", "token for its node"])
@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Refuse(), ConnectionException),
        (BlackHole(), Timeout),
        (BlackHole("attach"), Timeout),
        (Reject(at="attach"), LinkDetached),
    ],
    ids=["refuse", "black hole", "black hole once attached", "reject at attach"],
)
def test_a_connection_that_only_manages_an_entity_meets_its_faults_too(
    namespace: NamespaceHandle, queue: str, fault: Fault, kind: type[ProtonException], where: str
) -> None:
    """The Python SDK always has a sender or receiver beside it; the JavaScript one peeks and schedules without."""

    def connect() -> BlockingConnection:
        connection = BlockingConnection(f"amqp://{namespace.endpoint}", timeout=30, allowed_mechs="ANONYMOUS")
        audience = f"sb://{namespace.endpoint}/{queue}{where}"
        assert put_token(connection, audience, own_sas(namespace, queue, uri=audience))[0] == 202
        return connection

    struck = connect()
    struck.timeout = 0.5 if kind is Timeout else 30

    def attach() -> None:
        for each in ("one", "and one that comes after it"):
            struck.create_sender(f"{queue}/$management", name=each)

    with namespace.fault(fault, queue), pytest.raises(kind):
        attach()
    with contextlib.suppress(ProtonException):
        struck.close()
    after = connect()
    after.create_sender(f"{queue}/$management")
    after.close()


def test_a_token_for_the_node_of_an_entity_is_refused_where_the_entitys_is(
    namespace: NamespaceHandle,
    queue: str,
    raw: BlockingConnection,  # noqa: F811
) -> None:
    audience = f"sb://{namespace.endpoint}/{queue}/$Management"
    with namespace.fault(CbsAnswer(401), queue):
        assert put_token(raw, audience, own_sas(namespace, queue))[0] == 401
    assert put_token(raw, audience, own_sas(namespace, queue))[0] == 202


async def test_two_black_holes_are_undone_one_by_one(namespace: NamespaceHandle, name: str) -> None:
    async with quick(namespace) as client:
        one, other = await two_open(client, namespace, name)
        first = namespace.hang(BlackHole(), one.queue.upper())
        namespace.hang(BlackHole(), other.queue)
        namespace.undo(first)
        found = await asyncio.gather(outcome(one.send_anew()), outcome(other.send_anew(), PATIENCE))
        assert found == ["sent", "TimeoutError"]
        namespace.undo()


async def test_a_topic_and_its_subscriptions_share_the_faults_of_the_topic(
    namespace: NamespaceHandle, name: str
) -> None:
    namespace.create_topic(name)
    namespace.create_subscription(name, "all")
    async with quick(namespace) as client:
        receive = client.get_subscription_receiver(name, "all").receive_messages(1, max_wait_time=2)
        send = client.get_topic_sender(name).send_messages(message())
        with namespace.fault(CbsAnswer(404), name):
            found = await asyncio.gather(send, receive, return_exceptions=True)
        assert [words(error) for error in found if isinstance(error, BaseException)] == [
            "ServiceBusAuthenticationError 404",
            "ServiceBusAuthenticationError 404",
        ]
        async with client.get_topic_sender(name) as sender:
            with namespace.fault(FullQuota(), name):
                assert await outcome(_sent(sender, message())) == FULL
            assert await outcome(_sent(sender, message())) == "sent"


def test_faults_are_listed_and_undone_by_their_numbers(namespace: NamespaceHandle, queue: str) -> None:
    first = namespace.hang(Busy(count=3), queue)
    second = namespace.hang(Refuse())
    assert [(fault["id"], fault["kind"], fault["entity"], fault.get("left")) for fault in namespace.faults()] == [
        (first, "busy", queue, 3),
        (second, "refuse", None, None),
    ]
    namespace.undo(first)
    assert [fault["id"] for fault in namespace.faults()] == [second]
    namespace.undo(first)  # a fault with a count may be gone already: no error
    namespace.undo()
    assert namespace.faults() == []


@pytest.fixture
def open_socket(namespace: NamespaceHandle) -> Iterator[Callable[[], socket.socket]]:
    host, _, port = namespace.endpoint.partition(":")
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(socket.create_connection((host, int(port)), timeout=10))


def _ended(connection: socket.socket) -> bool:
    """Whether the peer closes or resets the connection; what was on its way before is read."""
    connection.settimeout(10)
    with contextlib.suppress(ConnectionError):
        while connection.recv(4096):
            pass
    return True
