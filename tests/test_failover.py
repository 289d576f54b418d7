"""The failover of one entity, sentence by sentence."""

from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_sb_sink.failover import (
    COLUMNS,
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
    StateChange,
    Step,
    ping_due,
    route,
    step,
)

MINUTE = FailoverSettings(failover_interval=60, ping_interval=60, ping_deadline=10)
AT_ONCE = FailoverSettings(failover_interval=0, ping_interval=60, ping_deadline=10)
HEALTHY = EntityState("orders")
SUSPECT = EntityState("orders", Health.SUSPECT, epoch=1, since=100.0, reason="connection lost")
FAILED_OVER = EntityState(
    "orders", Health.FAILED_OVER, epoch=2, since=160.0, next_ping_at=220.0, reason="connection lost"
)
PROBATION = EntityState("orders", Health.PROBATION, epoch=3)
DOUBTED = step(HEALTHY, Hint(), 100.0, MINUTE).state
ALL = [HEALTHY, SUSPECT, FAILED_OVER, PROBATION, DOUBTED]


def after(state: EntityState, event: Event, now: float, settings: FailoverSettings = MINUTE) -> Step:
    return step(state, event, now, settings)


def test_the_first_fault_makes_an_entity_suspect_and_starts_the_timer() -> None:
    state, change = after(HEALTHY, SendFailed(0, "connection lost"), 100.0)
    assert state == SUSPECT
    assert change == StateChange("orders", Health.HEALTHY, Health.SUSPECT, "connection lost", 100.0)
    assert route(state) is Route.PRIMARY


@pytest.mark.parametrize(("now", "health"), [(159.999, Health.SUSPECT), (160.0, Health.FAILED_OVER)])
def test_a_fault_at_or_after_the_interval_diverts_and_one_before_does_not(now: float, health: Health) -> None:
    state, change = after(SUSPECT, SendFailed(1, "connection lost"), now)
    assert state.health is health
    assert (change is None) == (health is Health.SUSPECT)


def test_a_fault_within_the_interval_does_not_restart_the_timer() -> None:
    assert after(SUSPECT, SendFailed(1), 130.0).state.since == 100.0


def test_a_diverted_entity_goes_to_the_backlog_and_is_pinged_one_interval_later() -> None:
    state, change = after(SUSPECT, SendFailed(1, "connection lost"), 160.0)
    assert state == FAILED_OVER
    assert change == StateChange("orders", Health.SUSPECT, Health.FAILED_OVER, "connection lost", 160.0)
    assert route(state) is Route.BACKLOG
    assert not ping_due(state, 219.9)
    assert ping_due(state, 220.0)


def test_with_an_interval_of_zero_the_first_fault_diverts_at_once() -> None:
    state, change = after(HEALTHY, SendFailed(0), 100.0, AT_ONCE)
    assert state.health is Health.FAILED_OVER
    assert change is not None
    assert (change.before, change.after) == (Health.HEALTHY, Health.FAILED_OVER)


@pytest.mark.parametrize("state", [SUSPECT, PROBATION], ids=lambda s: s.health.value)
def test_any_success_makes_a_suspect_or_probationary_entity_healthy(state: EntityState) -> None:
    healed, change = after(state, SendSucceeded(state.epoch), 150.0)
    assert healed == EntityState("orders", epoch=state.epoch + 1, seen_healthy=True)
    assert change is not None
    assert change.after is Health.HEALTHY


def test_a_fault_followed_by_silence_does_not_divert_and_the_next_send_tries_the_primary() -> None:
    assert route(SUSPECT) is Route.PRIMARY  # whatever the time is: a state does not age
    healed = after(SUSPECT, SendSucceeded(1), 10_000.0).state
    assert healed.health is Health.HEALTHY


@pytest.mark.parametrize("state", ALL, ids=lambda s: s.health.value)
@pytest.mark.parametrize("settings", [MINUTE, AT_ONCE], ids=["1m", "0s"])
def test_throttling_never_changes_anything_however_long(state: EntityState, settings: FailoverSettings) -> None:
    for now in (100.0, 160.0, 1e9):
        assert after(state, SendThrottled(state.epoch), now, settings) == Step(state, None)


