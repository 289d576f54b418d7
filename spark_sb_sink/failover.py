"""When an entity is diverted to the backlog and when it comes back: a pure state machine, one state per entity.

    HEALTHY → SUSPECT(since) → FAILED_OVER(since, next_ping_at) → PROBATION → HEALTHY

`step` is a function of state, event, time and settings. It knows no clock, no network and no exception; which failure
is an entity fault is the business of `faults`, and where states are kept that of the board. Times are monotonic.
"""

from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple


class Health(Enum):
    """What is believed of an entity."""

    HEALTHY = "healthy"
    SUSPECT = "suspect"
    FAILED_OVER = "failed over"
    PROBATION = "probation"


class Route(Enum):
    """Where the next batch for an entity goes."""

    PRIMARY = "primary"
    BACKLOG = "backlog"
    PING_FIRST = "ping first"  # the driver says that it is out, we believe it is not: ask before sending


@dataclass(frozen=True, slots=True)
class FailoverSettings:
    """The options that the state machine needs, in seconds."""

    failover_interval: float = 60.0
    ping_interval: float = 60.0
    ping_deadline: float = 10.0
    """No ping takes longer; a ping begun and never reported was given up, its process dead."""

    @property
    def turn(self) -> float:
        """How long whoever begins a ping has the turn to itself."""
        return max(self.ping_interval, self.ping_deadline)


@dataclass(frozen=True, slots=True)
class EntityState:
    """What is known of one entity. All fields are simple values, so that a state is a row of a table."""

    entity: str
    health: Health = Health.HEALTHY
    epoch: int = 0
    """Counts the changes of `health`, and the hints. A send or ping carries the epoch it began under; the result of one
    that began under another epoch is late, and changes nothing."""
    since: float | None = None
    """SUSPECT: the first fault. FAILED_OVER: when it was diverted."""
    next_ping_at: float | None = None
    """No ping before this time, also not for a hint; None: none was ever made."""
    doubted: bool = False
    """The driver says that it is failed over, and no ping has settled that yet."""
    seen_healthy: bool = False
    """Whether it ever accepted anything."""
    reason: str = ""
    """The fault that brought it where it is."""

    @property
    def exists(self) -> bool:
        """Whether it is known to be there, or to have been: it accepted something, or was failed over somewhere."""
        return self.seen_healthy or self.doubted or self.health in (Health.FAILED_OVER, Health.PROBATION)

    def to_row(self) -> tuple[str, str, int, float | None, float | None, int, int, str]:
        """The state as values that any database holds, in the order of `COLUMNS`."""
        return (
            self.entity,
            self.health.value,
            self.epoch,
            self.since,
            self.next_ping_at,
            int(self.doubted),
            int(self.seen_healthy),
            self.reason,
        )

    @classmethod
    def from_row(cls, row: tuple[str, str, int, float | None, float | None, int, int, str]) -> "EntityState":
        """The state that `to_row` was called on."""
        entity, health, epoch, since, next_ping_at, doubted, seen_healthy, reason = row
        return cls(entity, Health(health), epoch, since, next_ping_at, bool(doubted), bool(seen_healthy), reason)


COLUMNS = ("entity", "health", "epoch", "since", "next_ping_at", "doubted", "seen_healthy", "reason")


@dataclass(frozen=True, slots=True)
class StateChange:
    """One change of one entity's health, for the report, the log and the ledger."""

    entity: str
    before: Health
    after: Health
    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class SendSucceeded:
    """The primary accepted a batch."""

    epoch: int


@dataclass(frozen=True, slots=True)
class SendFailed:
    """A batch met an entity fault on the primary. No other kind of failure is this event."""

    epoch: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SendThrottled:
    """The primary is busy. Changes nothing, ever; it is an event so that this is said here and can be tested."""

    epoch: int


@dataclass(frozen=True, slots=True)
class PingBegun:
    """Somebody took the turn to ping; nobody else does until it is reported or given up."""


@dataclass(frozen=True, slots=True)
class PingSucceeded:
    """The ping was accepted."""

    epoch: int
    begun_at: float


@dataclass(frozen=True, slots=True)
class PingFailed:
    """The ping met an entity fault (or was refused; a ping has no other failures that matter)."""

    epoch: int
    begun_at: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PingBusy:
    """The ping was throttled: the entity lives, and does not take messages now."""

    epoch: int
    begun_at: float
    wait: float = 10.0


@dataclass(frozen=True, slots=True)
class Hint:
    """The driver says that another executor has this entity failed over."""


Event = SendSucceeded | SendFailed | SendThrottled | PingBegun | PingSucceeded | PingFailed | PingBusy | Hint


class Step(NamedTuple):
    """The state after an event, and the change of health if there was one."""

    state: EntityState
    change: StateChange | None = None


def route(state: EntityState) -> Route:
    """Where the next batch goes. PROBATION goes to the primary: only a real message can tell.

    PING_FIRST: ping if the turn is free (`ping_due`); while another has it, send to the primary, as no batch waits.
    """
    if state.health is Health.FAILED_OVER:
        return Route.BACKLOG
    return Route.PING_FIRST if state.doubted else Route.PRIMARY


def ping_due(state: EntityState, now: float) -> bool:
    """Whether somebody should take the turn to ping."""
    wanted = state.health is Health.FAILED_OVER or state.doubted
    return wanted and (state.next_ping_at is None or now >= state.next_ping_at)


