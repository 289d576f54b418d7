"""Whether a micro-batch may end well, from what its tasks reported."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_sb_sink.errors import (
    AllBacklogsOutError,
    BatchFailedError,
    ConservationError,
    MisconfiguredSendError,
    UnsendableError,
)
from spark_sb_sink.knowledge import counts_of
from spark_sb_sink.lanes import LaneTotals
from spark_sb_sink.outcome import check_conservation, failure_of
from spark_sb_sink.receipts import TaskReport

REFUSED = MisconfiguredSendError(namespace="west", entity="orders", claim="Send", detail="no")
ALL_OUT = AllBacklogsOutError(namespace="north", entity="orders", errors=[("b/0", "gone"), ("b/1", "busy")])


def report(*lanes: LaneTotals, rows: int | None = None) -> TaskReport:
    return TaskReport(0, sum(lane.total for lane in lanes) if rows is None else rows, lanes, "board")


numbers = st.integers(0, 50)
lanes = st.builds(
    LaneTotals,
    st.sampled_from(["orders", "bills", ""]),
    primary=numbers,
    backlog=numbers,
    overflow=numbers,
    quarantine=numbers,
    abandoned=numbers,
)


@given(st.lists(st.lists(lanes, max_size=4), max_size=4), st.integers(-2, 2), st.integers(-2, 2))
def test_a_batch_is_conserved_only_where_spark_tasks_and_outcomes_count_the_same(
    found: list[list[LaneTotals]], more_counted: int, more_read: int
) -> None:
    reports = [report(*of_task) for of_task in found]
    rows = sum(lane.total for of_task in found for lane in of_task)
    reports.append(report(rows=more_read))
    if more_counted == more_read == 0:
        check_conservation(rows, reports, counts_of(reports))
    else:
        with pytest.raises(ConservationError):
            check_conservation(rows + more_counted, reports, counts_of(reports))


def test_an_error_of_conservation_tells_all_three_counts() -> None:
    reports = [report(LaneTotals("orders", primary=3, backlog=1), rows=5)]
    with pytest.raises(ConservationError, match=r"counted 6 rows .* but 4 have .*tasks read 5: 3 primary, 1 backlog"):
        check_conservation(6, reports, counts_of(reports))


def test_a_batch_that_went_to_primary_and_backlog_does_not_fail() -> None:
    assert failure_of([report(LaneTotals("orders", primary=2, backlog=3))], has_state=False) is None
    assert failure_of([], has_state=False) is None


@pytest.mark.parametrize("has_state", [True, False])
def test_a_refused_credential_fails_the_batch_with_and_without_state(has_state: bool) -> None:
    refused = LaneTotals("orders", abandoned=2, error=REFUSED)
    assert failure_of([report(refused), report(refused)], has_state=has_state) is REFUSED


def test_what_no_backlog_queue_takes_fails_the_batch_only_without_state() -> None:
    reports = [report(LaneTotals("orders", overflow=2, all_out=ALL_OUT))]
    assert failure_of(reports, has_state=True) is None
    assert failure_of(reports, has_state=False) is ALL_OUT


def test_bad_rows_of_all_tasks_are_one_error_for_each_entity_and_only_without_state() -> None:
    reports = [
        report(LaneTotals("orders", quarantine=2, reasons=("too large", "no body"))),
        report(LaneTotals("orders", quarantine=1, overflow=1, reasons=("no body", "no entity", "reserved"))),
    ]
    assert failure_of(reports, has_state=True) is None
    error = failure_of(reports, has_state=False)
    assert isinstance(error, UnsendableError)
    assert "4 rows for orders cannot be sent (1 for overflow and 3 for quarantine)" in str(error)
    assert str(error).endswith("The first reasons:\n  too large\n  no body\n  no entity")


def test_rows_without_an_entity_are_told_as_such() -> None:
    error = failure_of([report(LaneTotals("", quarantine=1, reasons=("entity is null",)))], has_state=False)
    assert "1 rows without an entity cannot be sent" in str(error)


def test_rows_that_no_backlog_queue_took_are_not_told_twice() -> None:
    lane = LaneTotals("orders", overflow=5, quarantine=1, all_out=ALL_OUT, reasons=("no body",))
    error = failure_of([report(lane)], has_state=False)
    assert isinstance(error, BatchFailedError)
    assert [type(each) for each in error.errors] == [AllBacklogsOutError, UnsendableError]
    assert "1 rows for orders cannot be sent (1 for quarantine)" in str(error.errors[1])


def test_several_reasons_are_one_error_that_lists_each_entity_in_order_and_can_be_pickled() -> None:
    reports = [
        report(
            LaneTotals("zebras", quarantine=1, reasons=("no body",)),
            LaneTotals("orders", abandoned=1, error=REFUSED),
            LaneTotals("bills", overflow=1, all_out=ALL_OUT),
        )
    ]
    error = failure_of(reports, has_state=False)
    assert isinstance(error, BatchFailedError)
    assert [type(each) for each in error.errors] == [AllBacklogsOutError, MisconfiguredSendError, UnsendableError]
    assert str(error).startswith("The micro-batch failed for 3 reasons:\n- ")
    back = pickle.loads(pickle.dumps(error))
    assert (str(back), [str(each) for each in back.errors]) == (str(error), [str(each) for each in error.errors])