@pytest.mark.parametrize("state", [SUSPECT, FAILED_OVER, PROBATION, DOUBTED], ids=lambda s: s.health.value)
def test_results_of_sends_and_pings_begun_before_the_last_change_do_not_change_it_again(state: EntityState) -> None:
    late = state.epoch - 1
    events: list[Event] = [
        SendFailed(late),
        PingSucceeded(late, 0.0),
        PingFailed(late, 0.0),
        PingBusy(late, 0.0),
        SendThrottled(late),
    ]
    for event in events:
        assert after(state, event, 1e9) == Step(state, None)
    assert after(state, SendSucceeded(late), 1e9) == Step(replace(state, seen_healthy=True), None)


def test_a_late_success_still_shows_that_the_entity_exists() -> None:
    assert after(FAILED_OVER, SendSucceeded(0), 300.0).state == replace(FAILED_OVER, seen_healthy=True)


def test_whoever_takes_the_turn_to_ping_has_it_alone_until_it_is_over_or_given_up() -> None:
    state = after(FAILED_OVER, PingBegun(), 220.0).state
    assert not ping_due(state, 279.9)
    assert ping_due(state, 280.0)
    hasty = FailoverSettings(ping_interval=1, ping_deadline=10)
    state = step(FAILED_OVER, PingBegun(), 220.0, hasty).state
    assert not ping_due(state, 229.9)
    assert ping_due(state, 230.0)


@pytest.mark.parametrize("state", ALL, ids=lambda s: s.health.value)
def test_a_ping_that_is_not_due_takes_no_turn(state: EntityState) -> None:
    assert after(state, PingBegun(), 99.0) == Step(state, None)


def test_a_failed_ping_keeps_it_failed_over_and_the_next_is_one_interval_after_the_last_began() -> None:
    state, change = after(FAILED_OVER, PingFailed(2, begun_at=220.0), 230.0)
    assert (state.health, state.next_ping_at, change) == (Health.FAILED_OVER, 280.0, None)
    assert state.since == 160.0


def test_a_ping_slower_than_the_interval_is_followed_by_the_next_at_once() -> None:
    state = step(FAILED_OVER, PingFailed(2, begun_at=220.0), 230.0, FailoverSettings(ping_interval=1)).state
    assert state.next_ping_at == 230.0


@pytest.mark.parametrize(("wait", "due"), [(10.0, 280.0), (120.0, 341.0)])
def test_a_busy_ping_keeps_it_failed_over_and_the_wait_asked_for_is_kept(wait: float, due: float) -> None:
    state, change = after(FAILED_OVER, PingBusy(2, begun_at=220.0, wait=wait), 221.0)
    assert (state.health, state.next_ping_at, change) == (Health.FAILED_OVER, due, None)


def test_a_successful_ping_brings_probation_and_everybody_uses_the_primary_at_once() -> None:
    state, change = after(FAILED_OVER, PingSucceeded(2, begun_at=220.0), 221.0)
    assert state == replace(PROBATION, reason="a ping was accepted", seen_healthy=True, next_ping_at=280.0)
    assert change == StateChange("orders", Health.FAILED_OVER, Health.PROBATION, "a ping was accepted", 221.0)
    assert route(state) is Route.PRIMARY
    assert not ping_due(state, 1e9)


def test_a_fault_in_probation_diverts_again_at_once_so_that_a_full_quota_does_not_flap() -> None:
    state, change = after(PROBATION, SendFailed(3, "quota exceeded"), 222.0)
    assert state.health is Health.FAILED_OVER
    assert state.next_ping_at == 282.0
    assert change is not None
    assert change.reason == "quota exceeded"


@pytest.mark.parametrize("state", [HEALTHY, SUSPECT], ids=lambda s: s.health.value)
def test_a_hint_about_an_entity_believed_healthy_asks_for_a_ping_first(state: EntityState) -> None:
    doubted, change = after(state, Hint(), 110.0)
    assert change is None
    assert doubted.health is state.health
    assert doubted.since == state.since
    assert route(doubted) is Route.PING_FIRST
    assert ping_due(doubted, 110.0)


