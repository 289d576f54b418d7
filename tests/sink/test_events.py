"""Events: what is logged at which level, and that a listener does no harm."""

import dataclasses
import logging
from typing import Any

import pytest

from spark_sb_sink.events import (
    BatchFailed,
    BatchSent,
    BatchSkipped,
    EntityChanged,
    Event,
    Paired,
    RouteCounts,
    Warned,
    log,
    summary,
    tell,
)
from spark_sb_sink.failover import Health

WELL = BatchSent("q", 3, 7, 0.25, (RouteCounts("orders", primary=7),))
DIVERTED = BatchSent("q", 4, 9, 0.25, (RouteCounts("orders", primary=2, backlog=5), RouteCounts("bills", overflow=2)))


def changed(after: Health) -> EntityChanged:
    return EntityChanged("orders", Health.HEALTHY, after, "no answer", 0.0, "board")


@pytest.mark.parametrize(
    ("event", "level", "told"),
    [
        (Paired("north", 10, 2), logging.INFO, "paired with north: 10 backlog queues, 2 of them new"),
        (changed(Health.SUSPECT), logging.WARNING, "orders: healthy → suspect (no answer)"),
        (changed(Health.FAILED_OVER), logging.WARNING, "orders: healthy → failed over (no answer)"),
        (changed(Health.PROBATION), logging.INFO, "orders: healthy → probation (no answer)"),
        (changed(Health.HEALTHY), logging.INFO, "orders: healthy → healthy (no answer)"),
        (WELL, logging.DEBUG, "batch 3 of q: 7 rows in 0.25 s: 7 primary"),
        (DIVERTED, logging.WARNING, "batch 4 of q: 9 rows in 0.25 s: 2 primary, 5 backlog, 2 overflow"),
        (BatchSkipped("q", 5), logging.INFO, "batch 5 of q: finished before, as the ledger shows; skipped"),
        (BatchFailed("q", 6, "no claim"), logging.ERROR, "batch 6 of q failed: no claim"),
        (Warned("look here"), logging.WARNING, "look here"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, int | str) else str(value)[:20],
)
def test_an_event_is_logged_at_the_level_of_its_news(
    event: Event, level: int, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "spark_sb_sink"):
        log(event)
    assert [(record.name, record.levelno, record.getMessage()) for record in caplog.records] == [
        ("spark_sb_sink", level, told)
    ]


def test_a_batch_is_all_well_only_where_all_its_rows_went_to_the_primary() -> None:
    assert WELL.all_primary
    assert BatchSent("q", 0, 0, 0.0, ()).all_primary
    assert not DIVERTED.all_primary


@pytest.mark.parametrize("route", ["primary", "backlog", "overflow", "quarantine", "abandoned"])
def test_every_route_counts_in_the_total_and_in_the_summary(route: str) -> None:
    counts = RouteCounts("orders", **{route: 2})
    assert counts.total == 2
    assert summary([counts, counts]) == f"4 {route}"


def test_a_summary_of_no_rows_says_so() -> None:
    assert summary([]) == "nothing"


def test_an_event_cannot_be_altered() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        WELL.rows = 8  # type: ignore[misc]


def test_a_listener_that_raises_keeps_the_event_from_nobody(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[Any] = []

    def deaf(event: Event) -> None:
        raise RuntimeError("no ear")

    tell([heard.append, deaf, heard.append], WELL)
    assert heard == [WELL, WELL]
    assert [record.getMessage() for record in caplog.records] == ["a listener failed on BatchSent"]
