"""How long a message may live, as three fields of AMQP say it, and what of that goes through the envelope.

Numbers only; which bytes they come from is the envelope's business.
"""

# SDKs write a time to live three times: header.ttl, and creation-time and absolute-expiry-time in the properties, whose
# difference the service prefers, because the header's uint ends at 49 days. A backlog queue must see none of it, or it
# would expire the message; so header.ttl and absolute-expiry-time are cleared. creation-time alone means nothing to
# the service: it stays, and on restore gives absolute-expiry-time back, as creation-time + ttl.
#
# Where the expiry of a foreign message is not that sum, it is stored under an alias of its own. Neither our encoder nor
# any SDK makes such messages.
#
# On restore both times move on by the time spent in the backlog, as if the message were sent now. As they were, they
# could lie in the past on arrival, and whoever goes by absolute-expiry-time alone would take the message for expired.

from typing import Literal, NamedTuple

from spark_sb_sink.amqp.message import FOR_EVER_MS, expiry_ms
from spark_sb_sink.amqp.types import LONG_MAX, UINT_MAX

TICKS_PER_MS = 10_000
TtlPolicy = Literal["full", "deduct"]


class Lifetime(NamedTuple):
    """Time to live, creation time and expiry time, in milliseconds; None where not set."""

    ttl: int | None
    created: int | None
    expires: int | None


NO_LIFETIME = Lifetime(None, None, None)


class Stay(NamedTuple):
    """The time that a message spent in the backlog, and how much of it counts against its time to live."""

    spent: int
    counted: int


NO_STAY = Stay(0, 0)


def stay(enqueued: int | None, now: int | None, scheduled: int | None, policy: TtlPolicy) -> Stay:
    """A time to live starts when the message is enqueued: for a scheduled one, at its scheduled time."""
    if enqueued is None or now is None:
        return NO_STAY
    spent = max(0, now - enqueued)
    if policy == "full":
        return Stay(spent, 0)
    return Stay(spent, max(0, now - max(enqueued, enqueued if scheduled is None else scheduled)))


def whole_ttl(lifetime: Lifetime) -> int | None:
    """The time to live, also where it is more than the header can hold."""
    ttl, created, expires = lifetime
    if (
        ttl == UINT_MAX
        and created is not None
        and expires is not None
        and ttl < expires - created <= FOR_EVER_MS  # beyond that it has no number of ticks
    ):
        return expires - created
    return ttl


def usual_expiry(ttl: int | None, created: int | None) -> int | None:
    """The expiry time that an SDK writes with this time to live and creation time: none with a time to live of 0."""
    return expiry_ms(created, ttl) if ttl and created is not None else None


def ttl_from_ticks(ticks: int) -> int | None:
    """Milliseconds, rounded up; None for TimeSpan.MaxValue, which means that none was set."""
    ttl = -(-ticks // TICKS_PER_MS)
    return ttl if ttl < FOR_EVER_MS else None


def restored(lifetime: Lifetime, spent: Stay) -> tuple[Lifetime, bool]:
    """The lifetime to send with after that stay in the backlog, and whether none is left."""
    ttl, created, expires = lifetime
    if ttl is None and expires is None:
        return lifetime, False
    left = None if ttl is None else max(0, ttl - spent.counted)
    later = None if created is None else _within(created + spent.spent)
    if expires is None:
        expiry = None
    elif expires == usual_expiry(ttl, created):
        expiry = usual_expiry(left, later)
    else:
        expiry = _within(expires + spent.spent - spent.counted)
    expired = left == 0 if left is not None else later is not None and expiry is not None and expiry <= later
    return Lifetime(left, later, expiry), expired and spent.counted > 0


def _within(milliseconds: int) -> int:
    # Far from any real date; but a foreign message may hold any 64 bits.
    return min(milliseconds, LONG_MAX)
