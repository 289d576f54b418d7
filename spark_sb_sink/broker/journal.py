"""What happened to each message, and what the service would have billed for it.

Both are bounded in memory: the journal forgets the oldest messages first, counters are numbers.
"""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

STEP = 64 * 1024


def billed(size: int) -> int:
    """Operations for one message of that size: one for each 64 KB begun, at least one."""
    return max(1, -(-size // STEP))


class Happened(StrEnum):
    ACCEPTED = "accepted"
    SCHEDULED = "scheduled"
    CANCELLED = "cancelled"
    DUPLICATE = "duplicate"
    PING = "ping"
    DISCARDED = "discarded"
    REJECTED = "rejected"
    ACK_LOST = "ack-lost"
    DELIVERED = "delivered"
    COMPLETED = "completed"
    ABANDONED = "abandoned"
    RELEASED = "released"
    DEFERRED = "deferred"
    DEAD_LETTERED = "dead-lettered"
    EXPIRED = "expired"
    LOCK_EXPIRED = "lock-expired"
    LOCK_LOST = "lock-lost"
    DELETED = "deleted"
    UNROUTED = "unrouted"


@dataclass(frozen=True, slots=True)
class Entry:
    at: float
    entity: str
    what: str
    detail: str = ""


# An entry is kept as a plain tuple (time, entity, what, detail): a quarter of the memory of an object with fields.
_Raw = tuple[float, str, str, str]


@dataclass
class Journal:
    """For any message id, in order, all that happened to it."""

    limit: int = 2_000_000
    enabled: bool = True
    _entries: dict[str, list[_Raw]] = field(default_factory=dict)
    _count: int = 0
    dropped: int = 0
    """Entries forgotten because the journal was full; not zero means that it no longer tells everything."""

    def write(self, message_id: str | None, at: float, entity: str, what: Happened, detail: str = "") -> None:
        if not self.enabled or message_id is None:
            return
        found = self._entries.get(message_id)
        if found is None:
            self._entries[message_id] = [(at, entity, what, detail)]
        else:
            found.append((at, entity, what, detail))
        self._count += 1
        self.keep_within_limit()

    def keep_within_limit(self) -> None:
        """Forget the oldest messages, each with all its entries, until what is left fits."""
        while self._count > self.limit:
            oldest = next(iter(self._entries))
            gone = len(self._entries.pop(oldest))
            self._count -= gone
            self.dropped += gone

    def of(self, message_id: str) -> list[Entry]:
        return [Entry(*raw) for raw in self._entries.get(message_id, ())]

    def tally(self, entity: str | None = None) -> dict[str, dict[str, int]]:
        """For each message id, how often each thing happened to it (on one entity, or on all).

        Of one entity come only the ids that it has seen. A dead-letter sub-queue and a subscription go by their paths.
        """
        found: dict[str, dict[str, int]] = {}
        wanted = None if entity is None else entity.lower()
        for message_id, raws in self._entries.items():
            here = Counter(str(what) for _, where, what, _ in raws if wanted is None or where.lower() == wanted)
            if here:
                found[message_id] = dict(here)
        return found

    def clear(self) -> None:
        self._entries.clear()
        self._count = 0
        self.dropped = 0


@dataclass
class Counters:
    """Billable operations and plain events, for one entity or for a whole namespace."""

    sends: int = 0
    receives: int = 0
    empty_receives: int = 0
    pings: int = 0
    management: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    events: Counter[str] = field(default_factory=Counter)

    def operations(self) -> int:
        return self.sends + self.receives + self.empty_receives + self.pings + self.management

    def as_json(self) -> dict[str, Any]:
        return {
            "operations": self.operations(),
            "sends": self.sends,
            "receives": self.receives,
            "empty_receives": self.empty_receives,
            "pings": self.pings,
            "management": self.management,
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
            "events": dict(self.events),
        }
