"""A second official SDK takes the broker for Service Bus: what JavaScript writes Python reads, and back."""

import datetime
import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from spark_sb_sink.broker import NamespaceHandle

SCRIPT = Path(__file__).with_suffix(".mjs")
PACKAGE = "@azure/service-bus@7"
Step = Callable[..., Any]

pytestmark = pytest.mark.skipif(
    shutil.which("node") is None or shutil.which("npm") is None, reason="needs node and npm on the PATH"
)


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the SDK in it, installed once per run: the first worker that needs it does it."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "javascript"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "installed").exists():
            (folder / "package.json").write_text('{"private": true}')
            npm = ["npm", "install", "--no-audit", "--no-fund", "--loglevel=error", PACKAGE]
            done = subprocess.run(npm, cwd=folder, capture_output=True, text=True, timeout=240)
            assert done.returncode == 0, f"npm could not install {PACKAGE}: {done.stderr.strip()}"
            (folder / "installed").touch()
    return folder


@pytest.fixture
def javascript(package: Path, namespace: NamespaceHandle) -> Step:
    """Runs one step of the script and returns what it printed."""

    def step(name: str, **given: Any) -> Any:
        given.setdefault("connection", namespace.connection_string)
        done = subprocess.run(
            ["node", str(SCRIPT), name, json.dumps(given)], cwd=package, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return step


def text_of(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def test_python_reads_what_javascript_wrote(namespace: NamespaceHandle, queue: str, javascript: Step) -> None:
    properties = {"text": "grün", "whole": 5, "long": 2**40, "negative": -3, "fraction": 1.5, "yes": True, "none": None}
    message = {
        "body": "från JavaScript",
        "messageId": "js-1",
        "timeToLive": 90_000,
        "subject": "greeting",
        "contentType": "text/plain",
        "correlationId": "c-1",
        "applicationProperties": properties,
    }
    assert javascript("send", queue=queue, messages=[message, {**message, "messageId": "js-2"}]) == 2
    with (
        ServiceBusClient.from_connection_string(namespace.connection_string) as client,
        client.get_queue_receiver(queue) as receiver,
    ):
        found = receiver.receive_messages(max_message_count=2, max_wait_time=10)
        found += receiver.receive_messages(max_wait_time=10) if len(found) < 2 else []
        for each in found:
            receiver.complete_message(each)
    assert [each.message_id for each in found] == ["js-1", "js-2"]
    first = found[0]
    assert str(first) == "från JavaScript"
    assert first.time_to_live == datetime.timedelta(seconds=90)
    assert (first.subject, first.content_type, first.correlation_id) == ("greeting", "text/plain", "c-1")
    read = {text_of(key): text_of(value) for key, value in first.application_properties.items()}
    # The JavaScript SDK writes a Date as an AMQP timestamp, which Python gives back as milliseconds.
    assert read.pop("when") == 1767323045678
    assert read == properties
    assert namespace.counts(queue)["active"] == 0


def test_javascript_reads_what_python_wrote(namespace: NamespaceHandle, queue: str, javascript: Step) -> None:
    properties: dict[str, Any] = {"text": "grün", "whole": 5, "negative": -3, "fraction": 1.5, "yes": True}
    message = ServiceBusMessage(
        "aus Python",
        message_id="py-1",
        time_to_live=datetime.timedelta(seconds=90),
        subject="greeting",
        content_type="text/plain",
        correlation_id="c-1",
        application_properties=properties,
    )
    with (
        ServiceBusClient.from_connection_string(namespace.connection_string) as client,
        client.get_queue_sender(queue) as sender,
    ):
        sender.send_messages([message, ServiceBusMessage("zwei", message_id="py-2")])
    first, second = javascript("receive", queue=queue, count=2)
    assert first["body"] == "aus Python"
    assert first["messageId"] == "py-1"
    assert first["timeToLive"] == 90_000
    assert (first["subject"], first["contentType"], first["correlationId"]) == ("greeting", "text/plain", "c-1")
    assert first["properties"] == properties
    assert first["deliveryCount"] == 0
    assert (second["body"], second["messageId"]) == ("zwei", "py-2")
    assert namespace.counts(queue)["active"] == 0
    assert namespace.tally(queue)["py-1"]["completed"] == 1


def test_sessions_cross_both_ways(namespace: NamespaceHandle, name: str, javascript: Step) -> None:
    namespace.create_queue(name, requires_session=True)
    javascript("send", queue=name, messages=[{"body": "from JavaScript", "messageId": "js-1", "sessionId": "s-1"}])
    with ServiceBusClient.from_connection_string(namespace.connection_string) as client:
        with client.get_queue_receiver(name, session_id="s-1") as receiver:
            (message,) = receiver.receive_messages(max_wait_time=10)
            assert (str(message), message.session_id) == ("from JavaScript", "s-1")
            receiver.complete_message(message)
        with client.get_queue_sender(name) as sender:
            sender.send_messages(ServiceBusMessage("from Python", session_id="s-2"))
    (read,) = javascript("receive", queue=name, session="s-2", count=1)
    assert (read["body"], read["sessionId"]) == ("from Python", "s-2")
    assert namespace.counts(name)["active"] == 0


def test_javascript_defers_peeks_and_receives_deferred(
    namespace: NamespaceHandle, queue: str, javascript: Step
) -> None:
    with (
        ServiceBusClient.from_connection_string(namespace.connection_string) as client,
        client.get_queue_sender(queue) as sender,
    ):
        sender.send_messages(ServiceBusMessage("keep", message_id="py-1"))
    told = javascript("deferred", queue=queue)
    assert [(each["body"], each["state"]) for each in told["peeked"]] == [("keep", "deferred")]
    assert told["again"]["messageId"] == "py-1"
    assert told["again"]["sequenceNumber"] == told["peeked"][0]["sequenceNumber"]
    assert told["left"] == 0
    assert namespace.counts(queue)["active"] == 0


def test_properties_that_javascript_modifies_on_settling_are_in_the_message_from_then_on(
    namespace: NamespaceHandle, queue: str, javascript: Step
) -> None:
    """The Python SDK cannot; over the link for what is active, over `$management` for what was deferred."""
    with (
        ServiceBusClient.from_connection_string(namespace.connection_string) as client,
        client.get_queue_sender(queue) as sender,
        client.get_queue_receiver(queue, sub_queue="deadletter") as dead_letters,
    ):
        own: dict[str, Any] = {"own": "kept", "step": "sent"}
        sender.send_messages(ServiceBusMessage("one", message_id="py-1", application_properties=own))
        sender.send_messages(ServiceBusMessage("two", message_id="py-2"))
        told = javascript("modified", queue=queue)
        first, second = dead_letters.peek_messages(2)
    abandoned = {"own": "kept", "step": "abandoned", "by": "link", "whole": 5, "yes": True}
    again = {**abandoned, "step": "deferred"}
    assert told == [abandoned, again, {**again, "by": "request", "fraction": 1.5}]
    ending = {"last": "yes", "DeadLetterReason": "why", "DeadLetterErrorDescription": "what"}
    found = {text_of(key): text_of(value) for key, value in first.application_properties.items()}
    assert found == {**told[-1], **ending}
    assert second.application_properties[b"last"] == b"by link"
    assert second.dead_letter_reason == "why"


def test_javascript_peeks_and_schedules_on_connections_that_do_nothing_else(
    namespace: NamespaceHandle, queue: str, name: str, javascript: Step
) -> None:
    """Its requests come with a token for `queue/$management`, and no other is put for the queue."""
    send = namespace.add_policy(f"send-{name}", ["Send"], queue)
    assert javascript("schedule", queue=queue, connection=send) == "1"
    assert namespace.counts(queue)["scheduled"] == 1
    [peeked] = javascript("peek", queue=queue)
    assert (peeked["messageId"], peeked["state"]) == ("js-1", "scheduled")


def test_javascript_is_told_why_it_may_not(namespace: NamespaceHandle, queue: str, name: str, javascript: Step) -> None:
    listen = namespace.add_policy(f"listen-{name}", ["Listen"])
    told = javascript("refused", queue=queue, connection=listen)
    assert told["code"] == "UnauthorizedAccess"
    assert "'Send' claim(s) are required to perform this operation" in told["message"]
    missing = javascript("refused", queue="no-such-queue")
    assert missing["code"] == "MessagingEntityNotFound"
