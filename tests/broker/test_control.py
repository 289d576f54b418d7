"""The control API over HTTP: what it takes; and what it does not take is refused in one sentence, never with a 500."""

import http.client
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_sb_sink.broker import (
    BlackHole,
    BrokerProcess,
    Busy,
    CbsAnswer,
    ControlError,
    CutMidBatch,
    FullQuota,
    LateVisible,
    LoseAck,
    ManagementAnswer,
    NamespaceHandle,
    Refuse,
    Reject,
    Shape,
)
from spark_sb_sink.broker.faults import KINDS, Fault, FaultError, from_json, to_json


def ask(
    namespace: NamespaceHandle, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, Any]:
    """The status and the JSON of an answer to exactly these bytes."""
    host, _, rest = namespace.control_url.removeprefix("http://").partition("/")
    connection = http.client.HTTPConnection(host, timeout=30)
    try:
        connection.request(method, path if path.startswith("/") else f"/{rest}/{path}", body, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def post(namespace: NamespaceHandle, path: str, body: object) -> tuple[int, Any]:
    return ask(namespace, "POST", path, json.dumps(body).encode())


def refused(answer: tuple[int, Any], status: int, *parts: str) -> None:
    """Refused with that status, in one sentence that has these parts."""
    assert answer[0] == status, answer
    assert list(answer[1]) == ["error"]
    text = answer[1]["error"]
    assert "\n" not in text
    assert "Traceback" not in text
    for part in parts:
        assert part in text


# What it takes


@pytest.mark.parametrize(
    "fault",
    [
        Refuse(),
        BlackHole("attach"),
        CbsAnswer(500, "why not"),
        Reject("amqp:not-allowed", "no", info=False, count=2, at="attach"),
        Busy(count=1, above_rate=2.5),
        LoseAck(3),
        CutMidBatch(70_000, 1),
        Shape(latency=1, bandwidth=1000),
        LateVisible(seconds=1.5),
        FullQuota(),
        ManagementAnswer(500, "amqp:internal-error", "no", operation="peek-message", count=2),
    ],
    ids=lambda fault: fault.kind,
)
def test_every_fault_can_be_hung_listed_and_undone_as_json(
    namespace: NamespaceHandle, queue: str, fault: Fault
) -> None:
    status, hung = post(namespace, "faults", {**to_json(fault), "entity": queue})
    assert status == 200
    assert (hung["entity"], hung["left"]) == (queue, getattr(fault, "count", None))
    assert ask(namespace, "GET", "faults") == (200, [hung])
    number = hung["id"]
    assert from_json({key: value for key, value in hung.items() if key not in ("id", "entity", "left")}) == fault
    assert ask(namespace, "DELETE", f"faults/{number}") == (200, {})
    assert ask(namespace, "GET", "faults") == (200, [])


def test_every_kind_of_fault_is_covered_here() -> None:
    assert len(KINDS) == 11


def test_entities_are_made_changed_and_shown(namespace: NamespaceHandle, name: str) -> None:
    assert post(namespace, "queues", {"name": name, "lock_duration": 30})[0] == 200
    assert post(namespace, "topics", {"name": f"{name}-t"})[0] == 200
    made = post(namespace, "subscriptions", {"topic": f"{name}-t", "name": "s", "correlation": {"subject": "a"}})
    assert made == (200, {"path": f"{name}-t/Subscriptions/s"})
    status, settings_now = post(namespace, "settings", {"name": name, "lock_duration": 45.5, "discard": True})
    assert status == 200
    assert (settings_now["lock_duration"], settings_now["discard"], settings_now["status"]) == (45.5, True, "Active")
    shown = namespace.overview()
    assert shown["running"] is True
    assert shown["entities"][name]["type"] == "queue"
    assert set(shown["entities"][f"{name}-t"]["stores"]) >= {made[1]["path"], f"{made[1]['path']}/$DeadLetterQueue"}
    for entity in (name, f"{name}-t"):
        assert post(namespace, "delete", {"name": entity}) == (200, {})
        assert entity not in namespace.overview()["entities"]


def test_a_fault_hangs_on_the_entity_that_a_path_belongs_to_and_on_nothing_that_is_not_there(
    namespace: NamespaceHandle, name: str, queue: str
) -> None:
    namespace.create_topic(f"{name}-t")
    namespace.create_subscription(f"{name}-t", "all")
    below = [f"{name}-t/Subscriptions/all", f"{name}-t/subscriptions/ALL/$deadletterqueue", f"{name}-T/$management"]
    for path, entity in [*((path, f"{name}-t") for path in below), (f"{queue}/$DeadLetterQueue", queue)]:
        with namespace.fault(Busy(), path):
            assert [fault["entity"] for fault in namespace.faults()] == [entity]
    for path in (f"{queue}s", f"{name}-t/Subscriptions/none", f"{name}-t/$deadletterqueue", f"{queue}/none"):
        for body in ({"kind": "busy", "entity": path}, {"entity": path}):
            refused(post(namespace, "faults" if "kind" in body else "cut", body), 404, repr(path), "there are ")
    assert namespace.faults() == []


def test_the_handle_raises_the_brokers_own_sentence(namespace: NamespaceHandle, name: str) -> None:
    with pytest.raises(ControlError, match=f"POST /delete on primary: .*{name}.*could not be found"):
        namespace.delete(name)
    with pytest.raises(ControlError, match="there is no"):
        namespace.counts(name)
    with pytest.raises(ControlError, match="lock_durationn"):
        namespace.create_queue(name, lock_durationn=30)


def test_neither_the_repr_of_a_handle_nor_an_error_shows_a_key(namespace: NamespaceHandle) -> None:
    key = namespace.connection_string.split("SharedAccessKey=")[1].split(";")[0]
    assert key not in repr(namespace)
    assert key not in json.dumps(namespace.overview())


# What it does not take


def test_an_unknown_namespace_path_or_method_is_refused(namespace: NamespaceHandle) -> None:
    refused(ask(namespace, "GET", "/nowhere/faults"), 404, "'nowhere'")
    refused(ask(namespace, "GET", "nothing"), 404, "/nothing")
    refused(ask(namespace, "PUT", "faults"), 405, "PUT")
    refused(ask(namespace, "DELETE", "faults/one"), 404)
    assert ask(namespace, "GET", "/PRIMARY/faults") == (200, []), "names of namespaces know no case"


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"kind=refuse",
        b"\xff\xfe\xfd",
        b'{"kind": "refuse"} {}',
        b"[" * 100_000,
        b'{"kind": "reject", "description": "\\ud800"}',
    ],
    ids=["cut short", "a form", "no text", "two of them", "nested without end", "half a character"],
)
def test_a_body_that_is_no_json_is_refused(namespace: NamespaceHandle, body: bytes) -> None:
    refused(ask(namespace, "POST", "faults", body), 400, "no JSON")
    refused(ask(namespace, "POST", "faults", body, **{"Content-Type": "text/plain; charset=no-such"}), 400, "no JSON")


