"""Sends, faults, heals, throttling, pings, hints, late results and crashes in any order: isolation and timers hold.

The machine keeps its own account of what each entity was seen to do and judges the state machine by that account. To
show that it would notice, it is also run over versions of `step` with a bug planted in them, and has to fail.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from spark_sb_sink.failover import (
    EntityState,
    Event,
    FailoverSettings,
    Health,
    Hint,
    PingBegun,
    PingBusy,
    PingFailed,
    PingSucceeded,
    Route,
    SendFailed,
    SendSucceeded,
    SendThrottled,
    Step,
    ping_due,
    route,
    step,
)

UP, DOWN, BUSY = "up", "down", "busy"
ENTITIES = ("orders", "steady")  # steady is never out


@dataclass(frozen=True)
class Flight:
    """A send or a ping under way. `episode` is the machine's own count of changes when it began, not the epoch."""

    entity: str
    epoch: int
    episode: int
    begun_at: float
    world: str
    ping: bool = False


@dataclass
class Account:
    """What one entity was seen to do."""

    world: str = UP
    episode: int = 0
    first_fault: float | None = None
    """The first fault since the last success, not counting late ones."""
    hinted: bool = False
    last_ping: float | None = None
    backlog: int = 0


class Machine(RuleBasedStateMachine):
    step: ClassVar[Callable[[EntityState, Event, float, FailoverSettings], Step]] = staticmethod(step)

    @initialize(interval=st.sampled_from([0.0, 2.0, 60.0]), ping_interval=st.sampled_from([1.0, 60.0]))
    def start(self, interval: float, ping_interval: float) -> None:
        self.now = 1000.0
        self.settings = FailoverSettings(interval, ping_interval, ping_deadline=10.0)
        self.states = {entity: EntityState(entity) for entity in ENTITIES}
        self.accounts = {entity: Account() for entity in ENTITIES}
        self.flights: list[Flight] = []

    def tell(self, entity: str, event: Event) -> None:
        """Gives the event to the state machine; checks that what it reports is what changed."""
        before = self.states[entity]
        after, change = type(self).step(before, event, self.now, self.settings)
        self.states[entity] = after
        if change is None:
            assert after.health is before.health, "a change that was not reported"
        else:
            assert (change.entity, change.before, change.after, change.at) == (
                entity,
                before.health,
                after.health,
                self.now,
            ), "a change was reported wrongly"
            assert change.before is not change.after, "a change was reported wrongly"
            self.accounts[entity].episode += 1
            self.accounts[entity].hinted = False

    # The world

    @rule(world=st.sampled_from([UP, DOWN, BUSY]))
    def fail_heal_or_throttle(self, world: str) -> None:
        self.accounts["orders"].world = world

    @rule(seconds=st.sampled_from([0.0, 0.5, 1.0, 2.0, 10.0, 59.0, 60.0, 3600.0]))
    def tick(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def tick_one_failover_interval(self) -> None:
        self.now += self.settings.failover_interval

    @rule(lost=st.integers(0, 2**16))
    def crash(self, lost: int) -> None:
        """A process dies with what it had under way. Another goes on, which knows what the board says."""
        self.flights = [flight for n, flight in enumerate(self.flights) if not lost >> n & 1]
        self.states = {entity: EntityState.from_row(state.to_row()) for entity, state in self.states.items()}

    # Sends

    @rule(entity=st.sampled_from(ENTITIES))
    def send(self, entity: str) -> None:
        state, account = self.states[entity], self.accounts[entity]
        if route(state) is Route.BACKLOG:
            assert state.health is Health.FAILED_OVER, "diverted without being failed over"
            account.backlog += 1
        else:
            self.flights.append(Flight(entity, state.epoch, account.episode, self.now, account.world))

    @rule(world=st.sampled_from([UP, DOWN, BUSY]))
    def send_and_land_at_once(self, world: str) -> None:
        self.accounts["orders"].world = world
        under_way = len(self.flights)
        self.send("orders")
        if len(self.flights) > under_way:
            self.land_send(self.flights.pop(), world)

    @precondition(lambda self: self.flights)
    @rule(data=st.data())
    def land(self, data: st.DataObject) -> None:
        flight = data.draw(st.sampled_from(self.flights))
        self.flights.remove(flight)
        # Decided when it began or now: an answer can be under way for as long as it likes.
        outcome = data.draw(st.sampled_from(sorted({flight.world, self.accounts[flight.entity].world})))
        if flight.ping:
            self.land_ping(flight, outcome)
        else:
            self.land_send(flight, outcome)

    def land_send(self, flight: Flight, outcome: str) -> None:
        entity, account = flight.entity, self.accounts[flight.entity]
        before, late, hinted = self.states[entity], flight.episode != account.episode, account.hinted
        if outcome == UP:
            self.tell(entity, SendSucceeded(flight.epoch))
            after = self.states[entity]
            assert after.seen_healthy, "a success was forgotten"
            if late:
                assert replace(after, seen_healthy=before.seen_healthy) == before, "a late success changed the state"
            else:
                assert after.health is Health.HEALTHY, "a success must heal"
                account.first_fault, account.hinted = None, False
            return
        if outcome == BUSY:
            self.tell(entity, SendThrottled(flight.epoch))
            assert self.states[entity] == before, "throttling changed the state"
            return
        self.tell(entity, SendFailed(flight.epoch, "fault"))
        after = self.states[entity]
        if late:
            assert after == before, "a late fault changed the state"
            return
        if account.first_fault is None:
            account.first_fault = self.now
        due = self.now >= account.first_fault + self.settings.failover_interval
        must_divert = due or hinted or before.health is Health.PROBATION
        assert (after.health is Health.FAILED_OVER) == must_divert, "diverted too early, too late or not at all"
        if not must_divert:
            assert after.health is Health.SUSPECT, "a fault was forgotten"
            assert after.since == account.first_fault, "the timer counts from the first fault"

    # Pings and hints

    @precondition(lambda self: any(self.wants_ping(entity) for entity in ENTITIES))
    @rule(data=st.data())
    def ping_when_due(self, data: st.DataObject) -> None:
        entity = data.draw(st.sampled_from([entity for entity in ENTITIES if self.wants_ping(entity)]))
        self.now = max(self.now, self.states[entity].next_ping_at or self.now)
        self.ping(entity)

    @precondition(lambda self: self.wants_ping("orders"))
    @rule(world=st.sampled_from([UP, DOWN, BUSY]))
    def ping_when_due_and_land_at_once(self, world: str) -> None:
        self.accounts["orders"].world = world
        self.now = max(self.now, self.states["orders"].next_ping_at or self.now)
        self.ping("orders")
        self.land_ping(self.flights.pop(), world)

    @rule(entity=st.sampled_from(ENTITIES))
    def ping(self, entity: str) -> None:
        state, account = self.states[entity], self.accounts[entity]
        if not ping_due(state, self.now):
            return
        if account.last_ping is not None:
            assert self.now - account.last_ping >= self.settings.ping_interval, "pinged too often"
        account.last_ping = self.now
        self.tell(entity, PingBegun())
        assert not ping_due(self.states[entity], self.now), "two take the same turn"
        self.flights.append(Flight(entity, state.epoch, account.episode, self.now, account.world, ping=True))

    def wants_ping(self, entity: str) -> bool:
        return self.accounts[entity].hinted or self.states[entity].health is Health.FAILED_OVER

    def land_ping(self, flight: Flight, outcome: str) -> None:
        entity, account = flight.entity, self.accounts[flight.entity]
        before, late, hinted = self.states[entity], flight.episode != account.episode, account.hinted
        event = {UP: PingSucceeded, DOWN: PingFailed, BUSY: PingBusy}[outcome]
        self.tell(entity, event(flight.epoch, flight.begun_at))
        after = self.states[entity]
        if late:
            assert after == before, "a late ping changed the state"
        elif before.health is Health.FAILED_OVER:
            expected = Health.PROBATION if outcome == UP else Health.FAILED_OVER
            assert after.health is expected, "only a successful ping brings probation"
            if outcome == UP:
                account.first_fault = None
        elif hinted:
            expected = Health.FAILED_OVER if outcome == DOWN else before.health
            assert after.health is expected, "the ping after a hint decides"
            account.hinted = False
        else:
            assert after.health is before.health, "a ping that was not asked for changed the state"

    @rule(entity=st.sampled_from(ENTITIES))
    def hint(self, entity: str) -> None:
        before, account = self.states[entity], self.accounts[entity]
        self.tell(entity, Hint())
        after = self.states[entity]
        assert after.health is before.health, "a hint alone changed the state"
        if after != before:
            assert before.health in (Health.HEALTHY, Health.SUSPECT), "a hint about one that is out changed the state"
            assert ping_due(after, self.now), "a hint asks for a ping at once"
            account.hinted = True
            account.episode += 1  # what began before the hint says nothing about it

    # What always holds

    @invariant()
    def a_healthy_entity_is_never_diverted(self) -> None:
        assert self.states["steady"].health is Health.HEALTHY, "a healthy entity was diverted"
        assert self.accounts["steady"].backlog == 0, "a healthy entity was diverted"

    @invariant()
    def a_state_says_what_it_must(self) -> None:
        for state in self.states.values():
            assert (state.since is not None) == (state.health in (Health.SUSPECT, Health.FAILED_OVER)), "wrong since"
            if state.health is Health.FAILED_OVER:
                assert state.next_ping_at is not None, "never pinged again"
                longest = max(self.settings.ping_interval, self.settings.ping_deadline)
                assert state.next_ping_at <= self.now + longest, "pinged too late"
            assert ping_due(state, 1e12) == self.wants_ping(state.entity), "a ping that nobody needs, or none"


SMALL = settings(max_examples=200, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))
TestFailoverMachine = Machine.TestCase
TestFailoverMachine.settings = SMALL


