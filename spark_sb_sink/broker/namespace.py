"""One namespace: its entities, what they accept, its faults, journal and counters. Knows nothing of sockets.

`accept` is the whole of what happens to a message that a client sends; refusals are `RefusedError`.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spark_sb_sink.broker import sections
from spark_sb_sink.broker.clock import Clock
from spark_sb_sink.broker.entities import Entity, Queue, Subscription, Topic, TopicSchedule
from spark_sb_sink.broker.faults import FaultBoard, FullQuota, LateVisible, Reject
from spark_sb_sink.broker.filters import DEFAULT_RULE, Rule, TrueFilter
from spark_sb_sink.broker.journal import Counters, Happened, Journal, billed
from spark_sb_sink.broker.queue import MessageQueue, RefusedError, Stored
from spark_sb_sink.broker.security import Guard
from spark_sb_sink.broker.settings import Settings, SettingsError

PING = "application/vnd.ms-servicebus-ping"
DEAD_LETTER_SUFFIX = "/$deadletterqueue"
MANAGEMENT = "/$management"
_NAMED = 20
"""Entities that an error names."""


@dataclass(frozen=True)
class Tier:
    """Limits from the Service Bus quotas page: 256 KB messages on Standard; on Premium 1 MB batches, and messages of
    1 MB unless the entity allows more (up to 100 MB)."""

    name: str
    max_message: int
    max_batch: int
    max_entity_message_kb: int
    max_batch_messages: int = 4500

    def check(self, settings: Settings) -> None:
        """What an entity may not have in this tier. Less than the tier's own message size is for tests alone."""
        size, most = settings.max_message_kb, self.max_entity_message_kb
        if size is not None and not 1 <= size <= most:
            more = "" if self.name == "premium" else f" in a {self.name} namespace, more needs a premium one"
            raise SettingsError(f"max message size is {size} KB; it takes 1 to {most}{more}")


TIERS = {
    "standard": Tier("standard", 256 * 1024, 256 * 1024, 256),
    "premium": Tier("premium", 1024 * 1024, 1024 * 1024, 102400),
}


