"""The second step: a delivery becomes a message for its entity, or one that can never be moved. Pure."""

from dataclasses import dataclass
from uuid import UUID

from spark_sb_sink.amqp.errors import CodecError, UnrestorableMessageError
from spark_sb_sink.amqp.layout import cut_map
from spark_sb_sink.amqp.sections import MESSAGE_ANNOTATIONS, split_sections
from spark_sb_sink.envelope import TtlPolicy, restore
from spark_sb_sink.wire import RawDelivery, RawReceiver

NO_ENVELOPE = "SyphonCannotRestore"
MALFORMED = "SyphonMalformed"
EXPIRED = "SyphonTimeToLiveOver"
REFUSED = "SyphonRefusedByEntity"
TOO_LONG = 2000
"""Characters of a description that go into the dead-letter queue; the service takes 4,096."""


@dataclass(frozen=True, slots=True)
class Unmovable:
    """Why a message goes to the dead-letter queue, in words that an operator can act on."""

    reason: str
    description: str
    path: str = ""
    enqueued_ms: int | None = None


@dataclass(slots=True, eq=False)
class Item:
    """A locked message on its way. One that was deferred came by its sequence number, and has no delivery."""

    tag: bytes
    """Its lock token as it comes with a delivery. Few are settled by it, so no UUID is made for each."""
    path: str
    message: bytes
    size: int
    enqueued_ms: int | None = None
    delivery: RawDelivery | None = None
    brought_by: RawReceiver | None = None
    since: float = 0.0
    """When its lock was last known to be held, by the drain's clock."""
    lost: bool = False
    unmovable: Unmovable | None = None

    @property
    def token(self) -> UUID:
        """What the management node knows the lock by."""
        return UUID(bytes_le=self.tag)

    @property
    def deferred(self) -> bool:
        return self.delivery is None


def restored(payload: bytes, ttl: TtlPolicy, now_ms: int) -> tuple[str, bytes, int | None] | Unmovable:
    """Path, message and enqueued time; or why there is no message that could be sent."""
    try:
        found = restore(payload, ttl=ttl, now_ms=now_ms)
    except UnrestorableMessageError as error:
        return Unmovable(NO_ENVELOPE, str(error)[:TOO_LONG])
    except CodecError as error:
        return Unmovable(MALFORMED, f"this is no AMQP message that can be sent: {error}"[:TOO_LONG])
    if found.expired:
        return Unmovable(
            EXPIRED,
            f"its time to live ran out while it waited for {found.path} in the backlog, and the option ttl is deduct",
            found.path,
            found.enqueued_ms,
        )
    return found.path, found.message, found.enqueued_ms


def refused(path: str, reason: str) -> Unmovable:
    """For one that its entity does not take."""
    text = f"{path} does not take this message, now or later: {reason}; correct it and send it to {path} by hand"
    return Unmovable(REFUSED, text[:TOO_LONG], path)


def path_of(payload: bytes) -> str | None:
    """The entity that a message is for; None for one that can never be moved."""
    try:
        return restore(payload).path
    except CodecError:
        return None


_LOCKED_UNTIL = b"\xa3\x12x-opt-locked-until"


def locked_until(payload: bytes) -> float | None:
    """In seconds since 1970, by the service's clock."""
    try:
        for section in split_sections(payload):
            if section.descriptor == MESSAGE_ANNOTATIONS:
                value = dict(cut_map(payload, section.value, section.end)).get(_LOCKED_UNTIL)
                return (
                    None if value is None or value[0] != 0x83 else int.from_bytes(value[1:], "big", signed=True) / 1000
                )
    except CodecError:
        pass
    return None
