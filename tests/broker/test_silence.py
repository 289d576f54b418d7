"""Connections that say nothing, on either side: black holes on top of each other, and clients that never speak."""

import contextlib
import http.client
import os
import socket
import ssl
from collections.abc import Iterator

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from proton import ProtonException, Timeout
from proton.utils import BlockingConnection

from spark_sb_sink.broker import BlackHole, BrokerProcess, NamespaceHandle, Refuse
from spark_sb_sink.broker.faults import Fault
from tests.broker.faulty import PATIENCE
from tests.broker.sdk import QUICK
from tests.broker.test_security import own_sas, put_token
from tests.broker.test_sending import send
from tests.conftest import await_that

AMQP_HEADER = b"AMQP\x00\x01\x00\x00"


@pytest.fixture(scope="module")
def own_broker() -> Iterator[BrokerProcess]:
    """For tests that stop it, silence it, or look at what it has open."""
    with BrokerProcess("ns") as running:
        running["ns"].create_queue("a")
        running["ns"].create_queue("b")
        yield running
        assert "Traceback" not in running.errors(), running.errors()


@pytest.fixture
def own(own_broker: BrokerProcess) -> Iterator[NamespaceHandle]:
    handle = own_broker["ns"]
    await_that(lambda: handle.overview()["connections"] == 0)
    yield handle
    handle.undo()
    handle.start()


def connect(namespace: NamespaceHandle) -> socket.socket:
    host, port = namespace.endpoint.split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def open_files(broker: BrokerProcess) -> int:
    return len(os.listdir(f"/proc/{broker.pid}/fd"))


def read(client: socket.socket) -> bytes:
    """What the broker says, nothing if it has ended the connection in whatever way."""
    try:
        return client.recv(100)
    except (ConnectionResetError, ssl.SSLEOFError):
        return b""


# Black holes


@pytest.mark.parametrize("first", [BlackHole(after="attach"), BlackHole()], ids=["attach first", "accept first"])
def test_of_two_black_holes_the_deeper_one_holds(own: NamespaceHandle, first: BlackHole) -> None:
    second = BlackHole() if first.after == "attach" else BlackHole(after="attach")
    with own.fault(first), own.fault(second), connect(own) as client:
        client.settimeout(PATIENCE)
        client.sendall(AMQP_HEADER)
        with pytest.raises(TimeoutError):
            client.recv(8)
    with connect(own) as client:
        client.sendall(AMQP_HEADER)
        assert client.recv(8).startswith(b"AMQP")


@pytest.mark.parametrize("said", [b"", AMQP_HEADER, b"\x16\x03\x01"], ids=["nothing", "amqp", "tls"])
def test_clients_that_leave_a_black_hole_leave_no_descriptors_in_it(
    own: NamespaceHandle, own_broker: BrokerProcess, said: bytes
) -> None:
    own.overview()
    before = open_files(own_broker)
    with own.fault(BlackHole()):
        for _ in range(100):
            with connect(own) as client:
                client.sendall(said)
        await_that(lambda: open_files(own_broker) <= before + 10)


def test_a_connection_that_falls_silent_and_is_left_leaves_no_descriptor(
    own: NamespaceHandle, own_broker: BrokerProcess
) -> None:
    own.overview()
    before = open_files(own_broker)
    with contextlib.ExitStack() as stack:
        for _ in range(50):
            client = stack.enter_context(connect(own))
            client.sendall(AMQP_HEADER)
            assert client.recv(8)
        fault = own.hang(BlackHole())
    await_that(lambda: open_files(own_broker) <= before + 10)
    own.undo(fault)


def test_the_end_of_one_entitys_black_hole_frees_its_connections_and_no_others(own: NamespaceHandle) -> None:
    with ServiceBusClient.from_connection_string(own.connection_string, **QUICK) as client:
        senders = [client.get_queue_sender(queue) for queue in "ab"]
        for sender in senders:
            sender.send_messages(ServiceBusMessage("x"))
        assert own.overview()["connections"] == 2
        holes = [own.hang(BlackHole(), queue) for queue in "ab"]
        assert own.overview()["connections"] == 2
        own.undo(holes[0])
        await_that(lambda: own.overview()["connections"] == 1)
        send(client, "a", ServiceBusMessage("again"))
        await_that(lambda: own.overview()["connections"] == 1)
        own.undo(holes[1])
        await_that(lambda: own.overview()["connections"] == 0)