class Namespace:
    """Entities by name, case-insensitive as on the service."""

    def __init__(self, name: str, tier: Tier, clock: Clock, guard: Guard | None = None) -> None:
        self.name = name
        self.tier = tier
        self.clock = clock
        self.guard = guard or Guard.with_root_key()
        self.journal = Journal()
        self.counters = Counters()
        self.faults = FaultBoard()
        self.deliver_pings = False
        self.entities: dict[str, Queue | Topic] = {}
        self.on_change: Callable[[str], None] = lambda path: None
        """Called with the name of an entity that was deleted or whose status changed, so that links can be detached."""

    # Entities

    def create_queue(self, name: str, settings: Settings | None = None) -> Queue:
        settings = self._checked(name, settings)
        queue = Queue(name, settings)
        queue.store, queue.dead_letters = self._stores(name, settings, queue.counters)
        self._add(queue)
        return queue

    def create_topic(self, name: str, settings: Settings | None = None) -> Topic:
        settings = self._checked(name, settings)
        topic = Topic(name, settings)
        schedule = TopicSchedule(name, settings, self.clock, self.journal, (self.counters, topic.counters))
        schedule.route = lambda message, now: self._route(topic, message, now, 0.0)
        topic.scheduled = schedule
        self._add(topic)
        return topic

    def create_subscription(self, topic: Topic, name: str, settings: Settings | None = None) -> Subscription:
        if name.lower() in topic.subscriptions:
            raise RefusedError(
                "com.microsoft:entity-already-exists",
                f"The subscription {name!r} of {topic.name!r} exists already.",
                409,
            )
        settings = settings or Settings()
        settings.check()
        path = f"{topic.name}/Subscriptions/{name}"
        store, dead_letters = self._stores(path, settings, topic.counters)
        now = self.clock.now()
        subscription = Subscription(
            name, topic, settings, store, dead_letters, created_at=now, updated_at=now, accessed_at=now
        )
        subscription.rules[DEFAULT_RULE.lower()] = Rule(DEFAULT_RULE, TrueFilter())
        topic.subscriptions[name.lower()] = subscription
        return subscription

    def _checked(self, name: str, settings: Settings | None) -> Settings:
        if not name or len(name) > 260 or name.startswith("/") or name.endswith("/"):
            raise RefusedError("com.microsoft:argument-error", f"{name!r} is no entity name.", 400)
        if name.lower() in self.entities:
            raise RefusedError("com.microsoft:entity-already-exists", f"The entity {name!r} exists already.", 409)
        settings = settings or Settings()
        settings.check()
        self.tier.check(settings)
        return settings

    def _stores(self, path: str, settings: Settings, counters: Counters) -> tuple[MessageQueue, MessageQueue]:
        both = (self.counters, counters)
        plain = Settings(lock_duration=settings.lock_duration, max_delivery_count=2147483647)
        dead = MessageQueue(f"{path}/$DeadLetterQueue", plain, self.clock, self.journal, both)
        store = MessageQueue(path, settings, self.clock, self.journal, both, dead)
        return store, dead

    def _add(self, entity: Queue | Topic) -> None:
        entity.created_at = entity.updated_at = entity.accessed_at = self.clock.now()
        self.entities[entity.name.lower()] = entity
        self.on_change(entity.name)

    def delete(self, name: str) -> None:
        entity = self.entities.pop(name.lower(), None)
        if entity is None:
            raise self.not_found(name)
        for store in entity.stores():
            store.delete()
        self.on_change(entity.name)

    def delete_subscription(self, topic: Topic, name: str) -> None:
        subscription = topic.subscriptions.pop(name.lower(), None)
        if subscription is None:
            raise self.not_found(f"{topic.name}/Subscriptions/{name}")
        subscription.store.delete()
        subscription.dead_letters.delete()
        self.on_change(topic.name)

    def set_status(self, name: str, status: str) -> None:
        entity = self.entity(name)
        before, entity.settings.status = entity.settings.status, status
        try:
            entity.settings.check()
        except ValueError:
            entity.settings.status = before
            raise
        entity.updated_at = self.clock.now()
        self.on_change(entity.name)

    def not_found(self, path: str) -> RefusedError:
        return RefusedError(
            "amqp:not-found", f"The messaging entity 'sb://{self.name}/{path}' could not be found.", 404
        )

    def entity(self, path: str) -> Queue | Topic:
        found = self.entities.get(path.lower())
        if found is None:
            raise self.not_found(path)
        return found

    def source(self, path: str) -> tuple[Queue | Topic, MessageQueue]:
        """What a receiver of that path reads: a queue, a subscription, or the dead-letter sub-queue of either."""
        low = path.lower()
        dead = low.endswith(DEAD_LETTER_SUFFIX)
        if dead:
            low = low[: -len(DEAD_LETTER_SUFFIX)]
        found = self.entities.get(low)
        if isinstance(found, Queue):
            return found, found.dead_letters if dead else found.store
        name, _, subscription = low.partition("/subscriptions/")
        topic = self.entities.get(name)
        if subscription and isinstance(topic, Topic) and subscription in topic.subscriptions:
            entry = topic.subscriptions[subscription]
            return topic, entry.dead_letters if dead else entry.store
        raise self.not_found(path)

    def owner(self, path: str) -> Entity | None:
        """The entity that a path belongs to, for its faults: a subscription's topic, a sub-queue's or node's queue."""
        if path.lower().endswith(MANAGEMENT):
            path = path[: -len(MANAGEMENT)]
        found = self.entities.get(path.lower())
        if found is not None:
            return found
        try:
            return self.source(path)[0]
        except RefusedError:
            return None

    def entity_name(self, path: str) -> str:
        """The name of the entity that a path belongs to; the path itself where there is none."""
        owner = self.owner(path)
        return path if owner is None else owner.name

    def known(self, path: str) -> str:
        """The same for a person, who has to be told if what they name is nothing here."""
        owner = self.owner(path)
        if owner is not None:
            return owner.name
        names = sorted(entity.name for entity in self.entities.values())
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        there = f"there are {', '.join(names[:_NAMED])}{more}" if names else "there are none yet"
        raise RefusedError("amqp:not-found", f"There is no entity {path!r} in {self.name}; {there}.", 404)

    def tick(self) -> None:
        now = self.clock.now()
        for entity in list(self.entities.values()):
            for store in entity.stores():
                if not store.still:
                    store.tick(now)

    # Sending

    def limits(self, entity: Queue | Topic) -> tuple[int, int]:
        """Bytes of one message and of one batch that a link to the entity takes."""
        kilobytes = entity.settings.max_message_kb
        return (kilobytes * 1024 if kilobytes else self.tier.max_message), self.tier.max_batch

    def accept(self, entity: Queue | Topic, payload: bytes, *, batch: bool) -> list[sections.Incoming]:
        """Take one transfer, whole or not at all. Raises `RefusedError` with the condition to reject it with."""
        now = self.clock.now()
        entity.accessed_at = now
        try:
            members = sections.batch_members(payload) if batch else [payload]
        except sections.MalformedError as error:
            raise RefusedError("amqp:decode-error", str(error)) from error
        if not members:
            raise RefusedError("com.microsoft:argument-error", "The batch is empty.")
        if len(members) > self.tier.max_batch_messages:
            raise RefusedError(
                "amqp:not-allowed",
                f"The batch has {len(members)} messages; at most {self.tier.max_batch_messages} are allowed.",
            )
        if not entity.settings.can_send():
            raise self.disabled(entity.name)
        self._strike(entity, len(members))
        if entity.settings.discard:
            self._discard(entity, members, batch=batch)
            return []
        messages = _read(members)
        self._check(entity, messages, batch=batch)
        self.store(entity, messages, now)
        return messages

    def note_rejected(self, entity: Queue | Topic, members: list[bytes], error: RefusedError) -> None:
        """Count a transfer or request that was refused, and tell of each message in it why."""
        for counters in (self.counters, entity.counters):
            counters.events[Happened.REJECTED] += 1
        if self.journal.enabled and not entity.settings.discard:
            now = self.clock.now()
            for member in members:
                found = sections.message_id(member)
                self.journal.write(found, now, entity.name, Happened.REJECTED, error.condition)

    def _discard(self, entity: Queue | Topic, members: list[bytes], *, batch: bool) -> None:
        """Count and keep nothing. A batch is not looked into, for speed; a ping, which is sent alone, is known as one.

        The journal keeps nothing either.
        """
        if not batch and not self.deliver_pings and _read(members)[0].content_type == PING:
            self._count_in(entity, 1, len(members[0]), 0, billed(len(members[0])))
            return
        self._check_room(entity)
        self._count_in(entity, len(members), sum(map(len, members)), sum(map(billed, map(len, members))))
        for counters in (self.counters, entity.counters):
            counters.events[Happened.DISCARDED] += len(members)

    def schedule(self, entity: Queue | Topic, payloads: list[bytes]) -> list[Stored | None]:
        """Messages for later, all or none; None for one that was a duplicate or whose time has come already."""
        now = self.clock.now()
        if not entity.settings.can_send():
            raise self.disabled(entity.name)
        limit = self.limits(entity)[0]
        for payload in payloads:
            if len(payload) > limit:
                raise RefusedError(
                    "amqp:link:message-size-exceeded",
                    f"The received message (size:{len(payload)} bytes) exceeds the limit ({limit} bytes) allowed.",
                )
        messages = _read(payloads)
        self._strike(entity, len(messages))
        self._check(entity, messages, batch=len(messages) > 1)
        return [next(iter(self.store(entity, [message], now)), None) for message in messages]

    def disabled(self, name: str) -> RefusedError:
        return RefusedError(
            "com.microsoft:entity-disabled", f"Messaging entity 'sb://{self.name}/{name}' is currently disabled.", 403
        )

    def store(self, entity: Queue | Topic, messages: list[sections.Incoming], now: float) -> list[Stored]:
        """Keep messages that were checked; returns what was stored (for topics, what waits for its time)."""
        late = self.faults.find(LateVisible, entity.name)
        seconds = late.seconds if late is not None else 0.0
        stored: list[Stored] = []
        pings = total = operations = duplicates = kept = scheduled = 0
        write, name = self.journal.write, entity.name
        detects = entity.settings.requires_duplicate_detection
        for message in messages:
            total += message.size
            if message.content_type == PING and not self.deliver_pings:
                pings += billed(message.size)
                write(message.message_id, now, name, Happened.PING)
                continue
            operations += billed(message.size)
            if detects and entity.seen_before(message, now):
                duplicates += 1
                write(message.message_id, now, name, Happened.DUPLICATE)
                continue
            waits = message.scheduled_at is not None and message.scheduled_at > now
            scheduled += waits
            kept += not waits
            write(message.message_id, now, name, Happened.SCHEDULED if waits else Happened.ACCEPTED)
            if isinstance(entity, Queue):
                stored.append(entity.store.put(message, now, late=seconds))
            elif waits:
                stored.append(entity.scheduled.put(message, now))
            else:
                self._route(entity, message, now, seconds)
        self._count_in(entity, len(messages), total, operations, pings)
        for counters in (self.counters, entity.counters):
            counters.events[Happened.ACCEPTED] += kept
            if scheduled:  # accepted when their time comes
                counters.events[Happened.SCHEDULED] += scheduled
            if duplicates:
                counters.events[Happened.DUPLICATE] += duplicates
        return stored

    def _route(self, topic: Topic, message: sections.Incoming, now: float, late: float) -> None:
        routed = False
        for subscription in topic.subscriptions.values():
            if subscription.settings.can_send() and subscription.matches(message.bare):
                # The shorter one of the topic's and the subscription's default time to live holds.
                subscription.store.put(message, now, late=late, longest=topic.settings.default_ttl)
                routed = True
        if not routed:
            self.journal.write(message.message_id, now, topic.name, Happened.UNROUTED)

    def _count_in(self, entity: Entity, messages: int, size: int, operations: int, pings: int = 0) -> None:
        for counters in (self.counters, entity.counters):
            counters.sends += operations
            counters.pings += pings
            counters.bytes_in += size
            counters.events["messages-in"] += messages

    def _strike(self, entity: Queue | Topic, messages: int) -> None:
        """The injected refusals, for one transfer."""
        if not self.faults:
            return
        busy = self.faults.busy(entity.name, messages, self.clock.now())
        if busy is not None:
            raise RefusedError("com.microsoft:server-busy", busy.description, 503)
        reject = self.faults.rejection(entity.name, "transfer", messages)
        if reject is not None:
            raise InjectedError(reject)

    def _check(self, entity: Queue | Topic, messages: list[sections.Incoming], *, batch: bool) -> None:
        """The service's rules for a transfer; nothing of it is stored when one of them is broken."""
        settings = entity.settings
        for message in messages:
            if message.partition_key is not None and message.session_id not in (None, message.partition_key):
                raise RefusedError(
                    "com.microsoft:argument-error",
                    "PartitionKey has to be equal to SessionId when both are set on a message.",
                )
            if settings.requires_session and message.session_id is None and message.content_type != PING:
                raise RefusedError(
                    "amqp:not-allowed",
                    f"The SessionId was not set on a message for '{entity.name}', which requires sessions.",
                )
        if batch and settings.partitioned:
            keys = {message.session_id or message.partition_key for message in messages}
            if len(keys) > 1:
                raise RefusedError(
                    "amqp:not-allowed",
                    "All messages of a batch to a partitioned entity must have the same session id or partition key.",
                )
        if not all(message.content_type == PING for message in messages):
            self._check_room(entity)

    def _check_room(self, entity: Queue | Topic) -> None:
        full = self.faults.find(FullQuota, entity.name) is not None
        if full or entity.size() >= entity.settings.max_size_mb * 1024 * 1024:
            raise RefusedError(
                "amqp:resource-limit-exceeded",
                f"The maximum entity size of '{entity.name}' has been reached or exceeded; receive or delete messages.",
                403,
            )

    # What a person or a test asks

    def overview(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for entity in self.entities.values():
            stores = {store.path: store.counts() for store in entity.stores()}
            found[entity.name] = {
                "type": "queue" if isinstance(entity, Queue) else "topic",
                "status": entity.settings.status,
                "size": entity.size(),
                "stores": stores,
                "counters": entity.counters.as_json(),
            }
        return found

    def reset_counters(self) -> None:
        for counters in (self.counters, *(entity.counters for entity in self.entities.values())):
            counters.sends = counters.receives = counters.empty_receives = counters.pings = counters.management = 0
            counters.bytes_in = counters.bytes_out = 0
            counters.events = Counter()


def _read(payloads: list[bytes]) -> list[sections.Incoming]:
    try:
        return [sections.incoming(payload) for payload in payloads]
    except sections.MalformedError as error:
        raise RefusedError("amqp:decode-error", str(error)) from error


class InjectedError(RefusedError):
    """A refusal from a `Reject` fault; remembers whether the error is to carry an `info` map."""

    def __init__(self, fault: Reject) -> None:
        super().__init__(fault.condition, fault.description)
        self.info = fault.info