@pytest.mark.parametrize("body", [[], [{}], "refuse", 1, None, True])
def test_a_body_that_is_no_object_is_refused(namespace: NamespaceHandle, body: object) -> None:
    refused(post(namespace, "faults", body), 400, "object")


def test_a_body_that_is_too_large_is_refused(namespace: NamespaceHandle) -> None:
    refused(ask(namespace, "POST", "faults", b" " * (17 * 1024 * 1024)), 413, "Too Large")


@pytest.mark.parametrize(
    ("fault", "parts"),
    [
        ({}, ["kind is None", "refuse"]),
        ({"kind": "earthquake"}, ["'earthquake'", "black-hole"]),
        ({"kind": ["refuse"]}, ["kind is ['refuse']"]),
        ({"kind": "refuse", "entity": 5}, ["entity is 5", "text"]),
        ({"kind": "refuse", "entity": ""}, ["entity is empty"]),
        ({"kind": "refuse", "count": 1}, ["'count'"]),
        ({"kind": "busy", "cuont": 1}, ["'cuont'", "count"]),
        ({"kind": "busy", "count": 0}, ["count is 0"]),
        ({"kind": "busy", "count": True}, ["count is True", "whole number"]),
        ({"kind": "busy", "count": 1.5}, ["count is 1.5"]),
        ({"kind": "busy", "count": "3"}, ["count is '3'"]),
        ({"kind": "busy", "above_rate": 0}, ["above_rate is 0"]),
        ({"kind": "busy", "above_rate": float("nan")}, ["above_rate is nan"]),
        ({"kind": "busy", "description": None}, ["description is None", "text"]),
        ({"kind": "black-hole", "after": "lunch"}, ["after is 'lunch'", "accept or attach"]),
        ({"kind": "cbs", "status": "503"}, ["status is '503'"]),
        ({"kind": "cbs", "status": 99}, ["status is 99"]),
        ({"kind": "reject", "at": "noon"}, ["at is 'noon'"]),
        ({"kind": "reject", "info": 1}, ["info is 1", "true or false"]),
        ({"kind": "reject", "condition": 5}, ["condition is 5"]),
        ({"kind": "reject", "condition": ""}, ["AMQP symbol"]),
        ({"kind": "reject", "condition": "größer"}, ["AMQP symbol"]),
        ({"kind": "cut-mid-batch", "after_bytes": 0}, ["after_bytes is 0"]),
        ({"kind": "shape", "latency": "slow"}, ["latency is 'slow'", "a number"]),
        ({"kind": "shape", "latency": -1}, ["latency"]),
        ({"kind": "shape", "latency": float("inf")}, ["latency is inf"]),
        ({"kind": "shape", "latency": 10**400}, ["latency is"]),
        ({"kind": "shape", "bandwidth": 0}, ["bandwidth"]),
        ({"kind": "late-visible", "seconds": -0.1}, ["seconds is -0.1"]),
        ({"kind": "late-visible", "seconds": None}, ["seconds is None"]),
        ({"kind": "management", "status": 200}, ["status is 200"]),
        ({"kind": "management", "condition": ""}, ["management: condition", "AMQP symbol"]),
    ],
    ids=lambda value: json.dumps(value)[:40] if isinstance(value, dict) else "",
)
def test_a_fault_that_cannot_be_is_refused_with_what_it_takes(
    namespace: NamespaceHandle, fault: dict[str, Any], parts: list[str]
) -> None:
    refused(post(namespace, "faults", fault), 400, *parts)
    assert namespace.faults() == []