def step(state: EntityState, event: Event, now: float, settings: FailoverSettings) -> Step:
    """The state after an event."""
    match event:
        case SendThrottled():
            return Step(state)
        case SendSucceeded(epoch):
            return _succeeded(state, epoch, now)
        case SendFailed(epoch, reason):
            return _failed(state, epoch, reason, now, settings)
        case PingBegun():
            return Step(replace(state, next_ping_at=now + settings.turn)) if ping_due(state, now) else Step(state)
        case PingSucceeded(epoch, begun_at):
            return _ping_succeeded(state, epoch, begun_at, now, settings)
        case PingFailed(epoch, begun_at, reason):
            return _ping_failed(state, epoch, begun_at, reason, now, settings)
        case PingBusy(epoch, begun_at, wait):
            return _ping_busy(state, epoch, begun_at, wait, now, settings)
        case Hint():
            return _hinted(state, now)


def _succeeded(state: EntityState, epoch: int, now: float) -> Step:
    # Late or not, it was accepted once: the entity exists.
    state = state if state.seen_healthy else replace(state, seen_healthy=True)
    if epoch != state.epoch:
        return Step(state)
    if state.health in (Health.SUSPECT, Health.PROBATION):
        return _change(state, Health.HEALTHY, "a message was accepted", now)
    # A message accepted after the hint is a better answer than the ping that was asked for.
    return Step(replace(state, doubted=False) if state.doubted else state)


def _failed(state: EntityState, epoch: int, reason: str, now: float, settings: FailoverSettings) -> Step:
    if epoch != state.epoch:
        return Step(state)
    if state.health is Health.PROBATION or (state.doubted and state.health is not Health.FAILED_OVER):
        # It took a ping and no message, or the driver said so already: no interval is needed to believe it.
        return _divert(state, reason, now, settings)
    if state.health is Health.HEALTHY:
        if settings.failover_interval <= 0:
            return _divert(state, reason, now, settings)
        return _change(state, Health.SUSPECT, reason, now, since=now)
    if state.health is Health.SUSPECT and state.since is not None and now >= state.since + settings.failover_interval:
        return _divert(state, reason, now, settings)
    return Step(state)


def _ping_succeeded(state: EntityState, epoch: int, begun_at: float, now: float, settings: FailoverSettings) -> Step:
    if epoch != state.epoch:
        return Step(state)
    state = state if state.seen_healthy else replace(state, seen_healthy=True)
    if state.health is Health.FAILED_OVER:
        after = _next_turn(state, begun_at, begun_at, settings)
        return _change(state, Health.PROBATION, "a ping was accepted", now, next_ping_at=after)
    if state.doubted:
        return Step(_answered(state, begun_at, settings))
    return Step(state)


def _ping_failed(
    state: EntityState, epoch: int, begun_at: float, reason: str, now: float, settings: FailoverSettings
) -> Step:
    if epoch != state.epoch:
        return Step(state)
    if state.health is Health.FAILED_OVER:
        return Step(replace(state, next_ping_at=_next_turn(state, begun_at, now, settings)))
    if state.doubted:
        return _divert(state, reason, now, settings)
    return Step(state)


def _ping_busy(
    state: EntityState, epoch: int, begun_at: float, wait: float, now: float, settings: FailoverSettings
) -> Step:
    if epoch != state.epoch:
        return Step(state)
    if state.health is Health.FAILED_OVER:
        return Step(replace(state, next_ping_at=_next_turn(state, begun_at, now + wait, settings)))
    if state.doubted:
        # Throttling never diverts: an entity that is merely busy stays where it is, hint or not.
        return Step(_answered(state, begun_at, settings))
    return Step(state)


def _next_turn(state: EntityState, begun_at: float, earliest: float, settings: FailoverSettings) -> float:
    if state.next_ping_at is not None and state.next_ping_at > begun_at + settings.turn:
        return state.next_ping_at  # given up, and somebody else has the turn since
    return max(begun_at + settings.ping_interval, earliest)


def _hinted(state: EntityState, now: float) -> Step:
    believed_well = state.health in (Health.HEALTHY, Health.SUSPECT)
    asked_lately = state.next_ping_at is not None and now < state.next_ping_at
    if not believed_well or state.doubted or asked_lately:
        return Step(state)
    return Step(replace(state, doubted=True, next_ping_at=now, epoch=state.epoch + 1))


def _answered(state: EntityState, begun_at: float, settings: FailoverSettings) -> EntityState:
    """The doubt is settled; hints that repeat it are not asked after again for one ping interval."""
    return replace(state, doubted=False, next_ping_at=_next_turn(state, begun_at, begun_at, settings))


def _divert(state: EntityState, reason: str, now: float, settings: FailoverSettings) -> Step:
    return _change(state, Health.FAILED_OVER, reason, now, since=now, next_ping_at=now + settings.ping_interval)


def _change(
    state: EntityState,
    after: Health,
    reason: str,
    now: float,
    *,
    since: float | None = None,
    next_ping_at: float | None = None,
) -> Step:
    changed = replace(
        state,
        health=after,
        epoch=state.epoch + 1,
        since=since,
        next_ping_at=state.next_ping_at if next_ping_at is None else next_ping_at,
        doubted=False,
        reason="" if after is Health.HEALTHY else reason,
    )
    return Step(changed, StateChange(state.entity, state.health, after, reason, now))
