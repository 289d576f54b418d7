"""Drains until the backlog is empty: peeking finds nothing, twice, `settle_time` apart."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from spark_sb_sink.syphon.drain import Drain
from spark_sb_sink.syphon.receipts import Report

COUNT_TO = 100_000
"""Messages of one queue that are counted when a time limit has passed; more are not told apart."""


@dataclass(frozen=True, slots=True)
class Emptied:
    """The receipts of all runs, and how many messages each queue still has; None where that is not known."""

    reports: tuple[Report, ...]
    left: dict[str, int | None]

    @property
    def empty(self) -> bool:
        return is_empty(self.left)


def is_empty(left: Mapping[str, int | None]) -> bool:
    """Whether every queue was looked at and has nothing."""
    return all(count == 0 for count in left.values())


def until_empty(drain: Drain, within: float | None = None) -> Emptied:
    """Drain until it is empty, or until the time is up."""
    end = None if within is None else time.monotonic() + within
    settle_time = drain.factory.options.settle_time
    reports: list[Report] = []
    found_nothing: float | None = None
    """Since when looks find nothing."""
    pause = 0.5
    while True:
        left = None if end is None else end - time.monotonic()
        if left is not None and left <= 0:
            return Emptied(tuple(reports), drain.look(COUNT_TO))
        wait = pause if found_nothing is None else max(0.0, found_nothing + settle_time - time.monotonic())
        reports.append(drain.run(wait if left is None else min(wait, left)))
        if reports[-1].receipts:  # it was not empty since the last look
            found_nothing = None
        begun = time.monotonic()
        counts = drain.look(1)
        if not is_empty(counts):
            found_nothing = None
            pause = min(5.0, pause * 1.5)
        elif found_nothing is None:
            found_nothing = begun
        elif begun >= found_nothing + settle_time:
            return Emptied(tuple(reports), counts)