@pytest.mark.parametrize(
    ("path", "body", "part"),
    [
        ("queues", {}, "'name' is missing"),
        ("queues", {"name": 5}, "name is 5"),
        ("queues", {"name": None}, "name is None"),
        ("queues", {"name": ""}, "no entity name"),
        ("queues", {"name": "x", "lock_duratoin": 5}, "'lock_duratoin'"),
        ("queues", {"name": "x", "lock_duration": "5"}, "lock_duration is '5'"),
        ("queues", {"name": "x", "lock_duration": 301}, "up to 5 minutes"),
        ("queues", {"name": "x", "lock_duration": float("nan")}, "lock_duration is nan"),
        ("queues", {"name": "x", "max_delivery_count": 0}, "max delivery count is 0"),
        ("queues", {"name": "x", "max_delivery_count": 1.5}, "max_delivery_count is 1.5"),
        ("queues", {"name": "x", "requires_session": "yes"}, "requires_session is 'yes'"),
        ("queues", {"name": "x", "status": "Asleep"}, "Asleep"),
        ("topics", {"name": "x", "max_size_mb": 1000}, "max size is 1000"),
        ("subscriptions", {"name": "s"}, "'topic' is missing"),
        ("subscriptions", {"topic": "QUEUE", "name": "s"}, "is a queue"),
        ("subscriptions", {"topic": "TOPIC", "name": "s", "correlation": []}, "correlation is []"),
        ("subscriptions", {"topic": "TOPIC", "name": "s", "correlation": {"properties": 5}}, "properties is 5"),
        ("subscriptions", {"topic": "TOPIC", "name": "s", "correlation": {"colour": "red"}}, "'colour'"),
        ("subscriptions", {"topic": "TOPIC", "name": "s", "correlation": {"subject": 5}}, "'subject' as 5"),
        ("subscriptions", {"topic": "TOPIC", "name": "s", "correlation": {"properties": {"a": []}}}, "'a' is []"),
        ("settings", {"name": "QUEUE", "lock_duration": 0}, "lock duration is 0"),
        ("settings", {"name": "QUEUE", "colour": "red"}, "'colour'"),
        ("settings", {"name": "QUEUE", "max_message_kb": 257}, "1 to 256 in a standard namespace"),
        ("queues", {"name": "x", "max_message_kb": 1024}, "more needs a premium one"),
        ("topics", {"name": "x", "max_message_kb": 0}, "max message size is 0 KB"),
        ("settings", {"name": "QUEUE", "status": 1}, "status is 1"),
        ("settings", {"name": "QUEUE", "requires_session": True}, "requires_session cannot be changed"),
        ("delete", {"name": "QUEUE", "force": True}, "'force'"),
        ("expire-locks", {"entity": ["a"]}, "entity is ['a']"),
        ("expire-locks", {"queue": "a"}, "'queue'"),
        ("cut", {"entity": 1}, "entity is 1"),
        ("cut", {"queue": "a"}, "'queue'"),
        ("stop", {"now": True}, "'now'"),
        ("start", {"now": True}, "'now'"),
        ("journal", {"limit": 0}, "limit is 0"),
        ("journal", {"limit": True}, "limit is True"),
        ("journal", {"limit": None}, "limit is None"),
        ("journal", {"limit": 1.5}, "limit is 1.5"),
        ("journal", {"enabled": False, "size": 5}, "'size'"),
        ("policies", {"name": "p", "claims": []}, "claims are []"),
        ("policies", {"name": "p", "claims": ["Fly"]}, "['Fly']"),
        ("policies", {"name": "p", "claims": [{}]}, "[{}]"),
        ("policies", {"name": "p", "claims": "Send"}, "claims is 'Send'"),
        ("policies", {"name": "p", "claims": ["Send"], "queue": "q"}, "'queue'"),
        ("bearers", {"claims": ["Fly"]}, "['Fly']"),
        ("bearers", {"claims": ["Send"], "lifetime": "1h"}, "lifetime is '1h'"),
        ("pings", {}, "'delivered' is missing"),
        ("pings", {"delivered": 1}, "delivered is 1"),
        ("idle-detach", {"seconds": 0}, "seconds is 0"),
        ("idle-detach", {"seconds": float("nan")}, "seconds is nan"),
        ("clock", {"advance": "1h"}, "advance is '1h'"),
        ("clock", {"advance": float("inf")}, "advance is inf"),
        ("clock", {"advance": 1e300}, "ten years"),
        ("clock", {"advance": 1, "by": 2}, "'by'"),
    ],
    ids=lambda value: json.dumps(value)[:50] if isinstance(value, dict) else "",
)
def test_a_call_that_cannot_be_is_refused_and_changes_nothing(
    namespace: NamespaceHandle, queue: str, path: str, body: dict[str, Any], part: str
) -> None:
    namespace.create_topic(f"{queue}-topic")
    real = {"QUEUE": queue, "TOPIC": f"{queue}-topic"}
    body = {key: real.get(value, value) if isinstance(value, str) else value for key, value in body.items()}
    before = _state(namespace)
    refused(post(namespace, path, body), 400, part)
    assert _state(namespace) == before


