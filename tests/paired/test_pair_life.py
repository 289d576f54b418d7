"""How the two sides of a pair end: who first, and when the other has to follow."""

import pytest

from spark_sb_sink.errors import ClosedError, FaultedError
from spark_sb_sink.pair_life import GRACE, PairLife
from spark_sb_sink.transport import Side

BOTH = [(Side.PRIMARY, Side.SECONDARY), (Side.SECONDARY, Side.PRIMARY)]


def test_while_both_live_nothing_is_due_and_nothing_raises() -> None:
    life = PairLife()
    assert life.overdue(1e9) is None
    assert life.error() is None
    for side in Side:
        life.check(side)


@pytest.mark.parametrize("fault", [True, False])
@pytest.mark.parametrize(("first", "other"), BOTH)
def test_the_other_side_is_overdue_five_seconds_after_the_first_ended(first: Side, other: Side, fault: bool) -> None:
    life = PairLife()
    life.end(first, 100.0, "its credential was refused", fault=fault)
    assert GRACE == 5.0
    assert life.overdue(100.0) is None
    assert life.overdue(104.999) is None
    assert life.overdue(105.0) is other
    assert life.overdue(1000.0) is other


@pytest.mark.parametrize(("first", "other"), BOTH)
def test_the_side_that_ended_raises_at_once_and_the_other_works_on(first: Side, other: Side) -> None:
    life = PairLife()
    life.end(first, 100.0, "it was closed", fault=False)
    with pytest.raises(ClosedError, match=f"The {first.value} side of the pair is closed"):
        life.check(first)
    life.check(other)


@pytest.mark.parametrize(("first", "other"), BOTH)
def test_once_both_ended_the_error_names_who_went_first_and_why(first: Side, other: Side) -> None:
    life = PairLife()
    life.end(first, 100.0, "its credential was refused", fault=True)
    life.end(other, 105.0, "the other side came to its end", fault=True)
    assert life.overdue(1000.0) is None
    for side in Side:
        with pytest.raises(FaultedError) as caught:
            life.check(side)
        assert (caught.value.first, caught.value.other) == (first.value, other.value)
        assert f"The {first.value} side of the pair came to its end first: its credential was refused." in str(
            caught.value
        )


def test_the_order_is_that_of_the_ends_not_of_their_telling() -> None:
    life = PairLife()
    life.end(Side.PRIMARY, 105.0, "late", fault=True)
    life.end(Side.SECONDARY, 100.0, "early", fault=True)
    error = life.error()
    assert error is not None
    assert error.first == "secondary"
    assert "early" in str(error)


def test_a_side_ends_once_and_its_first_reason_stays() -> None:
    life = PairLife()
    life.end(Side.PRIMARY, 100.0, "its loop died", fault=True)
    life.end(Side.PRIMARY, 104.0, "it was closed", fault=False)
    assert life.ends[Side.PRIMARY].reason == "its loop died"
    assert life.overdue(105.0) is Side.SECONDARY


def test_a_pair_that_was_closed_is_closed_and_not_faulted() -> None:
    life = PairLife()
    for side in Side:
        life.end(side, 100.0, "it was closed", fault=False)
    assert life.error() is None
    with pytest.raises(ClosedError) as caught:
        life.check(Side.PRIMARY)
    assert not isinstance(caught.value, FaultedError)


def test_a_side_that_was_closed_alone_and_outlived_is_a_fault_of_the_pair() -> None:
    life = PairLife()
    life.end(Side.SECONDARY, 100.0, "it was closed", fault=False)
    life.end(Side.PRIMARY, 105.0, "the other side came to its end", fault=True)
    error = life.error()
    assert error is not None
    assert error.first == "secondary"
