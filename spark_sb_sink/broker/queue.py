"""The messages of one queue, subscription or dead-letter sub-queue: who may have which, and until when.

Knows nothing of AMQP links or sockets; time comes from the clock, and `wake` is called when something became ready.
"""

import bisect
import heapq
import uuid
from collections.abc import Callable, Iterable, Mapping, Sized
from dataclasses import dataclass, field
from types import MappingProxyType

from spark_sb_sink.broker import delivered, sections
from spark_sb_sink.broker.clock import Clock
from spark_sb_sink.broker.journal import Counters, Happened, Journal, billed
from spark_sb_sink.broker.settings import FOREVER, Settings

ACTIVE, DEFERRED, SCHEDULED = 0, 1, 2
_REMEMBERED = 5000
Properties = Mapping[str, bytes]
"""Application properties by name, each as it is encoded."""
_UNCHANGED: Properties = MappingProxyType({})


class RefusedError(Exception):
    """An operation that the service refuses, with the AMQP condition that it would answer."""

    def __init__(self, condition: str, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.condition = condition
        self.text = text
        self.status = status


@dataclass(slots=True, eq=False)
class Stored:
    """One message in one queue."""

    message: sections.Incoming
    sequence: int
    enqueue_sequence: int
    enqueued_at: float
    expires_at: float
    state: int = ACTIVE
    delivery_count: int = 0
    token: bytes | None = None
    locked_until: float = 0.0
    late: bool = False
    dead_letter_source: str | None = None
    partition: int | None = None

    def encoded(self, *, locked: bool) -> bytes:
        count, extra = delivered.outgoing_annotations(
            self.sequence,
            self.enqueue_sequence,
            self.enqueued_at,
            self.state,
            self.locked_until if locked else None,
            self.dead_letter_source,
            self.partition,
        )
        return delivered.outgoing(self.message, self.delivery_count, count, extra)


@dataclass(eq=False)
class Session:
    id: str
    ready: list[int] = field(default_factory=list)
    owner: object | None = None
    locked_until: float = 0.0
    state: bytes | None = None
    held: dict[bytes, Stored] = field(default_factory=dict)


class MessageQueue:
    """Messages in order of their sequence numbers, each active, locked, deferred, scheduled or not yet visible."""

    def __init__(
        self,
        path: str,
        settings: Settings,
        clock: Clock,
        journal: Journal,
        counters: Iterable[Counters],
        dead_letters: "MessageQueue | None" = None,
    ) -> None:
        self.path = path
        self.settings = settings
        self.clock = clock
        self.journal = journal
        self.counters = tuple(counters)
        self.dead_letters = dead_letters
        self.messages: dict[int, Stored] = {}
        self.locked: dict[bytes, Stored] = {}
        self.sessions: dict[str, Session] = {}
        self.size = 0
        self.wake: Callable[[], None] = lambda: None
        self.removed = False
        self._ready: list[int] = []
        self._order: list[int] = []
        self._locks: list[tuple[float, int, bytes]] = []
        self._expiries: list[tuple[float, int]] = []
        self._later: list[tuple[float, int]] = []
        self._next = 0
        self._over: dict[bytes, str | None] = {}
        self._over_before: dict[bytes, str | None] = {}
        """Whose locks are over, of the latest ones: for the journal, when somebody comes with one of them."""

    # What comes in

    def put(
        self,
        message: sections.Incoming,
        now: float,
        *,
        late: float = 0.0,
        longest: float = FOREVER,
        dead_letter_source: str | None = None,
        enqueue_sequence: int | None = None,
        delivery_count: int = 0,
    ) -> Stored:
        self._next += 1
        partition = self._partition(message) if self.settings.partitioned else None
        sequence = self._next if partition is None else (partition << 48) | self._next
        scheduled = message.scheduled_at
        waits = scheduled is not None and scheduled > now and dead_letter_source is None
        starts = scheduled if waits and scheduled is not None else now
        ttl = min(FOREVER if message.ttl is None else message.ttl, self.settings.default_ttl, longest)
        if dead_letter_source is not None:
            ttl = FOREVER
        stored = Stored(
            message,
            sequence,
            sequence if enqueue_sequence is None else enqueue_sequence,
            now,
            starts + ttl,
            SCHEDULED if waits else ACTIVE,
            delivery_count=delivery_count,
            dead_letter_source=dead_letter_source,
            partition=partition,
        )
        self.messages[sequence] = stored
        self._order.append(sequence)
        if self._overgrown(self._order):
            self._order = sorted(self.messages)
        self.size += message.size
        if ttl < FOREVER:
            heapq.heappush(self._expiries, (stored.expires_at, sequence))
            if self._overgrown(self._expiries):
                self._expiries = [entry for entry in self._expiries if entry[1] in self.messages]
                heapq.heapify(self._expiries)
        if waits and scheduled is not None:
            heapq.heappush(self._later, (scheduled, sequence))
        elif late:
            stored.late = True
            heapq.heappush(self._later, (now + late, sequence))
        else:
            self._make_ready(stored)
        return stored

    def _partition(self, message: sections.Incoming) -> int:
        key = message.session_id or message.partition_key or message.message_id or ""
        return sum(key.encode()) % 16

    def _session_of(self, stored: Stored) -> Session | None:
        if not self.settings.requires_session:
            return None
        return self.session(stored.message.session_id or "")

    def session(self, session_id: str) -> Session:
        found = self.sessions.get(session_id)
        if found is None:
            found = self.sessions[session_id] = Session(session_id)
        return found

    def _make_ready(self, stored: Stored) -> None:
        session = self._session_of(stored)
        heapq.heappush(self._ready if session is None else session.ready, stored.sequence)
        self.wake()

    # What goes out

    def take(self, now: float, *, lock: bool, session: Session | None = None) -> Stored | None:
        """The next message for a receiver; locked, or gone for good in receive-and-delete."""
        ready = self._ready if session is None else session.ready
        while ready:
            stored = self.messages.get(heapq.heappop(ready))
            if stored is None or stored.state != ACTIVE or stored.token is not None or stored.late:
                continue
            if stored.expires_at <= now:
                self._expire(stored, now)
                continue
            self.hand_out(stored, now, lock=lock, session=session)
            return stored
        return None

    def hand_out(self, stored: Stored, now: float, *, lock: bool, session: Session | None) -> None:
        if lock:
            token = uuid.uuid4().bytes_le
            stored.token = token
            self.locked[token] = stored
            if session is None:
                stored.locked_until = now + self.settings.lock_duration
                self._push_lock(stored, token)
            else:
                stored.locked_until = session.locked_until
                session.held[token] = stored
        else:
            self._remove(stored)
        self.note(stored, now, Happened.DELIVERED)
        size = stored.message.size
        for counter in self.counters:
            counter.receives += billed(size)
            counter.bytes_out += size

    def ready_sessions(self) -> Session | None:
        """A session that has something to receive and that nobody holds, the oldest message first."""
        best: Session | None = None
        for session in self.sessions.values():
            while session.ready and self._stale(session.ready[0]):
                heapq.heappop(session.ready)
            if session.owner is None and session.ready and (best is None or session.ready[0] < best.ready[0]):
                best = session
        return best

    def _stale(self, sequence: int) -> bool:
        stored = self.messages.get(sequence)
        return stored is None or stored.state != ACTIVE or stored.token is not None or stored.late

    def lock_session(self, session: Session, owner: object, now: float) -> None:
        session.owner = owner
        session.locked_until = now + self.settings.lock_duration

    def release_session(self, session: Session, now: float, *, expired: bool) -> None:
        """Give the session back; what was received in it and not settled can be received again.

        The end of the lock counts as a delivery that failed; a receiver that closes does not (message-sessions page,
        "Impact of delivery count").
        """
        session.owner = None
        what = Happened.LOCK_EXPIRED if expired else Happened.RELEASED
        for token in list(session.held):
            self._unlock(session.held[token], now, what, count=expired)
        session.held.clear()
        if not session.ready and session.state is None and session.id in self.sessions:
            del self.sessions[session.id]
        self.wake()

    # Settlement

    def _locked(self, token: bytes) -> Stored:
        stored = self.locked.get(token)
        if stored is None:
            self._note_lost(token)
            raise RefusedError(
                "com.microsoft:message-lock-lost",
                "The lock supplied is invalid. Either the lock expired, or the message has already been removed.",
                410,
            )
        return stored

    def complete(self, token: bytes) -> None:
        stored = self._locked(token)
        self._remove(stored)
        self.note(stored, self.clock.now(), Happened.COMPLETED)

    def abandon(self, token: bytes, changed: Properties = _UNCHANGED) -> None:
        stored = self._locked(token)
        self._modify(stored, changed)
        self._unlock(stored, self.clock.now(), Happened.ABANDONED, count=True)

    def release(self, token: bytes) -> None:
        self._unlock(self._locked(token), self.clock.now(), Happened.RELEASED, count=False)

    def defer(self, token: bytes, changed: Properties = _UNCHANGED) -> None:
        stored = self._locked(token)
        self._modify(stored, changed)
        self._forget_lock(stored)
        stored.state = DEFERRED
        self.note(stored, self.clock.now(), Happened.DEFERRED)

    def dead_letter(
        self, token: bytes, reason: str | None, description: str | None, changed: Properties = _UNCHANGED
    ) -> None:
        stored = self._locked(token)
        self._modify(stored, changed)
        self._to_dead_letters(stored, self.clock.now(), reason, description)

    def _modify(self, stored: Stored, changed: Properties) -> None:
        """Change application properties, as the properties to modify of a settlement ask."""
        before = stored.message.size
        stored.message = delivered.modified(stored.message, changed)
        self.size += stored.message.size - before

    def renew(self, token: bytes) -> float:
        stored = self._locked(token)
        stored.locked_until = self.clock.now() + self.settings.lock_duration
        self._push_lock(stored, token)
        return stored.locked_until

    def _push_lock(self, stored: Stored, token: bytes) -> None:
        heapq.heappush(self._locks, (stored.locked_until, stored.sequence, token))
        if self._overgrown(self._locks):
            self._locks = [entry for entry in self._locks if self._current(entry)]
            heapq.heapify(self._locks)

    def _current(self, entry: tuple[float, int, bytes]) -> bool:
        """Whether a lock is still held, and until then: a renewal leaves the entry of before behind."""
        stored = self.locked.get(entry[2])
        return stored is not None and stored.locked_until == entry[0]

    def _overgrown(self, entries: Sized) -> bool:
        """Whether most of a heap's entries are of messages long gone: they would stay until their time comes."""
        return len(entries) > 2 * len(self.messages) + 1000

    def renew_session(self, session: Session) -> float:
        session.locked_until = self.clock.now() + self.settings.lock_duration
        for stored in session.held.values():
            stored.locked_until = session.locked_until
        return session.locked_until

    def _forget_lock(self, stored: Stored) -> None:
        if stored.token is not None:
            self.locked.pop(stored.token, None)
            self._over[stored.token] = stored.message.message_id
            if len(self._over) >= _REMEMBERED:
                self._over, self._over_before = {}, self._over
            if self.settings.requires_session and stored.message.session_id in self.sessions:
                self.sessions[stored.message.session_id].held.pop(stored.token, None)
            stored.token = None

    def _note_lost(self, token: bytes) -> None:
        """Tell of a lock that somebody came with and that was over; whose those of long ago were is forgotten."""
        message_id = self._over.get(token, self._over_before.get(token))
        self.journal.write(message_id, self.clock.now(), self.path, Happened.LOCK_LOST)
        for counter in self.counters:
            counter.events[Happened.LOCK_LOST] += 1

    def _unlock(self, stored: Stored, now: float, what: Happened, *, count: bool) -> None:
        self._forget_lock(stored)
        self.note(stored, now, what)
        if count:
            stored.delivery_count += 1
            if stored.delivery_count >= self.settings.max_delivery_count and self.dead_letters is not None:
                self._to_dead_letters(
                    stored,
                    now,
                    "MaxDeliveryCountExceeded",
                    f"Message could not be consumed after {self.settings.max_delivery_count} delivery attempts.",
                )
                return
        # A deferred message that is abandoned stays deferred: it can be had by its sequence number only.
        if stored.state == ACTIVE:
            # What expired under the lock does so now (message-expiration page).
            if stored.expires_at <= now:
                self._expire(stored, now)
            else:
                self._make_ready(stored)

    def _remove(self, stored: Stored) -> None:
        self._forget_lock(stored)
        if self.messages.pop(stored.sequence, None) is not None:
            self.size -= stored.message.size

    def _to_dead_letters(self, stored: Stored, now: float, reason: str | None, description: str | None) -> None:
        self._remove(stored)
        self.note(stored, now, Happened.DEAD_LETTERED, reason or "")
        if self.dead_letters is None:  # dead-lettering in a dead-letter sub-queue removes the message
            return
        added = {
            name: value
            for name, value in (("DeadLetterReason", reason), ("DeadLetterErrorDescription", description))
            if value
        }
        self.dead_letters.put(
            delivered.modified(stored.message, added),
            now,
            dead_letter_source=self.path,
            enqueue_sequence=stored.sequence,
            delivery_count=stored.delivery_count,
        )

    # Management

    def peek(self, start: int, count: int, session_id: str | None = None) -> list[Stored]:
        """At most `count` messages from that sequence number on, whatever their state; nothing is locked."""
        now = self.clock.now()
        found: list[Stored] = []
        for sequence in self._in_order(start):
            if len(found) >= count:
                break
            stored = self.messages.get(sequence)
            if stored is None or stored.late or (session_id is not None and stored.message.session_id != session_id):
                continue
            if stored.expires_at <= now and stored.token is None and stored.state != DEFERRED:
                self._expire(stored, now)
                continue
            found.append(stored)
        return found

    def _in_order(self, start: int) -> list[int]:
        """Sequence numbers from `start` on, those of messages long gone among them."""
        if self.settings.partitioned:
            return sorted(sequence for sequence in self.messages if sequence >= start)
        return self._order[bisect.bisect_left(self._order, start) :]

    def receive_by_sequence(self, sequences: list[int], *, lock: bool, session: Session | None) -> list[Stored]:
        """Deferred messages by their numbers; one that is locked, gone or not deferred fails the whole request."""
        if self.settings.partitioned and len({sequence >> 48 for sequence in sequences}) > 1:
            raise RefusedError(
                "com.microsoft:argument-error", "The sequence numbers belong to more than one partition.", 400
            )
        found: list[Stored] = []
        now = self.clock.now()
        for sequence in dict.fromkeys(sequences):
            stored = self.messages.get(sequence)
            # A deferred message expires when it is asked for, not before (message-deferral page).
            if stored is not None and stored.state == DEFERRED and stored.token is None and stored.expires_at <= now:
                self._expire(stored, now)
                stored = None
            if stored is None or stored.state != DEFERRED or stored.token is not None:
                raise RefusedError(
                    "com.microsoft:message-not-found",
                    f"Failed to lock one or more messages: {sequence} is not deferred, is locked or does not exist.",
                    404,
                )
            if session is not None and stored.message.session_id != session.id:
                raise RefusedError("com.microsoft:message-not-found", f"{sequence} is of another session.", 404)
            found.append(stored)
        for stored in found:
            self.hand_out(stored, now, lock=lock, session=session)
        return found

    def cancel(self, sequences: list[int]) -> None:
        for sequence in sequences:
            stored = self.messages.get(sequence)
            if stored is None or stored.state != SCHEDULED:
                raise RefusedError("com.microsoft:message-not-found", f"There is no scheduled message {sequence}.", 404)
        for sequence in sequences:
            stored = self.messages[sequence]
            self._remove(stored)
            self.note(stored, self.clock.now(), Happened.CANCELLED)

    # Time

    @property
    def still(self) -> bool:
        """Whether time changes nothing here."""
        return not (self._later or self._locks or self._expiries or self.sessions)

    def tick(self, now: float) -> None:
        """Let run out what has run out: schedules, late visibility, locks, times to live."""
        while self._later and self._later[0][0] <= now:
            _, sequence = heapq.heappop(self._later)
            self._come_due(sequence, now)
        while self._locks and self._locks[0][0] <= now:
            _, sequence, token = heapq.heappop(self._locks)
            locked = self.messages.get(sequence)
            if locked is not None and locked.token == token and locked.locked_until <= now:
                self._unlock(locked, now, Happened.LOCK_EXPIRED, count=True)
        while self._expiries and self._expiries[0][0] <= now:
            _, sequence = heapq.heappop(self._expiries)
            stored = self.messages.get(sequence)
            # A locked message is not expired under its receiver; the lock's end looks again. Nor is a deferred one.
            if stored is not None and stored.token is None and stored.state != DEFERRED and stored.expires_at <= now:
                self._expire(stored, now)
        for session in [s for s in self.sessions.values() if s.owner is not None and s.locked_until <= now]:
            self.release_session(session, now, expired=True)
        for session in [s for s in self.sessions.values() if s.owner is None and s.state is None]:
            while session.ready and self._stale(session.ready[0]):
                heapq.heappop(session.ready)
            if not session.ready:
                del self.sessions[session.id]

    def _come_due(self, sequence: int, now: float) -> None:
        stored = self.messages.get(sequence)
        if stored is None:
            return
        if stored.late:
            stored.late = False
            self._make_ready(stored)
        elif stored.state == SCHEDULED:
            # As the service documents it: appended as if enqueued at this instant, with a new sequence number.
            self._remove(stored)
            self.note(stored, now, Happened.ACCEPTED, "scheduled time reached")
            message = stored.message
            self.put(message, max(now, message.scheduled_at or 0.0), enqueue_sequence=stored.sequence)

    def _expire(self, stored: Stored, now: float) -> None:
        if self.settings.dead_letter_on_expiration and self.dead_letters is not None:
            self._to_dead_letters(stored, now, "TTLExpiredException", "The message expired and was dead lettered.")
        else:
            self._remove(stored)
            self.note(stored, now, Happened.EXPIRED)

    def expire_locks(self) -> int:
        now = self.clock.now()
        held = list(self.locked.values())
        for session in list(self.sessions.values()):
            if session.owner is not None:
                self.release_session(session, now, expired=True)
        for stored in held:
            if stored.token is not None:
                self._unlock(stored, now, Happened.LOCK_EXPIRED, count=True)
        return len(held)

    def delete(self) -> None:
        """The entity is deleted, and all that is here with it."""
        self.removed = True
        now = self.clock.now()
        for stored in self.messages.values():
            self.note(stored, now, Happened.DELETED)

    def counts(self) -> dict[str, int]:
        found = {"active": 0, "deferred": 0, "scheduled": 0, "locked": len(self.locked)}
        for stored in self.messages.values():
            found[("active", "deferred", "scheduled")[stored.state]] += 1
        return found

    def note(self, stored: Stored, now: float, what: Happened, detail: str = "") -> None:
        self.journal.write(stored.message.message_id, now, self.path, what, detail)
        for counter in self.counters:
            counter.events[what] += 1
