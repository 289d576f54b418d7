"""What a receiver gets, holds, gives back and settles."""

import datetime
import inspect
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusMessageState,
    ServiceBusReceiveMode,
)
from azure.servicebus._pyamqp.error import AMQPError
from azure.servicebus._pyamqp.outcomes import Accepted, Modified, Rejected
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageNotFoundError,
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)

from spark_sb_sink.broker import BrokerProcess, NamespaceHandle
from tests.broker.test_journal import take
from tests.broker.test_sending import receive, send
from tests.conftest import await_that


@pytest.fixture(scope="module")
def own_broker() -> Iterator[BrokerProcess]:
    """For tests that move the clock."""
    with BrokerProcess("own") as running:
        yield running


def fill(client: Any, queue: str, count: int) -> None:
    send(client, queue, [ServiceBusMessage(str(number), message_id=f"{queue}-{number}") for number in range(count)])


def test_receive_and_delete_removes_at_once(client: Any, namespace: NamespaceHandle, queue: str) -> None:
    fill(client, queue, 3)
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    with client.get_queue_receiver(queue, receive_mode=mode) as receiver:
        assert [str(message) for message in receiver.receive_messages(2, max_wait_time=10)] == ["0", "1"]
        await_that(lambda: namespace.counts(queue)["active"] <= 1)
    assert namespace.counts(queue)["locked"] == 0


def test_credit_is_respected_and_prefetch_fetches_ahead(client: Any, namespace: NamespaceHandle, queue: str) -> None:
    fill(client, queue, 50)
    with client.get_queue_receiver(queue) as receiver:
        assert len(receiver.receive_messages(5, max_wait_time=10)) == 5
        assert namespace.counts(queue)["locked"] <= 6
    await_that(lambda: namespace.counts(queue)["locked"] == 5)
    with client.get_queue_receiver(queue, prefetch_count=20) as receiver:
        assert len(receiver.receive_messages(1, max_wait_time=10)) == 1
        await_that(lambda: namespace.counts(queue)["locked"] >= 5 + 20)


@pytest.mark.parametrize("by", ["link", "management"])
@pytest.mark.parametrize("what", ["complete", "abandon", "defer", "dead_letter"])
def test_every_settlement_is_confirmed_and_has_its_effect(
    client: Any, namespace: NamespaceHandle, queue: str, what: str, by: str
) -> None:
    fill(client, queue, 1)
    with client.get_queue_receiver(queue) as receiver:
        [message] = receiver.receive_messages(1, max_wait_time=10)
        if by == "management":
            message._is_deferred_message = True  # the SDK settles deferred messages over $management
        more = {"reason": "why", "error_description": "what"} if what == "dead_letter" else {}
        before = namespace.counters(queue)["management"]
        getattr(receiver, f"{what}_message")(message, **more)
        assert namespace.counters(queue)["management"] - before == (1 if by == "management" else 0)
    expected = {"complete": "completed", "abandon": "abandoned", "defer": "deferred", "dead_letter": "dead-lettered"}
    assert expected[what] in [entry.what for entry in namespace.journal(f"{queue}-0")]
    counts = namespace.counts(queue)
    assert counts["active"] == (1 if what == "abandon" else 0)
    assert counts["deferred"] == (1 if what == "defer" else 0)
    if what == "abandon":
        assert receive(client, queue)[0].delivery_count == 1
    if what == "dead_letter":
        [dead] = receive(client, queue, sub_queue="deadletter")
        assert (dead.dead_letter_reason, dead.dead_letter_error_description) == ("why", "what")
        assert str(dead) == "0"
        assert namespace.counts(f"{queue}/$DeadLetterQueue")["active"] == 0


def run(client: Any, call: Any) -> Any:
    """What comes of a call into the private parts of either SDK."""
    return client._loop.run_until_complete(call) if inspect.isawaitable(call) else call


def settle_range(receiver: Any, messages: list[Any], outcome: Any) -> dict[int, Any]:
    """Settle all from the first to the last in one frame; what the broker answers for each, by its delivery id."""
    inner = getattr(receiver, "_inner", receiver)
    link, connection = inner._handler._link, inner._handler._connection
    ids = [message._delivery_id for message in messages]
    answers: dict[int, Any] = {}
    seen = link._incoming_disposition

    def watch(frame: Any) -> Any:
        answers.update(dict.fromkeys(range(frame[1], (frame[1] if frame[2] is None else frame[2]) + 1), frame[4]))
        return seen(frame)

    link._incoming_disposition = watch
    run(receiver, link._outgoing_disposition(ids[0], ids[-1], messages[0]._delivery_tag, False, outcome, None))
    await_that(lambda: (run(receiver, connection.listen(wait=0.1)), answers.keys() >= set(ids))[1])
    return {number: answers[number] for number in ids}