def _state(namespace: NamespaceHandle) -> Any:
    return namespace.overview(), namespace.faults(), namespace.call("POST", "/journal", {})


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("delete", {"name": "nobody"}),
        ("settings", {"name": "nobody", "discard": True}),
        ("expire-locks", {"entity": "nobody"}),
        ("subscriptions", {"topic": "nobody", "name": "s"}),
    ],
)
def test_an_entity_that_is_not_there_is_a_404(namespace: NamespaceHandle, path: str, body: dict[str, Any]) -> None:
    refused(post(namespace, path, body), 404, "nobody", "could not be found")


def test_an_entity_that_is_there_already_is_a_409(namespace: NamespaceHandle, queue: str) -> None:
    refused(post(namespace, "queues", {"name": queue.upper()}), 409, "exists already")
    refused(post(namespace, "topics", {"name": queue}), 409, "exists already")


def test_books_of_what_is_not_there(namespace: NamespaceHandle) -> None:
    refused(ask(namespace, "GET", "counters?entity=nobody"), 404, "nobody")
    refused(ask(namespace, "GET", "journal"), 400, "the id of a message")
    assert ask(namespace, "GET", "journal?id=never-sent") == (200, [])
    status, tally = ask(namespace, "GET", "journal/tally?entity=nobody")
    assert (status, tally["messages"]) == (200, {})


# Whatever comes

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
NAMES = sorted({field for kind in KINDS.values() for field in kind.__dataclass_fields__})


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from([*KINDS, "other"]), st.dictionaries(st.sampled_from(NAMES), JSON, max_size=4))
def test_any_json_is_a_fault_or_one_sentence(kind: str, fields: dict[str, Any]) -> None:
    try:
        fault = from_json({"kind": kind, **fields})
    except FaultError as error:
        assert "\n" not in str(error)  # noqa: PT017
    else:
        assert from_json(json.loads(json.dumps(to_json(fault)))) == fault


PATHS = ["faults", "settings", "expire-locks", "journal", "policies", "bearers", "subscriptions"]
FIELDS = ["kind", "entity", "name", "topic", "claims", "count", "enabled", "limit", "correlation", "lock_duration"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(PATHS), st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4))
def test_no_json_makes_the_control_api_fail(broker: BrokerProcess, path: str, body: dict[str, Any]) -> None:
    secondary = broker["secondary"]
    try:
        raw = json.dumps(body).encode()
        status, answer = ask(secondary, "POST", path, raw)
        assert status == 200 or (400 <= status < 500 and list(answer) == ["error"])
    finally:
        secondary.undo()
        secondary.configure_journal(enabled=True, limit=2_000_000)
