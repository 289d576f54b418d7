"""A look at the backlog queues from outside: counts by administration, deferred messages and their age by peek.

Takes nothing and changes nothing. Each call is under a deadline. What the claim at hand does not allow to see is left
open and said so; it is no reason to see nothing.
"""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.management import QueueProperties, QueueRuntimeProperties

from spark_sb_sink import backlog_queues
from spark_sb_sink.amqp import Timestamp, decode_message
from spark_sb_sink.amqp.errors import CodecError
from spark_sb_sink.bounded import CallFailedError, listed, within
from spark_sb_sink.credentials import CLOSE_WITHIN, Access
from spark_sb_sink.faults import Fault, Kind
from spark_sb_sink.options import Options
from spark_sb_sink.wire import RawReceiver

PAGE = 250
AT_ONCE = 8
"""Queues that are looked at side by side; each takes a connection."""
ACTIVE, DISABLED = "Active", "Disabled"


@dataclass(frozen=True, slots=True)
class QueueLook:
    """What was seen of one queue; None is what could not be seen."""

    name: str
    active: int | None = None
    """Those that are deferred or locked included, as the service counts."""
    deferred: int | None = None
    deferred_at_least: bool = False
    """There are more messages than were peeked at."""
    active_at_least: bool = False
    """Counted by peek, and there are more than were peeked at."""
    dead_lettered: int | None = None
    oldest: datetime | None = None
    size_bytes: int | None = None
    max_bytes: int | None = None
    missing: bool = False
    status: str | None = None
    """As the service calls it: Active, Disabled, SendDisabled, ReceiveDisabled."""

    @property
    def enabled(self) -> bool:
        """Whether it is, as far as can be seen."""
        return self.status in (None, ACTIVE)

    @property
    def fill(self) -> float | None:
        """From 0 to 1."""
        return None if self.size_bytes is None or not self.max_bytes else self.size_bytes / self.max_bytes


@dataclass(frozen=True, slots=True)
class BacklogLook:
    """All queues of the pair; `notes` say what could not be seen, and what would make it so."""

    namespace: str
    path: str
    queues: tuple[QueueLook, ...]
    extra: tuple[QueueLook, ...] = ()
    notes: tuple[str, ...] = ()
    at: datetime | None = None

    @property
    def there(self) -> tuple[QueueLook, ...]:
        """Those of the pair that exist, as far as can be seen."""
        return tuple(queue for queue in self.queues if not queue.missing)

    @property
    def active(self) -> int | None:
        """In all queues of the pair; None where one of them is not known, or none is there."""
        if not self.there or any(queue.active is None or queue.active_at_least for queue in self.there):
            return None
        return sum(queue.active or 0 for queue in self.there)

    @property
    def blind(self) -> bool:
        """Nothing was seen at all."""
        return all(queue.active is None for queue in self.there)


async def look(options: Options, peek_to: int) -> BacklogLook:
    """See what can be seen. Never raises for what the secondary does or refuses."""
    notes: list[str] = []
    names = backlog_queues.names(options.backlog_path, options.backlog_queue_count)
    async with Access(options.secondary) as access:
        counted = await _administration(options, access, notes)
        extra: tuple[QueueLook, ...] = ()
        if counted is None:
            queues = tuple(QueueLook(name) for name in names)
        else:
            found = backlog_queues.sort(options.backlog_path, len(names), counted)
            queues = tuple(counted.get(name.lower(), QueueLook(name, missing=True)) for name in names)
            extra = tuple(counted[name.lower()] for name in found.extra)
        queues = await _peeked(options, access, queues, peek_to, notes)
    notes += _told_of(options, queues)
    return BacklogLook(
        options.secondary.host, options.backlog_path, queues, extra, tuple(dict.fromkeys(notes)), datetime.now(UTC)
    )


def _told_of(options: Options, queues: tuple[QueueLook, ...]) -> Iterator[str]:
    """What is wrong with the queues themselves."""
    host = options.secondary.host
    if all(queue.missing for queue in queues):
        which = (
            f"None of the {len(queues)} backlog queues exists" if len(queues) > 1 else "The backlog queue is missing"
        )
        yield (
            f"{which} under {options.backlog_path} in {host}: is primary_name right? `spark-sb-sink pair` makes them, "
            "as the first start of the pipeline does."
        )
    for status in dict.fromkeys(queue.status for queue in queues if not queue.enabled):
        found = [queue.name for queue in queues if queue.status == status]
        yield (
            f"{backlog_queues.some(found)} in {host}: status {status}. Enable what is disabled: until then it takes "
            "nothing from the sink, or what waits in it stays there."
        )


# By administration