DEAD = AMQPError(
    b"com.microsoft:dead-letter", b"", {"DeadLetterReason": "why", "DeadLetterErrorDescription": "what", "mine": 5}
)


@pytest.mark.parametrize(
    ("outcome", "answer", "state"),
    [
        (Accepted(), "accepted", "completed"),
        (Modified(True, False, {"mine": 5}), "modified", "abandoned"),
        (Modified(True, True, {"mine": 5}), "modified", "deferred"),
        (Rejected(DEAD), "rejected", "dead-lettered"),
    ],
    ids=["accepted", "modified", "modified and undeliverable", "rejected"],
)
def test_a_range_is_settled_at_once_and_each_delivery_is_answered(
    client: Any, namespace: NamespaceHandle, queue: str, outcome: Any, answer: str, state: str
) -> None:
    fill(client, queue, 6)
    with client.get_queue_receiver(queue, prefetch_count=6) as receiver:
        messages = take(receiver, 6)
        receiver.complete_message(messages[2])
        del messages[2]
        found = settle_range(receiver, messages, outcome)
        assert {next(iter(one)) for one in found.values()} == {answer}
    assert namespace.tally(queue)[f"{queue}-2"].keys() == {"accepted", "delivered", "completed"}
    told = [namespace.tally()[str(message.message_id)] for message in messages]
    assert [what.get(state) for what in told] == [1] * 5
    counts = namespace.counts(queue)
    assert counts["deferred"] == (5 if state == "deferred" else 0)
    if answer == "accepted":
        assert counts["active"] == 0
        return
    sub_queue = {"sub_queue": "deadletter"} if state == "dead-lettered" else {}
    with client.get_queue_receiver(queue, **sub_queue) as receiver:
        again = receiver.peek_messages(10)
    assert [str(message) for message in again] == ["0", "1", "3", "4", "5"]
    assert all(message.application_properties[b"mine"] == 5 for message in again)
    if state == "abandoned":
        assert {message.delivery_count for message in again} == {1}
    if state == "dead-lettered":
        assert {(m.dead_letter_reason, m.dead_letter_error_description) for m in again} == {("why", "what")}


def test_in_a_range_a_lost_lock_is_told_for_its_delivery_alone(
    client: Any, namespace: NamespaceHandle, queue: str
) -> None:
    fill(client, queue, 5)
    with client.get_queue_receiver(queue, prefetch_count=5) as receiver:
        messages = take(receiver, 5)
        inner = getattr(receiver, "_inner", receiver)
        run(receiver, inner._settle_message_via_mgmt_link("completed", [messages[2].lock_token]))  # behind its back
        answers = list(settle_range(receiver, messages, Accepted()).values())
        assert [next(iter(answer)) for answer in answers] == [
            "accepted",
            "accepted",
            "rejected",
            "accepted",
            "accepted",
        ]
        assert answers[2]["rejected"][0][0] == b"com.microsoft:message-lock-lost"
    story = [entry.what for entry in namespace.journal(f"{queue}-2")]
    assert story == ["accepted", "delivered", "completed", "lock-lost"]


def test_a_lock_runs_out_and_the_message_comes_again_with_its_count_up(
    open_client: Any, own_broker: BrokerProcess, name: str
) -> None:
    namespace = own_broker["own"]
    namespace.create_queue(name, lock_duration=30)
    client = open_client(namespace.connection_string)
    fill(client, name, 1)
    with client.get_queue_receiver(name) as receiver:
        [message] = receiver.receive_messages(1, max_wait_time=10)
        left = (message.locked_until_utc - datetime.datetime.now(datetime.UTC)).total_seconds()
        namespace.advance_clock(25)
        assert namespace.counts(name)["locked"] == 1
        renewed = receiver.renew_message_lock(message)
        assert (renewed - datetime.datetime.now(datetime.UTC)).total_seconds() > left
        namespace.advance_clock(25)
        assert namespace.counts(name)["locked"] == 1
        namespace.advance_clock(6)
        await_that(lambda: namespace.counts(name)["locked"] == 0)
        with pytest.raises(MessageLockLostError):
            receiver.complete_message(message)
        with pytest.raises(MessageLockLostError):
            receiver.renew_message_lock(message)
    assert receive(client, name)[0].delivery_count == 1


