"""The choice among backlog queues."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_sb_sink.rotation import AllOut, Chosen, Keep, QueueState, Rotation, choose, take_out


def chosen(rotation: Rotation, entity: str, now: float = 0.0, seed: int = 0, **known: set[int]) -> tuple[Rotation, int]:
    rotation, choice = choose(rotation, entity, now, random.Random(seed), **known)
    assert isinstance(choice, Chosen)
    return rotation, choice.queue


def test_a_queue_is_picked_at_random_and_kept() -> None:
    rotation, first = chosen(Rotation.of(10), "orders", seed=1)
    for seed in range(20):
        rotation, again = chosen(rotation, "orders", seed=seed)
        assert again == first
    assert rotation.kept == (Keep("orders", first),)


def test_all_queues_are_picked_by_somebody() -> None:
    assert {chosen(Rotation.of(10), "orders", seed=seed)[1] for seed in range(200)} == set(range(10))


def test_each_entity_keeps_a_queue_of_its_own_choice() -> None:
    rotation, orders = chosen(Rotation.of(10), "orders", seed=1)
    rotation, bills = chosen(rotation, "bills", seed=5)
    assert chosen(rotation, "orders")[1] == orders
    assert chosen(rotation, "bills")[1] == bills


def test_a_queue_with_an_entity_fault_is_out_for_all_and_another_is_picked_and_kept() -> None:
    rotation, first = chosen(Rotation.of(2), "orders")
    rotation = take_out(rotation, first, "disabled", now=100.0, cooldown=60.0)
    rotation, second = chosen(rotation, "orders", now=100.0)
    assert second != first
    assert {chosen(rotation, "bills", now=159.9, seed=seed)[1] for seed in range(20)} == {second}
    assert chosen(rotation, "orders", now=1000.0)[1] == second


@pytest.mark.parametrize(("now", "back"), [(159.999, False), (160.0, True)])
def test_a_queue_returns_after_its_cool_down(now: float, back: bool) -> None:
    rotation = take_out(Rotation.of(1), 0, "disabled", now=100.0, cooldown=60.0)
    assert isinstance(choose(rotation, "orders", now, random.Random(0))[1], Chosen if back else AllOut)


def test_faults_that_come_in_while_a_queue_is_out_do_not_keep_it_out_longer() -> None:
    rotation = take_out(Rotation.of(1), 0, "disabled", now=100.0, cooldown=60.0)
    rotation = take_out(rotation, 0, "deadline", now=109.0, cooldown=60.0)
    assert rotation.queues == (QueueState(0, 160.0, "deadline"),)


def test_a_throttled_queue_is_passed_over_and_stays_in_the_rotation() -> None:
    rotation, first = chosen(Rotation.of(3), "orders")
    rotation, second = chosen(rotation, "orders", busy={first})
    assert second != first
    assert all(queue.out_until is None for queue in rotation.queues)
    assert chosen(rotation, "orders")[1] == second
    assert first in {chosen(rotation, "bills", seed=seed)[1] for seed in range(50)}


def test_when_all_queues_are_busy_one_is_taken_after_a_wait() -> None:
    _, choice = choose(Rotation.of(2), "orders", 0.0, random.Random(0), busy={0, 1})
    assert isinstance(choice, Chosen)
    assert choice.busy


def test_all_out_says_so_with_the_last_error_of_every_queue() -> None:
    rotation = Rotation.of(3)
    for queue in range(3):
        rotation = take_out(rotation, queue, f"error {queue}", now=100.0 + queue, cooldown=60.0)
    same, choice = choose(rotation, "orders", 110.0, random.Random(0))
    assert same == rotation
    assert choice == AllOut(((0, "error 0"), (1, "error 1"), (2, "error 2")))


def test_a_batch_does_not_go_round_for_ever_among_queues_that_each_take_a_deadline_to_fail() -> None:
    rotation, now, tried = Rotation.of(10), 0.0, set[int]()
    for _ in range(10):  # ten queues, ten seconds each: the first is back before the last has failed
        rotation, queue = chosen(rotation, "orders", now, tried=tried)
        now += 10.0
        rotation = take_out(rotation, queue, f"deadline at {now}", now, cooldown=60.0)
        tried.add(queue)
    _, choice = choose(rotation, "orders", now, random.Random(0), tried=tried)
    assert isinstance(choice, AllOut)
    assert len({error for _, error in choice.errors}) == 10


actions = st.lists(
    st.tuples(
        st.sampled_from(["fault", "busy", "wait"]),
        st.sampled_from(["orders", "bills"]),
        st.floats(0, 90),
        st.integers(0),
    ),
    max_size=40,
)


@given(count=st.integers(1, 5), actions=actions)
def test_whatever_happens_the_choice_is_a_queue_in_the_rotation_or_all_are_out(
    count: int, actions: list[tuple[str, str, float, int]]
) -> None:
    rotation, now = Rotation.of(count), 0.0
    out: dict[int, float] = {}
    for action, entity, wait, seed in actions:
        rotation, choice = choose(rotation, entity, now, random.Random(seed))
        in_rotation = {queue for queue in range(count) if out.get(queue, 0.0) <= now}
        if isinstance(choice, AllOut):
            assert not in_rotation
        else:
            assert choice.queue in in_rotation
            if action == "fault":
                rotation = take_out(rotation, choice.queue, "x", now, 60.0)
                out[choice.queue] = now + 60.0
            if action == "busy":
                rotation, other = choose(rotation, entity, now, random.Random(seed), busy={choice.queue})
                assert isinstance(other, Chosen)
                assert other.busy == (other.queue == choice.queue) == (in_rotation == {choice.queue})
        now += wait
