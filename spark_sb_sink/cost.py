"""What the pair costs in billable operations: while all is well, and for an outage. Arithmetic, nothing else.

Service Bus bills a send or a delivery for each 64 KB begun, a receive that brings nothing as one, a ping as the message
that it is. Settling and renewing locks are free. Administration calls of the first pairing are not told: a dozen.
"""

import math
from dataclasses import dataclass

STEP = 64 * 1024
"""Bytes in one charge."""
ENVELOPE = 160
"""Bytes that the envelope adds in the backlog: four properties, and a destination path of some 50 characters."""
DAYS_30 = 30 * 86_400
LOOK_EVERY = 3600
"""Seconds between a syphon's looks for deferred messages in a queue that has shown none."""
PAGE = 250
"""Messages that one peek shows."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The pair as it is configured; times in seconds. `executors` are those of the sink that send."""

    queues: int = 10
    long_poll: float = 900.0
    syphons: int = 1
    failover_interval: float = 60.0
    ping_interval: float = 60.0
    ping_messages: bool = True
    """False with ping = "link": nothing is sent then, and nothing billed."""
    executors: int = 1


@dataclass(frozen=True, slots=True)
class Outage:
    """So many messages a second, of so many bytes each as encoded, for so many entities, for so long."""

    seconds: float
    rate: float
    message_bytes: int = 1024
    entities: int = 1
    deferred: float = 0.0
    """The share of the messages that is deferred because some entities are back and others are not."""


@dataclass(frozen=True, slots=True)
class Idle:
    """Operations in 30 days in which nothing happens."""

    receives_30d: int
    """Long polls that end with nothing."""
    peeks_30d: int
    """Looks for deferred messages that somebody else may have left."""

    @property
    def operations_30d(self) -> int:
        return self.receives_30d + self.peeks_30d


@dataclass(frozen=True, slots=True)
class Charges:
    """Operations for one outage: the four charges per message, and what comes with them."""

    messages: int
    diverted: int
    """Of those, the ones that go to the backlog: all or none."""
    backlog_sends: int
    backlog_receives: int
    primary_sends: int
    primary_receives: int
    pings: int
    """At most: a ping that finds nobody is not billed."""
    deferred_receives: int
    """Once more from the backlog, by sequence number."""
    deferred_requests: int
    """About so many, to find the deferred ones, to ask for them and to settle them, a page at a time. A peek is billed
    by the size of what it brings."""

    @property
    def operations(self) -> int:
        return self.without_outage + self.extra

    @property
    def without_outage(self) -> int:
        """What the same messages would have cost on a good day."""
        return self.primary_sends + self.primary_receives

    @property
    def extra(self) -> int:
        """What the outage adds."""
        return self.backlog_sends + self.backlog_receives + self.pings + self.deferred_receives + self.deferred_requests


def steps(size: int) -> int:
    """Charges for a message of so many bytes: one for each 64 KB begun."""
    return max(1, -(-size // STEP))


def idle(setup: Setup) -> Idle:
    """In 30 days without an outage. Tasks of one syphon share its queues, so only syphons count."""
    served = setup.queues * setup.syphons
    return Idle(
        receives_30d=served * math.ceil(DAYS_30 / setup.long_poll),
        peeks_30d=served * (DAYS_30 // LOOK_EVERY),
    )


def outage(setup: Setup, given: Outage) -> Charges:
    """For an outage and the drain after it.

    What fails for less than the failover interval is not diverted: the messages wait, and the primary takes them. Else
    those of the first interval go to the backlog too.
    """
    messages = math.ceil(given.rate * given.seconds)
    diverted = messages if _fails_over(setup, given) else 0
    at_home, away = steps(given.message_bytes), steps(given.message_bytes + ENVELOPE)
    deferred = math.ceil(diverted * given.deferred)
    pages = -(-deferred // PAGE)
    peek = steps(min(deferred, PAGE) * (given.message_bytes + ENVELOPE))
    return Charges(
        messages=messages,
        diverted=diverted,
        backlog_sends=diverted * away,
        backlog_receives=diverted * away,
        primary_sends=messages * at_home,
        primary_receives=messages * at_home,
        pings=pings(setup, given),
        deferred_receives=deferred * away,
        # And a last look at each queue that none is left.
        deferred_requests=pages * (peek + 2) + setup.queues if deferred else 0,
    )


def pings(setup: Setup, given: Outage) -> int:
    """One a ping interval for each entity, by each executor of the sink and by each syphon, and one that succeeds."""
    if not setup.ping_messages or not _fails_over(setup, given):
        return 0
    each = math.floor((given.seconds - setup.failover_interval) / setup.ping_interval) + 1
    return each * given.entities * (setup.executors + setup.syphons)


def drain_seconds(setup: Setup, given: Outage, max_rate: float | None) -> float | None:
    """How long the drain takes at that rate of each syphon; None where there is no rate, or no syphon."""
    if max_rate is None or not setup.syphons:
        return None
    return outage(setup, given).diverted / (max_rate * setup.syphons)


def _fails_over(setup: Setup, given: Outage) -> bool:
    """The fault that diverts is the first one at or after the end of the interval."""
    return given.seconds >= setup.failover_interval


def money(operations: int, price_per_million: float) -> float:
    """At a price for a million operations."""
    return operations / 1_000_000 * price_per_million