def test_after_the_last_delivery_a_message_is_dead_lettered(client: Any, namespace: NamespaceHandle, name: str) -> None:
    namespace.create_queue(name, max_delivery_count=3)
    fill(client, name, 1)
    with client.get_queue_receiver(name) as receiver:
        for count in range(3):
            [message] = receiver.receive_messages(1, max_wait_time=10)
            assert message.delivery_count == count
            receiver.abandon_message(message)
    [dead] = receive(client, name, sub_queue="deadletter")
    assert dead.dead_letter_reason == "MaxDeliveryCountExceeded"


def test_messages_left_unsettled_by_a_closed_receiver_stay_locked(
    client: Any, namespace: NamespaceHandle, queue: str
) -> None:
    fill(client, queue, 1)
    with client.get_queue_receiver(queue) as receiver:
        assert len(receiver.receive_messages(1, max_wait_time=10)) == 1
    assert namespace.counts(queue)["locked"] == 1
    assert namespace.expire_locks(queue) == 1
    assert receive(client, queue)[0].delivery_count == 1


# Deferred and peeked


def test_deferred_messages_come_by_number_all_or_none(client: Any, namespace: NamespaceHandle, queue: str) -> None:
    fill(client, queue, 4)
    with client.get_queue_receiver(queue) as receiver:
        numbers = []
        while len(numbers) < 3:
            [message] = receiver.receive_messages(1, max_wait_time=10)
            receiver.defer_message(message)
            numbers.append(message.sequence_number)
        assert namespace.counts(queue)["deferred"] == 3
        states = {str(m): m.state for m in receiver.peek_messages(10, sequence_number=1)}
        assert states == {
            **dict.fromkeys(("0", "1", "2"), ServiceBusMessageState.DEFERRED),
            "3": ServiceBusMessageState.ACTIVE,
        }
        with pytest.raises(MessageNotFoundError):
            receiver.receive_deferred_messages([*numbers, 99])
        [held] = receiver.receive_deferred_messages(numbers[1])
        with pytest.raises(MessageNotFoundError):
            receiver.receive_deferred_messages(numbers)
        receiver.abandon_message(held)
        found = receiver.receive_deferred_messages(numbers)
        assert [str(message) for message in found] == ["0", "1", "2"]
        receiver.renew_message_lock(found[0])
        for message in found:
            receiver.complete_message(message)
    assert namespace.counts(queue) == {"active": 1, "deferred": 0, "scheduled": 0, "locked": 0}


def test_deferred_messages_of_two_partitions_are_not_given_together(
    client: Any, namespace: NamespaceHandle, name: str
) -> None:
    namespace.create_queue(name, partitioned=True)
    send(client, name, ServiceBusMessage("1", partition_key="a"), ServiceBusMessage("2", partition_key="b"))
    with client.get_queue_receiver(name) as receiver:
        numbers = []
        while len(numbers) < 2:
            [message] = receiver.receive_messages(1, max_wait_time=10)
            receiver.defer_message(message)
            numbers.append(message.sequence_number)
        with pytest.raises(ServiceBusError, match="more than one partition"):
            receiver.receive_deferred_messages(numbers)
        assert all(len(receiver.receive_deferred_messages(number)) == 1 for number in numbers)


def test_a_peek_returns_at_most_250_and_locks_nothing(client: Any, namespace: NamespaceHandle, queue: str) -> None:
    fill(client, queue, 300)
    with client.get_queue_receiver(queue) as receiver:
        first = receiver.peek_messages(1000)
        assert len(first) == 250
        rest = receiver.peek_messages(1000, sequence_number=first[-1].sequence_number + 1)
        assert [str(message) for message in first + rest] == [str(number) for number in range(300)]
        assert receiver.peek_messages(10, sequence_number=1000) == []
    assert namespace.counts(queue)["locked"] == 0


