"""Queues, topics and subscriptions: their messages, their settings, and what the administration side knows of them."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from spark_sb_sink.broker import sections
from spark_sb_sink.broker.filters import Rule
from spark_sb_sink.broker.journal import Counters
from spark_sb_sink.broker.queue import MessageQueue, Stored
from spark_sb_sink.broker.settings import Settings


@dataclass(eq=False)
class Entity:
    """What can be sent to: a queue or a topic."""

    name: str
    settings: Settings
    counters: Counters = field(default_factory=Counters)
    description: dict[str, str] = field(default_factory=dict)
    """The properties as the administration client sent them, by their XML names."""
    created_at: float = 0.0
    updated_at: float = 0.0
    accessed_at: float = 0.0
    _seen: dict[tuple[str | None, str], float] = field(default_factory=dict)
    _seen_order: deque[tuple[float, tuple[str | None, str]]] = field(default_factory=deque)

    def seen_before(self, message: sections.Incoming, now: float) -> bool:
        """Duplicate detection, by message id alone; with the partition key on partitioned entities."""
        while self._seen_order and self._seen_order[0][0] <= now:
            until, key = self._seen_order.popleft()
            if self._seen.get(key) == until:
                del self._seen[key]
        if message.message_id is None:
            return False
        key = (message.partition_key or message.session_id if self.settings.partitioned else None, message.message_id)
        if key in self._seen:
            return True
        until = now + self.settings.duplicate_window
        self._seen[key] = until
        self._seen_order.append((until, key))
        return False

    def stores(self) -> Iterator[MessageQueue]:
        raise NotImplementedError

    def size(self) -> int:
        return sum(store.size for store in self.stores())


@dataclass(eq=False)
class Queue(Entity):
    store: MessageQueue = field(init=False)
    dead_letters: MessageQueue = field(init=False)

    def stores(self) -> Iterator[MessageQueue]:
        yield self.store
        yield self.dead_letters


@dataclass(eq=False)
class Subscription:
    name: str
    topic: "Topic"
    settings: Settings
    store: MessageQueue
    dead_letters: MessageQueue
    rules: dict[str, Rule] = field(default_factory=dict)
    description: dict[str, str] = field(default_factory=dict)
    created_at: float = 0.0
    updated_at: float = 0.0
    accessed_at: float = 0.0

    def matches(self, bare: bytes) -> bool:
        return any(rule.filter.matches(bare) for rule in self.rules.values())


@dataclass(eq=False)
class Topic(Entity):
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    scheduled: MessageQueue = field(init=False)
    """Messages with a time to come wait here, and are routed when it comes."""

    def stores(self) -> Iterator[MessageQueue]:
        yield self.scheduled
        for subscription in self.subscriptions.values():
            yield subscription.store
            yield subscription.dead_letters


class TopicSchedule(MessageQueue):
    """The waiting room of a topic: what becomes ready is routed to the subscriptions at once."""

    route: Callable[[sections.Incoming, float], None]

    def _make_ready(self, stored: Stored) -> None:
        self._remove(stored)
        self.route(stored.message, self.clock.now())
