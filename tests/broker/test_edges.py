"""Where two rules of the service meet: locks and times to live, sessions and who holds them, links and idleness."""

import datetime
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusClient, ServiceBusMessage
from azure.servicebus._common import mgmt_handlers
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageNotFoundError,
    OperationTimeoutError,
    ServiceBusError,
    SessionLockLostError,
)
from proton import symbol

from spark_sb_sink.broker import BrokerProcess, NamespaceHandle
from tests.broker.test_journal import story, take
from tests.broker.test_security import own_sas, put_token, raw, request  # noqa: F401 - `raw` is a fixture
from tests.broker.test_sending import receive, send
from tests.conftest import await_that

one_sdk = pytest.mark.parametrize("open_client", ["sync"], indirect=True)
"""For what the broker does whichever SDK asks."""


@pytest.fixture(scope="module")
def own_broker() -> Iterator[BrokerProcess]:
    """For tests that move the clock."""
    with BrokerProcess("own") as running:
        yield running
        assert "Traceback" not in running.errors(), running.errors()


@pytest.fixture
def clocked(own_broker: BrokerProcess) -> NamespaceHandle:
    return own_broker["own"]


def living(seconds: float, message_id: str) -> ServiceBusMessage:
    return ServiceBusMessage("x", message_id=message_id, time_to_live=datetime.timedelta(seconds=seconds))


# Idle links


@one_sdk
def test_a_management_link_is_not_idle_while_it_is_used(open_client: Any) -> None:
    with BrokerProcess("ns") as broker:
        namespace = broker["ns"]
        namespace.create_queue("q", lock_duration=30)
        client = open_client(namespace.connection_string)
        send(client, "q", ServiceBusMessage("held"), ServiceBusMessage("seen"))
        namespace.idle_detach_after(2)
        with client.get_queue_receiver("q") as receiver:
            [message] = take(receiver)
            receiver.peek_messages(1)
            [before] = receiver._handler._mgmt_links.values()
            until = time.monotonic() + 4.5
            while time.monotonic() < until:
                assert len(receiver.peek_messages(2, sequence_number=1)) == 2
                receiver.renew_message_lock(message)
            assert list(receiver._handler._mgmt_links.values()) == [before], "the SDK had to open the link anew"


# Sessions


@pytest.fixture
def sessions(namespace: NamespaceHandle, name: str) -> str:
    namespace.create_queue(name, requires_session=True, max_delivery_count=2)
    return name


def test_closing_a_session_receiver_gives_its_messages_back_uncounted(
    client: Any, namespace: NamespaceHandle, sessions: str
) -> None:
    send(client, sessions, ServiceBusMessage("1", session_id="s", message_id=f"{sessions}-1"))
    for _ in range(3):
        with client.get_queue_receiver(sessions, session_id="s") as receiver:
            assert [message.delivery_count for message in take(receiver)] == [0]
        await_that(lambda: namespace.counts(sessions)["locked"] == 0)
    assert namespace.counts(sessions)["active"] == 1
    assert namespace.counts(f"{sessions}/$DeadLetterQueue")["active"] == 0
    assert story(namespace, f"{sessions}-1") == ["accepted", *["delivered", "released"] * 3]


@one_sdk
def test_the_end_of_a_session_lock_counts_as_a_delivery(open_client: Any, clocked: NamespaceHandle, name: str) -> None:
    clocked.create_queue(name, requires_session=True, lock_duration=30, max_delivery_count=2)
    client = open_client(clocked.connection_string)
    send(client, name, ServiceBusMessage("1", session_id="s", message_id=f"{name}-1"))
    for count in range(2):
        receiver = client.get_queue_receiver(name, session_id="s")
        assert [message.delivery_count for message in take(receiver)] == [count]
        clocked.advance_clock(31)
        await_that(lambda: clocked.counts(name)["locked"] == 0)
        receiver.close()
    assert clocked.counts(name)["active"] == 0
    assert story(clocked, f"{name}-1") == [
        *("accepted", "delivered", "lock-expired", "delivered", "lock-expired"),
        "dead-lettered MaxDeliveryCountExceeded",
    ]


@pytest.mark.parametrize("call", ["renew_lock", "set_state", "get_state"])
def test_who_lost_a_session_to_another_can_do_nothing_to_it(
    open_client: Any, clocked: NamespaceHandle, name: str, call: str
) -> None:
    clocked.create_queue(name, requires_session=True, lock_duration=30)
    first, second = open_client(clocked.connection_string), open_client(clocked.connection_string)
    send(first, name, ServiceBusMessage("1", session_id="s"))
    with first.get_queue_receiver(name, session_id="s") as loser:
        loser.session.set_state(b"the first one's")
        clocked.advance_clock(31)
        with second.get_queue_receiver(name, session_id="s") as holder:
            holder.session.set_state(b"the second one's")
            arguments = [b"too late"] if call == "set_state" else []
            with pytest.raises(SessionLockLostError):
                getattr(loser.session, call)(*arguments)
            assert holder.session.get_state() == b"the second one's"
            holder.session.renew_lock()


