"""A pytest plugin for pipelines of one's own: two namespaces of the embedded broker, and faults for them.

    pytest_plugins = ["spark_sb_sink.testing"]

Needs pytest and `pip install '.[broker]'` from a clone. Knows nothing of Spark: a test brings its own session.
"""

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from spark_sb_sink.broker import (
    BlackHole,
    BrokerProcess,
    Busy,
    CbsAnswer,
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

__all__ = [
    "BlackHole",
    "BrokerProcess",
    "Busy",
    "CbsAnswer",
    "CutMidBatch",
    "FullQuota",
    "LateVisible",
    "LoseAck",
    "ManagementAnswer",
    "NamespaceHandle",
    "Refuse",
    "Reject",
    "ServiceBusPair",
    "Shape",
    "await_that",
    "servicebus",
    "servicebus_broker",
]

QUICK: dict[str, Any] = {
    "failover_interval": "0s",
    "ping_interval": "1s",
    "send_timeout": "10s",
    "backlog_cooldown": "1s",
    "backlog_queue_count": 2,
    "long_poll": "2s",
    "settle_time": "0s",
}
"""Options for tests: what takes a minute in earnest takes a second or no time at all."""
_STORED = ("accepted", "scheduled")


@dataclass(frozen=True)
class ServiceBusPair:
    """Two namespaces for one test, and the name under which its backlog queues stand."""

    primary: NamespaceHandle
    secondary: NamespaceHandle
    name: str = field(default_factory=lambda: f"p-{uuid.uuid4().hex[:12]}")

    def options(self, **changes: Any) -> dict[str, Any]:
        """What `ServiceBusSink`, `Syphon` and `Options.from_dict` take, with short intervals."""
        return {
            "primary": self._side(self.primary),
            "secondary": self._side(self.secondary),
            "primary_name": self.name,
            **QUICK,
            **changes,
        }

    @staticmethod
    def _side(namespace: NamespaceHandle) -> dict[str, str]:
        return {"connection_string": namespace.connection_string, "ca_file": namespace.ca_file}

    @contextmanager
    def outage(self, entity: str | None = None) -> Iterator[None]:
        """The primary, or one entity of it, refuses every connection for the time of a `with` block."""
        with self.primary.fault(Refuse(), entity):
            yield

    def arrived(self, entity: str) -> Counter[str]:
        """How often the entity of the primary has stored each message id in this test, also if it is gone since."""
        return _stored(self.primary, entity)

    def backlog(self) -> Counter[str]:
        """How often the backlog queues have stored each message id in this test, also if it was moved since."""
        path = f"{self.name}/".lower()
        queues = (name for name in self.secondary.overview()["entities"] if name.lower().startswith(path))
        return sum((_stored(self.secondary, queue) for queue in queues), Counter())

    def heal(self) -> None:
        """Both namespaces serve, without a fault."""
        for namespace in (self.primary, self.secondary):
            namespace.undo()
            namespace.start()


def _stored(namespace: NamespaceHandle, entity: str) -> Counter[str]:
    counts = {found: sum(what.get(word, 0) for word in _STORED) for found, what in namespace.tally(entity).items()}
    return Counter({found: count for found, count in counts.items() if count})


def await_that(condition: Callable[[], object], within: float = 20.0) -> None:
    """Wait until the condition holds, not for a fixed time; fail if it does not in time."""
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() >= deadline:
            pytest.fail(f"not within {within} s")
        time.sleep(0.02)


@pytest.fixture(scope="session")
def servicebus_broker() -> Iterator[BrokerProcess]:
    """The broker, one for the whole run, with the namespaces `primary` and `secondary`."""
    with BrokerProcess("primary", "secondary") as running:
        yield running
        errors = running.errors()
        if not running.running or "Traceback" in errors:
            pytest.fail(f"the broker {'has failed' if running.running else 'died'} during the tests: {errors}")


@pytest.fixture
def servicebus(servicebus_broker: BrokerProcess) -> Iterator[ServiceBusPair]:
    """Both namespaces without faults and with an empty journal; entities that the test makes are gone after it."""
    with _for_one_test(servicebus_broker) as pair:
        yield pair


@contextmanager
def _for_one_test(broker: BrokerProcess) -> Iterator[ServiceBusPair]:
    pair = ServiceBusPair(broker["primary"], broker["secondary"])
    sides = (pair.primary, pair.secondary)
    pair.heal()
    for side in sides:  # it remembers a message by the name of its queue, also of one that was deleted since
        side.configure_journal(enabled=True, clear=True)
    there = {side.name: set(side.overview()["entities"]) for side in sides}
    yield pair
    pair.heal()
    for side in sides:
        for entity in set(side.overview()["entities"]) - there[side.name]:
            side.delete(entity)