def test_undoing_a_black_hole_frees_what_a_hole_of_another_kind_does_not_hold(own: NamespaceHandle) -> None:
    asked = http.client.HTTPConnection(own.endpoint, timeout=20)
    asked.request("GET", "/nothing")
    asked.getresponse().read()
    with connect(own) as client:
        client.sendall(AMQP_HEADER)
        assert client.recv(8)
        hole = own.hang(BlackHole())
        own.hang(BlackHole(), "a")
        own.hang(BlackHole(after="attach"))
        own.undo(hole)
        assert read(client) == b"", "it has no link, so neither of the others is for it"
    assert asked.sock.recv(1) == b"", "they are no holes for HTTP"
    asked.close()


def test_a_connection_that_fell_silent_at_an_attach_stays_so_until_that_hole_is_undone(own: NamespaceHandle) -> None:
    connection = BlockingConnection(f"amqp://{own.endpoint}", timeout=20, allowed_mechs="ANONYMOUS")
    assert put_token(connection, f"sb://{own.endpoint}/a", own_sas(own, "a"))[0] == 202
    holes = {queue: own.hang(BlackHole(), queue) for queue in "ab"}
    connection.timeout = 0.5
    with pytest.raises(Timeout):
        connection.create_sender("a")
    own.undo(holes["b"])
    assert own.overview()["connections"] == 1
    own.undo(holes["a"])
    await_that(lambda: own.overview()["connections"] == 0)
    with contextlib.suppress(ProtonException):
        connection.close()


@pytest.mark.parametrize("fault", [Refuse(), BlackHole()], ids=["refuse", "black hole"])
def test_a_fault_that_is_hung_during_a_tls_handshake_strikes_too(own: NamespaceHandle, fault: Fault) -> None:
    context = ssl.create_default_context(cafile=own.ca_file)
    comes, goes = ssl.MemoryBIO(), ssl.MemoryBIO()
    secure = context.wrap_bio(comes, goes, server_hostname=own.endpoint.split(":")[0])
    with connect(own) as client:
        with pytest.raises(ssl.SSLWantReadError):
            secure.do_handshake()
        client.sendall(goes.read())
        comes.write(client.recv(100_000))  # the broker's half, and with TLS 1.3 all of it
        with own.fault(fault):
            with contextlib.suppress(ssl.SSLWantReadError, OSError):
                secure.do_handshake()
            with contextlib.suppress(OSError):
                client.sendall(goes.read())
                secure.write(AMQP_HEADER)
                client.sendall(goes.read())
            client.settimeout(20 if fault == Refuse() else 0.5)
            if fault == Refuse():
                assert until_end(client) == b""
            else:
                with pytest.raises(TimeoutError):
                    until_answer(client, comes, secure)
        client.settimeout(20)
        assert until_end(client) == b"", "after an undo a silenced connection could only confuse"


def until_end(client: socket.socket) -> bytes:
    """Nothing, once the broker has ended the connection; session tickets and alerts may come before."""
    while read(client):
        pass
    return b""


def until_answer(client: socket.socket, comes: ssl.MemoryBIO, secure: ssl.SSLObject) -> bytes:
    """What the broker says inside TLS, if it does."""
    while True:
        with contextlib.suppress(ssl.SSLWantReadError):
            return secure.read(100)
        comes.write(client.recv(100_000))


# Stop


@pytest.mark.parametrize("said", [b"", AMQP_HEADER[:3], AMQP_HEADER], ids=["nothing", "half a header", "a header"])
@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
def test_stop_ends_connections_however_far_they_have_come(own: NamespaceHandle, secure: bool, said: bytes) -> None:
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(connect(own))
        if secure:
            context = ssl.create_default_context(cafile=own.ca_file)
            client = stack.enter_context(context.wrap_socket(client, server_hostname=own.endpoint.split(":")[0]))
        client.sendall(said)
        if said == AMQP_HEADER:
            assert read(client).startswith(b"AMQP")
        own.stop()
        assert read(client) == b"", "the broker said something after its stop"


def test_stop_ends_a_silent_connection_where_only_tls_is_spoken() -> None:
    with BrokerProcess("ns", tls=True) as broker:
        namespace = broker["ns"]
        context = ssl.create_default_context(cafile=namespace.ca_file)
        host = namespace.endpoint.split(":")[0]
        with connect(namespace) as plain, context.wrap_socket(plain, server_hostname=host) as client:
            namespace.stop()
            assert read(client) == b""