def throttling_counts_as_a_fault(state: EntityState, event: Event, now: float, s: FailoverSettings) -> Step:
    return step(state, SendFailed(event.epoch) if isinstance(event, SendThrottled) else event, now, s)


def late_results_are_taken(state: EntityState, event: Event, now: float, s: FailoverSettings) -> Step:
    return step(state, replace(event, epoch=state.epoch) if hasattr(event, "epoch") else event, now, s)


def late_faults_are_taken(state: EntityState, event: Event, now: float, s: FailoverSettings) -> Step:
    return step(state, replace(event, epoch=state.epoch) if isinstance(event, SendFailed) else event, now, s)


def every_fault_restarts_the_timer(state: EntityState, event: Event, now: float, s: FailoverSettings) -> Step:
    after, change = step(state, event, now, s)
    restart = isinstance(event, SendFailed) and event.epoch == state.epoch and after.health is Health.SUSPECT
    return Step(replace(after, since=now), change) if restart else Step(after, change)


def the_interval_is_not_waited_for(state: EntityState, event: Event, now: float, s: FailoverSettings) -> Step:
    return step(state, event, now, replace(s, failover_interval=0.0))


def the_interval_must_be_passed_not_reached(state: EntityState, event: Event, now: float, s: FailoverSettings) -> Step:
    return step(state, event, now, replace(s, failover_interval=s.failover_interval and s.failover_interval + 0.001))