def test_when_the_hinted_ping_succeeds_the_entity_stays_healthy() -> None:
    state, change = after(DOUBTED, PingSucceeded(DOUBTED.epoch, begun_at=100.0), 101.0)
    assert (state.health, state.doubted, change) == (Health.HEALTHY, False, None)
    assert route(state) is Route.PRIMARY


def test_a_hinted_ping_that_succeeds_does_not_clear_a_suspicion_as_only_a_message_can() -> None:
    doubted = after(SUSPECT, Hint(), 110.0).state
    state, change = after(doubted, PingSucceeded(doubted.epoch, begun_at=110.0), 111.0)
    assert (state.health, state.since, change) == (Health.SUSPECT, 100.0, None)


def test_when_the_hinted_ping_fails_the_entity_is_failed_over_without_an_interval_of_its_own() -> None:
    state, change = after(DOUBTED, PingFailed(DOUBTED.epoch, begun_at=100.0, reason="deadline"), 110.0)
    assert (state.health, state.since, state.next_ping_at) == (Health.FAILED_OVER, 110.0, 170.0)
    assert change == StateChange("orders", Health.HEALTHY, Health.FAILED_OVER, "deadline", 110.0)


def test_a_fault_of_a_send_confirms_a_hint_as_a_failed_ping_does() -> None:
    assert after(DOUBTED, SendFailed(DOUBTED.epoch), 101.0).state.health is Health.FAILED_OVER


def test_a_message_accepted_after_the_hint_settles_it() -> None:
    state, change = after(DOUBTED, SendSucceeded(DOUBTED.epoch), 101.0)
    assert (state.health, state.doubted, change) == (Health.HEALTHY, False, None)


def test_a_busy_answer_to_a_hinted_ping_diverts_nothing() -> None:
    state, change = after(DOUBTED, PingBusy(DOUBTED.epoch, begun_at=100.0), 101.0)
    assert (state.health, state.doubted, change) == (Health.HEALTHY, False, None)


def test_a_hint_that_comes_with_every_batch_costs_one_ping_per_interval() -> None:
    state = after(DOUBTED, PingSucceeded(DOUBTED.epoch, begun_at=100.0), 101.0).state
    assert after(state, Hint(), 159.9) == Step(state, None)
    assert after(state, Hint(), 160.0).state.doubted


@pytest.mark.parametrize("state", [FAILED_OVER, PROBATION, DOUBTED], ids=lambda s: s.health.value)
def test_a_hint_tells_nothing_new_of_an_entity_that_is_or_was_just_out(state: EntityState) -> None:
    assert after(state, Hint(), 1e9) == Step(state, None)


def test_states_changes_and_events_cannot_be_altered() -> None:
    with pytest.raises(FrozenInstanceError):
        HEALTHY.epoch = 1  # type: ignore[misc]


times = st.none() | st.floats(allow_nan=False)


@given(
    st.builds(
        EntityState,
        st.text(),
        st.sampled_from(Health),
        st.integers(0),
        times,
        times,
        st.booleans(),
        st.booleans(),
        st.text(),
    )
)
def test_a_state_is_a_row_of_simple_values_and_back(state: EntityState) -> None:
    row = state.to_row()
    assert all(value is None or type(value) in (str, int, float) for value in row)
    assert len(row) == len(COLUMNS)
    assert [getattr(state, name) for name in COLUMNS if name != "health"] == [
        value for name, value in zip(COLUMNS, row, strict=True) if name != "health"
    ]
    assert EntityState.from_row(row) == state


def test_a_ping_given_up_and_reported_after_all_does_not_cut_the_turn_of_the_next_short() -> None:
    hasty = FailoverSettings(ping_interval=1, ping_deadline=10)
    state = step(FAILED_OVER, PingBegun(), 220.0, hasty).state
    state = step(state, PingBegun(), 230.0, hasty).state
    assert step(state, PingFailed(2, begun_at=220.0), 230.5, hasty) == Step(state, None)
