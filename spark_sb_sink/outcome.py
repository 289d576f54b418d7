"""Whether a micro-batch may end well, from what its tasks reported. Pure."""

from collections.abc import Sequence

from spark_sb_sink.errors import BatchFailedError, ConservationError, SendError, UnsendableError
from spark_sb_sink.events import RouteCounts, summary
from spark_sb_sink.receipts import TaskReport


def check_conservation(rows: int, reports: Sequence[TaskReport], counts: Sequence[RouteCounts]) -> None:
    """`rows` is what Spark counted: each of them needs one outcome, and no other row may have one."""
    accounted = sum(count.total for count in counts)
    read = sum(report.rows for report in reports)
    if not rows == read == accounted:
        raise ConservationError(rows=rows, accounted=accounted, detail=f"tasks read {read}: {summary(counts)}")


def failure_of(reports: Sequence[TaskReport], *, has_state: bool) -> SendError | None:
    """Why the micro-batch has to fail, if it does: one error for each entity that it fails for."""
    errors: dict[tuple[str, str], SendError] = {}
    unsendable: dict[str, tuple[int, int, tuple[str, ...]]] = {}
    for report in reports:
        for lane in report.entities:
            if lane.error is not None:
                errors.setdefault((lane.entity, "refused"), lane.error)
            if has_state:
                continue
            if lane.all_out is not None:
                errors.setdefault((lane.entity, "all out"), lane.all_out)
            too_large = lane.overflow if lane.all_out is None else 0  # else the error above tells of them
            if lane.quarantine or too_large:
                overflow, quarantine, reasons = unsendable.get(lane.entity, (0, 0, ()))
                unsendable[lane.entity] = (
                    overflow + too_large,
                    quarantine + lane.quarantine,
                    tuple(dict.fromkeys((*reasons, *lane.reasons)))[:3],
                )
    for entity, (overflow, quarantine, reasons) in unsendable.items():
        errors[entity, "unsendable"] = UnsendableError(
            entity=entity, overflow=overflow, quarantine=quarantine, reasons=reasons
        )
    found = [errors[key] for key in sorted(errors)]
    if len(found) < 2:
        return found[0] if found else None
    return BatchFailedError(found)
