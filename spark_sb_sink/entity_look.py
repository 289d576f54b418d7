"""What the ledger says of an entity, where executors do not agree: the worst that one of them believes, as in the sink.

An executor that is gone never says that an entity is back. So what it believed no longer counts once others send to the
entity directly, and for some minutes no micro-batch has diverted a row of it. Pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from spark_sb_sink.failover import Health
from spark_sb_sink.knowledge import WORST_FIRST

GONE_AFTER = timedelta(minutes=5)
"""So long after the last micro-batch that diverted a row, an executor that nobody agrees with is taken to be gone."""
NOBODY_LEFT = "no executor that still sends diverts it"


@dataclass(frozen=True, slots=True)
class EntityLook:
    """The state of an entity as the ledger knows it."""

    entity: str
    state: str
    since: datetime
    reason: str


@dataclass(frozen=True, slots=True)
class Belief:
    """The last change that one executor noted of an entity, and when the micro-batch that told of it ended."""

    entity: str
    board: str
    state: str
    since: datetime
    reason: str
    told_at: datetime


@dataclass(frozen=True, slots=True)
class Traffic:
    """The newest micro-batches with rows of an entity; None where there was none."""

    diverted_at: datetime | None = None
    """When the last one ended that had rows for backlog or overflow."""
    direct_at: datetime | None = None
    """When the last one ended that had rows for the primary."""
    direct_begun: datetime | None = None
    """When that one had begun."""


def entity_looks(beliefs: Iterable[Belief], traffic: Mapping[str, Traffic], now: datetime) -> tuple[EntityLook, ...]:
    """One for each entity, by name. `beliefs`: the newest of each board."""
    by_entity: dict[str, list[Belief]] = {}
    for belief in beliefs:
        by_entity.setdefault(belief.entity, []).append(belief)
    return tuple(_look(found, traffic.get(name, Traffic()), now) for name, found in sorted(by_entity.items()))


def _look(beliefs: list[Belief], traffic: Traffic, now: datetime) -> EntityLook:
    counting = [belief for belief in beliefs if not _outdated(belief, beliefs, traffic, now)]
    if not counting:
        newest = max(beliefs, key=lambda belief: belief.since)
        return EntityLook(newest.entity, Health.HEALTHY.value, traffic.direct_at or newest.since, NOBODY_LEFT)
    # Of those that believe the same, the one who found out last.
    worst = min(counting, key=lambda belief: (_rank(belief), -belief.since.timestamp()))
    return EntityLook(worst.entity, worst.state, worst.since, worst.reason)


def _rank(belief: Belief) -> int:
    return WORST_FIRST.index(Health(belief.state))


def _outdated(belief: Belief, beliefs: list[Belief], traffic: Traffic, now: datetime) -> bool:
    if belief.state == Health.HEALTHY.value:
        return False
    contradicted = [
        other.told_at for other in beliefs if other.state == Health.HEALTHY.value and other.since > belief.since
    ]
    if traffic.direct_at and traffic.direct_begun and traffic.direct_begun > belief.since:
        contradicted.append(traffic.direct_at)
    if not contradicted:
        return False
    diverted = traffic.diverted_at
    if diverted is None or diverted < max(contradicted):
        return True
    return diverted == max(contradicted) and now - diverted >= GONE_AFTER
