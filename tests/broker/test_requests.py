"""Management requests: who may make them, of what, how large, and what they cost."""

import datetime
from collections.abc import Callable
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    ServiceBusAuthorizationError,
    ServiceBusError,
)
from proton import Message
from proton.utils import BlockingConnection, LinkDetached

from spark_sb_sink.broker import NamespaceHandle
from tests.broker.test_journal import billing, take
from tests.broker.test_security import field, own_sas, put_token, raw, request  # noqa: F401 - `raw` is a fixture
from tests.broker.test_sending import send

KB = 1024


def in_an_hour() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)


# Scheduling


@pytest.mark.parametrize("good", [0, 1], ids=["alone", "after a good one"])
def test_a_message_too_large_to_be_sent_is_not_scheduled_either(
    client: Any, namespace: NamespaceHandle, queue: str, good: int
) -> None:
    messages = [*(ServiceBusMessage("good") for _ in range(good)), ServiceBusMessage(b"x" * 257 * KB)]
    with client.get_queue_sender(queue) as sender, pytest.raises(ServiceBusError) as caught:
        sender.schedule_messages(messages, in_an_hour())
    assert isinstance(caught.value, MessageSizeExceededError) or "message-size-exceeded" in str(caught.value)
    assert namespace.counts(queue) == {"active": 0, "deferred": 0, "scheduled": 0, "locked": 0}
    assert namespace.counters(queue)["sends"] == 0


def test_a_request_that_schedules_what_the_rules_refuse_stores_nothing(
    client: Any, namespace: NamespaceHandle, name: str
) -> None:
    namespace.create_queue(name, requires_session=True)
    messages = [ServiceBusMessage("good", session_id="s"), ServiceBusMessage("bad")]
    with client.get_queue_sender(name) as sender, pytest.raises(ServiceBusError, match="SessionId"):
        sender.schedule_messages(messages, in_an_hour())
    assert namespace.counts(name)["scheduled"] == 0


def test_who_may_only_listen_may_not_schedule(
    namespace: NamespaceHandle,
    open_client: Callable[..., Any],
    name: str,
    queue: str,
    raw: BlockingConnection,  # noqa: F811
) -> None:
    text = namespace.add_policy(f"listen-{name}", ["Listen"])
    with (
        pytest.raises(ServiceBusAuthorizationError, match="'Send' claim"),
        open_client(text).get_queue_sender(queue) as sender,
    ):
        sender.schedule_messages(ServiceBusMessage("x"), in_an_hour())
    token = own_sas(namespace, queue, policy=f"listen-{name}", key=field(text, "SharedAccessKey"))
    assert put_token(raw, f"sb://{namespace.endpoint}/{queue}", token)[0] == 202
    body = {"messages": [{"message-id": "1", "message": Message(b"x").encode()}]}
    answer = request(raw, f"{queue}/$management", {"operation": "com.microsoft:schedule-message"}, body)
    assert answer.properties["statusCode"] == 401
    assert answer.properties["errorCondition"] == "amqp:unauthorized-access"
    assert "'Send' claim(s) are required" in answer.properties["statusDescription"]
    assert namespace.counts(queue)["scheduled"] == 0


def test_a_scheduled_message_is_billed_in_steps_of_64_kb_beside_its_request(
    client: Any, namespace: NamespaceHandle, queue: str
) -> None:
    with client.get_queue_sender(queue) as sender:
        [number] = sender.schedule_messages(ServiceBusMessage(b"x" * 130 * KB), in_an_hour())
        assert billing(namespace, queue) == {"sends": 3, "management": 1}
        sender.cancel_scheduled_messages(number)
    assert billing(namespace, queue) == {"sends": 3, "management": 2}


# Entities that are switched off


@pytest.mark.parametrize("call", ["renew_message_lock", "peek_messages"])
def test_a_disabled_queue_refuses_requests(client: Any, namespace: NamespaceHandle, queue: str, call: str) -> None:
    send(client, queue, ServiceBusMessage("x"))
    with client.get_queue_receiver(queue) as receiver:
        [message] = take(receiver)
        receiver.peek_messages(1)
        namespace.disable(queue)
        with pytest.raises(MessagingEntityDisabledError):
            receiver.renew_message_lock(message) if call == "renew_message_lock" else receiver.peek_messages(1)


def test_a_disabled_queue_refuses_requests_on_links_that_were_open_before(
    namespace: NamespaceHandle,
    queue: str,
    raw: BlockingConnection,  # noqa: F811
) -> None:
    node = f"{queue}/$management"
    assert put_token(raw, f"sb://{namespace.endpoint}/{queue}", own_sas(namespace, queue))[0] == 202
    answers, requests = raw.create_receiver(node, credit=1), raw.create_sender(node)
    namespace.disable(queue)
    peek = {"from-sequence-number": 0, "message-count": 1}
    condition: Any
    try:
        requests.send(Message(properties={"operation": "com.microsoft:peek-message"}, body=peek, reply_to=node))
        condition = answers.receive(timeout=10).properties["errorCondition"]
    except LinkDetached as error:  # which would do as well
        condition = error.condition
    assert condition == "com.microsoft:entity-disabled"


# Peeks


@pytest.mark.parametrize("open_client", ["sync"], indirect=True)
@pytest.mark.parametrize("count", [0, -1])
def test_a_peek_of_no_messages_is_refused(
    client: Any,
    namespace: NamespaceHandle,
    queue: str,
    raw: BlockingConnection,  # noqa: F811
    count: int,
) -> None:
    send(client, queue, ServiceBusMessage("x"))
    assert put_token(raw, f"sb://{namespace.endpoint}/{queue}", own_sas(namespace, queue))[0] == 202
    body = {"from-sequence-number": 0, "message-count": count}
    answer = request(raw, f"{queue}/$management", {"operation": "com.microsoft:peek-message"}, body)
    assert answer.properties["statusCode"] == 400
    assert f"message-count is {count}" in answer.properties["statusDescription"]


# Tokens


@pytest.mark.parametrize("where", ["{b}", "{b}/$management"])
def test_a_token_put_for_one_queue_opens_no_other(
    namespace: NamespaceHandle,
    queue: str,
    raw: BlockingConnection,  # noqa: F811
    where: str,
) -> None:
    namespace.create_queue(f"{queue}-b")
    everywhere = own_sas(namespace, "", uri=f"sb://{namespace.endpoint}/")
    assert put_token(raw, f"sb://{namespace.endpoint}/{queue}", everywhere)[0] == 202
    raw.create_sender(queue).close()
    with pytest.raises(LinkDetached) as caught:
        raw.create_sender(where.format(b=f"{queue}-b"))
    assert caught.value.condition == "amqp:unauthorized-access"
    assert put_token(raw, f"sb://{namespace.endpoint}/{queue}-b", everywhere)[0] == 202
    raw.create_sender(where.format(b=f"{queue}-b")).close()