def test_the_annotations_of_a_message_that_is_sent_on_are_the_brokers_own(
    client: Any, namespace: NamespaceHandle, name: str
) -> None:
    """A message sent on as it was received carries the old queue's sequence number; it must not win."""
    namespace.create_queue(name)
    namespace.create_queue(f"{name}-2")
    fill(client, name, 3)
    last = receive(client, name, 3)[-1]
    raw = last.raw_amqp_message
    raw.annotations = {b"x-opt-sequence-number": 3, b"mine": "kept"}
    send(client, f"{name}-2", raw)
    [got] = receive(client, f"{name}-2")
    assert got.sequence_number == 1
    assert got.raw_amqp_message.annotations[b"mine"] == b"kept"


# Idle links


def test_an_idle_receiver_is_detached_also_during_a_receive(open_client: Any) -> None:
    with BrokerProcess("ns") as broker:
        namespace = broker["ns"]
        namespace.create_queue("q")
        namespace.idle_detach_after(1)
        client = open_client(namespace.connection_string)
        with (
            client.get_queue_receiver("q") as receiver,
            pytest.raises(ServiceBusConnectionError, match="detach-forced"),
        ):
            receiver.receive_messages(1, max_wait_time=15)
        with client.get_queue_sender("q") as sender:
            sender.send_messages(ServiceBusMessage("1"))
            link = sender._handler._link
            await_that(lambda: _detached(sender, link))
            sender.create_message_batch()


def _detached(sender: Any, link: Any) -> bool:
    try:
        sender._handler.do_work() if not hasattr(sender, "_loop") else sender._loop.run_until_complete(
            sender._inner._handler.do_work_async()
        )
    except Exception:  # noqa: BLE001 - any error here is the detach that is waited for
        return True
    return link.state.name in ("ERROR", "DETACHED")


# Sessions


@pytest.fixture
def sessions(namespace: NamespaceHandle, name: str) -> str:
    namespace.create_queue(name, requires_session=True)
    return name


def test_a_named_session_gets_its_messages_only_and_in_order(client: Any, sessions: str) -> None:
    send(client, sessions, [ServiceBusMessage(f"{n}", session_id="ab"[n % 2]) for n in range(10)])
    with client.get_queue_receiver(sessions, session_id="b") as receiver:
        found = []
        while len(found) < 5:
            messages = receiver.receive_messages(5, max_wait_time=10)
            assert messages
            for message in messages:
                receiver.complete_message(message)
            found += messages
        assert [str(message) for message in found] == ["1", "3", "5", "7", "9"]
        assert receiver.receive_messages(1, max_wait_time=0.5) == []


def test_the_next_available_session_is_one_that_nobody_holds(client: Any, sessions: str) -> None:
    send(client, sessions, ServiceBusMessage("1", session_id="one"), ServiceBusMessage("2", session_id="two"))
    with (
        client.get_queue_receiver(sessions, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=10) as first,
        client.get_queue_receiver(sessions, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=10) as second,
    ):
        assert {first.session.session_id, second.session.session_id} == {"one", "two"}


def test_without_any_session_the_wait_ends_with_a_timeout(client: Any, sessions: str) -> None:
    receiver = client.get_queue_receiver(sessions, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=1)
    with pytest.raises(OperationTimeoutError), receiver:
        receiver.receive_messages(1)


def test_a_waiting_receiver_gets_the_session_that_appears(namespace: NamespaceHandle, sessions: str) -> None:
    with ServiceBusClient.from_connection_string(namespace.connection_string, retry_total=0) as client:
        found: list[Any] = []

        def wait() -> None:
            with client.get_queue_receiver(sessions, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=20) as receiver:
                found.extend(receiver.receive_messages(1, max_wait_time=10))

        thread = threading.Thread(target=wait)
        thread.start()
        await_that(lambda: namespace.overview()["connections"] > 0)
        with ServiceBusClient.from_connection_string(namespace.connection_string) as other:
            send(other, sessions, ServiceBusMessage("late", session_id="s"))
        thread.join(30)
        assert [str(message) for message in found] == ["late"]


def test_a_session_that_is_held_cannot_be_locked(client: Any, sessions: str) -> None:
    send(client, sessions, ServiceBusMessage("1", session_id="s"))
    with client.get_queue_receiver(sessions, session_id="s"):
        second = client.get_queue_receiver(sessions, session_id="s")
        with pytest.raises(SessionCannotBeLockedError), second:
            pass
    with client.get_queue_receiver(sessions, session_id="s") as again:
        assert len(again.receive_messages(1, max_wait_time=10)) == 1