def probation_is_given_an_interval(state: EntityState, event: Event, now: float, s: FailoverSettings) -> Step:
    if isinstance(event, SendFailed) and state.health is Health.PROBATION:
        after, change = step(replace(state, health=Health.HEALTHY), event, now, s)
        return Step(after, replace(change, before=Health.PROBATION)) if change else Step(state)
    return step(state, event, now, s)


def a_success_does_not_stop_the_timer(state: EntityState, event: Event, now: float, s: FailoverSettings) -> Step:
    if isinstance(event, SendSucceeded) and state.health is Health.SUSPECT:
        return Step(replace(state, seen_healthy=True))
    return step(state, event, now, s)


def a_busy_ping_counts_as_a_success(state: EntityState, event: Event, now: float, s: FailoverSettings) -> Step:
    busy = isinstance(event, PingBusy)
    return step(state, PingSucceeded(event.epoch, event.begun_at) if busy else event, now, s)


def a_failed_ping_is_the_last(state: EntityState, event: Event, now: float, s: FailoverSettings) -> Step:
    after, change = step(state, event, now, s)
    return Step(replace(after, next_ping_at=None) if isinstance(event, PingFailed) else after, change)


def a_turn_to_ping_is_not_taken(state: EntityState, event: Event, now: float, s: FailoverSettings) -> Step:
    return Step(state) if isinstance(event, PingBegun) else step(state, event, now, s)


def a_hint_is_believed_without_a_ping(state: EntityState, event: Event, now: float, s: FailoverSettings) -> Step:
    after, change = step(state, event, now, s)
    return step(after, PingFailed(after.epoch, now), now, s) if isinstance(event, Hint) else Step(after, change)


DIVERTED = "diverted too early, too late or not at all"


@pytest.mark.parametrize(
    ("bug", "noticed"),
    [
        (throttling_counts_as_a_fault, "throttling changed the state|not reported"),
        (late_results_are_taken, "a late (success|fault|ping) changed the state"),
        (late_faults_are_taken, "a late fault changed the state"),
        (every_fault_restarts_the_timer, f"the timer counts from the first fault|{DIVERTED}"),
        (the_interval_is_not_waited_for, DIVERTED),
        (the_interval_must_be_passed_not_reached, DIVERTED),
        (probation_is_given_an_interval, DIVERTED),
        (a_success_does_not_stop_the_timer, "a success must heal"),
        (a_busy_ping_counts_as_a_success, "only a successful ping brings probation"),
        (a_failed_ping_is_the_last, "never pinged again|a late ping changed the state"),
        (a_turn_to_ping_is_not_taken, "two take the same turn"),
        (a_hint_is_believed_without_a_ping, "a hint (alone|about one that is out) changed the state"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_machine_finds_a_planted_bug(
    bug: Callable[[EntityState, Event, float, FailoverSettings], Step], noticed: str
) -> None:
    class Planted(Machine):
        step = staticmethod(bug)

    # Found is enough; the smallest example is for whoever has a bug that was not planted.
    find = settings(SMALL, max_examples=20000, derandomize=True, database=None, phases=[Phase.generate])
    with pytest.raises(AssertionError, match=noticed):
        run_state_machine_as_test(Planted, settings=find)