@one_sdk
@pytest.mark.parametrize("operation", ["renew-session-lock", "set-session-state", "get-session-state"])
def test_a_connection_that_does_not_hold_a_session_can_do_nothing_to_it(
    client: Any,
    namespace: NamespaceHandle,
    sessions: str,
    raw: Any,  # noqa: F811
    operation: str,
) -> None:
    assert put_token(raw, f"sb://{namespace.endpoint}/{sessions}", own_sas(namespace, sessions))[0] == 202
    with client.get_queue_receiver(sessions, session_id="s") as holder:
        holder.session.set_state(b"mine")
        body = {"session-id": "s", "session-state": b"stolen"}
        answer = request(raw, f"{sessions}/$management", {"operation": f"com.microsoft:{operation}"}, body)
        assert answer.properties["statusCode"] == 410
        assert answer.properties["errorCondition"] == symbol("com.microsoft:session-lock-lost")
        assert holder.session.get_state() == b"mine"


def test_the_wait_for_a_session_is_as_long_as_the_client_asks(namespace: NamespaceHandle, sessions: str) -> None:
    began = time.monotonic()
    with ServiceBusClient.from_connection_string(namespace.connection_string, retry_total=0) as client:
        receiver = client.get_queue_receiver(sessions, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=1)
        with pytest.raises(OperationTimeoutError), receiver:
            receiver.receive_messages(1)
    assert time.monotonic() - began < 30, "the broker's own wait, 60 s, was used"


def test_the_sessions_that_have_messages_are_listed(namespace: NamespaceHandle, sessions: str) -> None:
    with ServiceBusClient.from_connection_string(namespace.connection_string, retry_total=0) as client:
        send(client, sessions, *(ServiceBusMessage("x", session_id=session) for session in ("b", "a", "c", "a")))

        def listed(skip: int, top: int) -> list[str]:
            body = {
                "last-updated-time": {"TYPE": "TIMESTAMP", "VALUE": 253402300799999},
                "skip": {"TYPE": "INT", "VALUE": skip},
                "top": {"TYPE": "INT", "VALUE": top},
            }
            answer = receiver._mgmt_request_response_with_retry(
                b"com.microsoft:get-message-sessions", body, mgmt_handlers.default, keep_alive_associated_link=False
            )
            return [session.decode() for session in answer[b"sessions-ids"]]

        with client.get_queue_receiver(sessions, session_id="a") as receiver:
            assert sorted(listed(0, 100)) == ["a", "b", "c"]
            assert sorted(listed(0, 2) + listed(2, 2)) == ["a", "b", "c"]


# Times to live and locks


@one_sdk
@pytest.mark.parametrize("kept", [True, False], ids=["dead-lettered", "dropped"])
def test_a_message_that_outlives_its_time_under_a_lock_goes_with_the_lock(
    open_client: Any, clocked: NamespaceHandle, name: str, kept: bool
) -> None:
    clocked.create_queue(name, lock_duration=30, dead_letter_on_expiration=kept)
    client = open_client(clocked.connection_string)
    send(client, name, living(10, f"{name}-1"), living(10, f"{name}-2"))
    with client.get_queue_receiver(name) as receiver:
        assert take(receiver)[0].message_id == f"{name}-1"
    clocked.advance_clock(11)
    await_that(lambda: clocked.counts(name)["active"] == 1)  # the second one, which nobody held, is gone
    assert clocked.counts(name)["locked"] == 1
    clocked.advance_clock(20)
    await_that(lambda: clocked.counts(name)["active"] == 0)
    assert clocked.counts(f"{name}/$DeadLetterQueue")["active"] == (2 if kept else 0)
    end = "dead-lettered TTLExpiredException" if kept else "expired"
    assert story(clocked, f"{name}-1") == ["accepted", "delivered", "lock-expired", end]


@one_sdk
def test_a_message_whose_time_ran_out_under_a_live_lock_can_be_completed(
    open_client: Any, clocked: NamespaceHandle, name: str
) -> None:
    clocked.create_queue(name, lock_duration=30, dead_letter_on_expiration=True)
    client = open_client(clocked.connection_string)
    send(client, name, living(10, f"{name}-1"), living(10, f"{name}-2"))
    with client.get_queue_receiver(name) as receiver:
        [message] = take(receiver)
        clocked.advance_clock(11)
        await_that(lambda: clocked.counts(f"{name}/$DeadLetterQueue")["active"] == 1)
        receiver.complete_message(message)
    assert story(clocked, f"{name}-1") == ["accepted", "delivered", "completed"]