def test_a_session_has_a_state_and_a_lock_that_is_renewed(
    open_client: Any, own_broker: BrokerProcess, name: str
) -> None:
    namespace = own_broker["own"]
    namespace.create_queue(name, requires_session=True, lock_duration=30)
    client = open_client(namespace.connection_string)
    send(client, name, ServiceBusMessage("1", session_id="s"))
    with client.get_queue_receiver(name, session_id="s") as receiver:
        session = receiver.session
        assert session.get_state() is None
        session.set_state(b"half way")
        assert session.get_state() == b"half way"
        [message] = receiver.receive_messages(1, max_wait_time=10)
        namespace.advance_clock(25)
        session.renew_lock()
        namespace.advance_clock(25)
        receiver.complete_message(message)
        namespace.advance_clock(40)
        with pytest.raises(SessionLockLostError):
            session.get_state()
    with client.get_queue_receiver(name, session_id="s") as receiver:
        assert receiver.session.get_state() == b"half way"


def test_a_receiver_without_a_session_is_refused_where_sessions_are_required(client: Any, sessions: str) -> None:
    with (
        pytest.raises(ServiceBusError, match="non-sessionful"),
        client.get_queue_receiver(sessions) as receiver,
    ):
        receiver.receive_messages(1, max_wait_time=1)


def test_a_session_receiver_is_refused_on_an_entity_without_sessions(client: Any, queue: str) -> None:
    with pytest.raises(ServiceBusError, match="sessionful"), client.get_queue_receiver(queue, session_id="s"):
        pass


def test_deferred_messages_of_a_session_come_by_number(client: Any, sessions: str) -> None:
    send(client, sessions, ServiceBusMessage("1", session_id="s"))
    with client.get_queue_receiver(sessions, session_id="s") as receiver:
        [message] = receiver.receive_messages(1, max_wait_time=10)
        receiver.defer_message(message)
        [again] = receiver.receive_deferred_messages(message.sequence_number)
        receiver.complete_message(again)


# Topics


def test_each_subscription_gets_what_its_rules_let_through(client: Any, namespace: NamespaceHandle, name: str) -> None:
    namespace.create_topic(name)
    namespace.create_subscription(name, "all")
    namespace.create_subscription(name, "red", correlation={"subject": "paint", "properties": {"colour": "red"}})
    with client.get_topic_sender(name) as sender:
        sender.send_messages(
            [
                ServiceBusMessage("1", subject="paint", application_properties={"colour": "red"}),
                ServiceBusMessage("2", subject="paint", application_properties={"colour": "blue"}),
                ServiceBusMessage("3", subject="other", application_properties={"colour": "red"}),
            ]
        )
    found = {}
    for subscription in ("all", "red"):
        with client.get_subscription_receiver(name, subscription) as receiver:
            messages = receiver.receive_messages(5, max_wait_time=2)
            found[subscription] = [str(message) for message in messages]
            for message in messages:
                receiver.dead_letter_message(message, reason="r")
        with client.get_subscription_receiver(name, subscription, sub_queue="deadletter") as receiver:
            dead = receiver.receive_messages(5, max_wait_time=2)
            assert [message.dead_letter_reason for message in dead] == ["r"] * len(messages)
    assert found == {"all": ["1", "2", "3"], "red": ["1"]}


def test_a_topic_schedules_detects_duplicates_and_keeps_sessions(open_client: Any) -> None:
    with BrokerProcess("ns") as broker:
        namespace = broker["ns"]
        namespace.create_topic("t", requires_duplicate_detection=True)
        namespace.create_subscription("t", "s", requires_session=True)
        client = open_client(namespace.connection_string)
        at = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
        with client.get_topic_sender("t") as sender:
            for _ in range(2):
                sender.send_messages(ServiceBusMessage("now", message_id="1", session_id="a"))
            [kept, gone] = sender.schedule_messages(
                [ServiceBusMessage("x", message_id="2", session_id="a"), ServiceBusMessage("y", session_id="a")], at
            )
            sender.cancel_scheduled_messages(gone)
            assert kept != gone
        assert namespace.counts("t/Subscriptions/s")["active"] == 1
        namespace.advance_clock(3601)
        await_that(lambda: namespace.counts("t/Subscriptions/s")["active"] == 2)
        # A token of before the leap has run out with it, so a new client comes.
        with open_client(namespace.connection_string).get_subscription_receiver("t", "s", session_id="a") as receiver:
            found: list[str] = []
            while len(found) < 2:
                found += [str(message) for message in receiver.receive_messages(5, max_wait_time=10)]
        assert found == ["now", "x"]