async def _administration(options: Options, access: Access, notes: list[str]) -> dict[str, QueueLook] | None:
    """All queues of the namespace by name in small letters, or None and a note."""
    client = access.administration_client()
    try:
        settings = await listed(options.send_timeout, client.list_queues())
        counts = await listed(options.send_timeout, client.list_queues_runtime_properties())
    except CallFailedError as unseen:
        # Told as what it is: a person who may only send and listen has not done anything wrong.
        why = "takes the Manage claim" if unseen.fault.kind is Kind.MISCONFIGURED else "did not answer"
        notes.append(
            f"Dead letters, sizes and extra queues are not known, and counts only as far as peeked: the "
            f"administration of {options.secondary.host} {why} ({unseen.told})."
        )
        return None
    finally:
        with contextlib.suppress(Exception):  # what a broken connection says about being closed helps nobody
            async with asyncio.timeout(CLOSE_WITHIN):
                await client.close()
    by_name = {queue.name.lower(): queue for queue in settings}
    return {queue.name.lower(): _counted(queue, by_name.get(queue.name.lower())) for queue in counts}


def _counted(counts: QueueRuntimeProperties, settings: QueueProperties | None) -> QueueLook:
    megabytes = None if settings is None else settings.max_size_in_megabytes
    status = None if settings is None else settings.status
    return QueueLook(
        counts.name,
        active=counts.active_message_count,
        dead_lettered=counts.dead_letter_message_count,
        size_bytes=counts.size_in_bytes,
        max_bytes=None if megabytes is None else megabytes * 2**20,
        status=None if status is None else str(getattr(status, "value", status)),
    )


# By peek


async def _peeked(
    options: Options, access: Access, queues: tuple[QueueLook, ...], peek_to: int, notes: list[str]
) -> tuple[QueueLook, ...]:
    if peek_to <= 0:
        return queues
    client = access.service_bus_client()
    turns = asyncio.Semaphore(AT_ONCE)
    unseen: dict[str, Fault] = {}
    silent: list[Fault] = []
    answered = False

    async def one(queue: QueueLook) -> QueueLook:
        nonlocal answered
        if queue.missing:
            return queue
        if queue.active == 0:
            return replace(queue, deferred=0)
        async with turns:
            if silent and not answered:  # a namespace that is out is not waited for queue by queue
                unseen[queue.name] = silent[0]
                return queue
            try:
                found = await _peek(options, client, queue, peek_to)
            except CallFailedError as failed:
                return not_peeked(queue, failed.fault)
            answered = True
            return found

    def not_peeked(queue: QueueLook, fault: Fault) -> QueueLook:
        nonlocal answered
        if fault.reason == "entity gone":
            answered = True
            return replace(queue, missing=True)
        if fault.reason == "disabled":
            answered = True
            return queue if queue.status else replace(queue, status=DISABLED)
        unseen[queue.name] = fault
        if fault.kind is Kind.ENTITY_FAULT:
            silent.append(fault)
        return queue

    try:
        seen = tuple(await asyncio.gather(*map(one, queues)))
    finally:
        with contextlib.suppress(Exception):
            async with asyncio.timeout(CLOSE_WITHIN):
                await client.close()
    notes += _not_peeked(options, [(queue.name, unseen[queue.name]) for queue in queues if queue.name in unseen])
    return seen


def _not_peeked(options: Options, unseen: Sequence[tuple[str, Fault]]) -> Iterator[str]:
    """A note for each kind of fault, not for each queue."""
    host, by_fault = options.secondary.host, dict[tuple[Kind, str], list[tuple[str, Fault]]]()
    for name, fault in unseen:
        by_fault.setdefault((fault.kind, fault.reason), []).append((name, fault))
    for found in by_fault.values():
        fault = found[0][1]
        if fault.kind is Kind.MISCONFIGURED:
            yield (
                f"Deferred messages and the age of the oldest are not known: peeking at queues of {host} takes the "
                f"Listen claim ({fault.text or fault.reason})."
            )
        else:
            yield f"{backlog_queues.some([name for name, _ in found])} in {host} could not be peeked at: {fault}."


async def _peek(options: Options, client: ServiceBusClient, queue: QueueLook, peek_to: int) -> QueueLook:
    receiver = RawReceiver(client, queue.name, timeout=options.send_timeout)
    seen = deferred = start = 0
    oldest: datetime | None = None
    try:
        await within(options.send_timeout, receiver.open())
        while seen < peek_to:
            # The service may show fewer than it could, so only an empty page is the end.
            page = await within(options.send_timeout, receiver.peek(start, min(PAGE, peek_to - seen)))
            if not page:
                break
            start = page[-1].sequence_number + 1
            seen += len(page)
            deferred += sum(peeked.state == "deferred" for peeked in page)
            if oldest is None:
                oldest = min((at for at in (enqueued(peeked.payload) for peeked in page) if at), default=None)
    finally:
        await receiver.close()
    more = seen >= peek_to and (queue.active is None or seen < queue.active)
    return replace(
        queue,
        active=seen if queue.active is None else queue.active,
        active_at_least=more and queue.active is None,
        deferred=deferred,
        deferred_at_least=more,
        oldest=oldest,
    )


def enqueued(payload: bytes) -> datetime | None:
    """When the queue took the message, as it says itself."""
    try:
        found = decode_message(payload).message_annotations.get("x-opt-enqueued-time")
    except CodecError:
        return None
    return datetime.fromtimestamp(found.value / 1000, UTC) if isinstance(found, Timestamp) else None