@one_sdk
@pytest.mark.parametrize("kept", [True, False], ids=["dead-lettered", "dropped"])
def test_a_deferred_message_expires_when_it_is_asked_for(
    open_client: Any, clocked: NamespaceHandle, name: str, kept: bool
) -> None:
    clocked.create_queue(name, lock_duration=30, dead_letter_on_expiration=kept)
    client = open_client(clocked.connection_string)
    send(client, name, living(10, f"{name}-1"), living(10, f"{name}-2"))
    with client.get_queue_receiver(name) as receiver:
        [message] = take(receiver)
        receiver.defer_message(message)
        clocked.advance_clock(11)
        await_that(lambda: clocked.counts(name)["active"] == 0)  # the second one is gone
        assert clocked.counts(name)["deferred"] == 1
        with pytest.raises(MessageNotFoundError):
            receiver.receive_deferred_messages(message.sequence_number)
    assert clocked.counts(name)["deferred"] == 0
    end = "dead-lettered TTLExpiredException" if kept else "expired"
    assert story(clocked, f"{name}-1") == ["accepted", "delivered", "deferred", end]


# Settlement


def test_two_locks_settled_in_one_request_are_settled_both_or_none(
    open_client: Any, namespace: NamespaceHandle, queue: str
) -> None:
    client = open_client(namespace.connection_string)
    send(client, queue, *(ServiceBusMessage("x", message_id=f"{queue}-{n}") for n in range(2)))
    with client.get_queue_receiver(queue) as receiver:
        first, second = take(receiver, 2)
        for tokens in ([first.lock_token, uuid.uuid4()], [uuid.uuid4(), first.lock_token]):
            with pytest.raises(MessageLockLostError):
                receiver._settle_message_via_mgmt_link("completed", tokens)
            assert namespace.counts(queue)["locked"] == 2
        receiver._settle_message_via_mgmt_link("completed", [first.lock_token, second.lock_token])
        assert namespace.counts(queue) == {"active": 0, "deferred": 0, "scheduled": 0, "locked": 0}


def test_what_a_receiver_fetched_and_never_gave_out_comes_back_uncounted(
    client: Any, namespace: NamespaceHandle, name: str
) -> None:
    namespace.create_queue(name, max_delivery_count=2)
    send(client, name, [ServiceBusMessage("x", message_id=f"{name}-{n}") for n in range(5)])
    for left in (5, 4, 3):
        with client.get_queue_receiver(name, prefetch_count=5) as receiver:
            [message] = receiver.receive_messages(1, max_wait_time=10)
            assert message.delivery_count == 0
            await_that(lambda left=left: namespace.counts(name)["locked"] == left)
            receiver.complete_message(message)
        await_that(lambda: namespace.counts(name)["locked"] == 0)
    assert [message.delivery_count for message in receive(client, name, 2)] == [0, 0]
    assert story(namespace, f"{name}-4") == ["accepted", *["delivered", "released"] * 3, "delivered", "completed"]


@one_sdk
def test_a_dead_letter_keeps_its_delivery_count(client: Any, namespace: NamespaceHandle, queue: str) -> None:
    send(client, queue, ServiceBusMessage("x"))
    with client.get_queue_receiver(queue) as receiver:
        for _ in range(2):
            receiver.abandon_message(take(receiver)[0])
        receiver.dead_letter_message(take(receiver)[0], reason="r")
    assert receive(client, queue, sub_queue="deadletter")[0].delivery_count == 2


# Partitions and subscriptions


def test_on_a_partitioned_queue_duplicates_have_the_same_key_and_id(
    client: Any, namespace: NamespaceHandle, name: str
) -> None:
    namespace.create_queue(name, partitioned=True, requires_duplicate_detection=True)
    for key in ("a", "b", "a", "b"):
        send(client, name, ServiceBusMessage(key, message_id="1", partition_key=key))
    assert namespace.counts(name)["active"] == 2
    assert sorted(str(message) for message in receive(client, name, 2)) == ["a", "b"]


def test_a_disabled_subscription_gets_nothing_while_others_do(
    client: Any, namespace: NamespaceHandle, name: str
) -> None:
    namespace.create_topic(name)
    namespace.create_subscription(name, "on")
    namespace.create_subscription(name, "off", status="Disabled")
    with client.get_topic_sender(name) as sender:
        sender.send_messages(ServiceBusMessage("x"))
    assert namespace.counts(f"{name}/Subscriptions/on")["active"] == 1
    assert namespace.counts(f"{name}/Subscriptions/off")["active"] == 0
    with (
        pytest.raises(ServiceBusError, match="disabled"),
        client.get_subscription_receiver(name, "off") as receiver,
    ):
        receiver.receive_messages(1, max_wait_time=1)
