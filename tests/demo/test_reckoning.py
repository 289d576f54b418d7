"""The reckoning, from journals made by hand: messages lost, doubled, diverted, or where they do not belong."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_sb_sink.demo.ending import reckoning_lines
from spark_sb_sink.demo.reckoning import Acknowledged, Books, Outage, Tally, reckon
from spark_sb_sink.events import RouteCounts

SENT = {"o-1": "orders", "o-2": "orders", "e-1": "events"}
DIRECT: dict[str, dict[str, int]] = {"accepted": 1}  # type: ignore[dict-item]
ALL_DIRECT: dict[str, Tally] = {"orders": {"o-1": DIRECT, "o-2": DIRECT}, "events": {"e-1": DIRECT}}  # type: ignore[dict-item]


def books(entities: dict[str, Any] | None = None, backlog: dict[str, Any] | None = None, **changed: Any) -> Books:
    found = ALL_DIRECT if entities is None else entities
    stored = {name: sum(what.get("accepted", 0) for what in tally.values()) for name, tally in found.items()}
    return replace(Books(found, backlog or {}, stored), **changed)


def acknowledged(**routes: int) -> Acknowledged:
    return Acknowledged(rows=sum(routes.values()), **routes)


def test_all_direct_is_nothing_lost() -> None:
    found = reckon(SENT, acknowledged(primary=3), books())
    assert (found.sent, found.primary, found.delivered, found.lost, found.duplicates) == (3, 3, 3, 0, 0)
    assert (found.disagreements, found.exit_code) == ((), 0)


def test_what_the_backlog_took_and_the_syphon_brought_home_is_not_lost() -> None:
    backlog = {"o-1": {"accepted": 1, "delivered": 1, "completed": 1}}
    found = reckon(SENT, acknowledged(primary=2, backlog=1), books(backlog=backlog))
    assert (found.backlog, found.drained, found.lost, found.exit_code) == (1, 1, 0, 0)


def test_what_stayed_in_the_backlog_is_lost() -> None:
    entities = {"orders": {"o-2": {"accepted": 1}}, "events": {"e-1": {"accepted": 1}}}
    found = reckon(SENT, acknowledged(primary=2, backlog=1), books(entities, {"o-1": {"accepted": 1}}))
    assert (found.delivered, found.drained, found.lost) == (2, 0, 1)
    assert found.exit_code == 1
    assert any("1 of 3 messages were lost" in line for line in reckoning_lines(found, 60))


def test_what_was_acknowledged_and_is_nowhere_is_lost() -> None:
    entities = {"orders": {"o-2": {"accepted": 1}}, "events": {"e-1": {"accepted": 1}}}
    found = reckon(SENT, acknowledged(primary=3), books(entities))
    assert (found.lost, found.exit_code) == (1, 1)
    assert "the sink says 3 directly" in found.disagreements[0]


def test_a_message_that_no_subscription_took_is_lost() -> None:
    entities = {**ALL_DIRECT, "events": {"e-1": {"accepted": 1, "unrouted": 1}}}
    assert reckon(SENT, acknowledged(primary=3), books(entities, stored={"orders": 2})).lost == 1


def test_a_message_at_the_wrong_entity_is_lost_and_told_of() -> None:
    entities = {"orders": {"o-1": {"accepted": 1}, "e-1": {"accepted": 1}, "o-2": {"accepted": 1}}, "events": {}}
    found = reckon(SENT, acknowledged(primary=3), books(entities))
    assert found.lost == 1
    assert "1 messages are at an entity that they were not sent to." in found.disagreements


def test_a_message_stored_twice_is_a_duplicate() -> None:
    entities = {**ALL_DIRECT, "orders": {"o-1": {"accepted": 3}, "o-2": {"accepted": 1}}}
    found = reckon(SENT, acknowledged(primary=3), books(entities))
    assert (found.duplicates, found.lost, found.exit_code) == (2, 0, 0)


def test_a_repeated_send_that_duplicate_detection_kept_out_is_none() -> None:
    entities = {**ALL_DIRECT, "orders": {"o-1": {"accepted": 1, "duplicate": 2}, "o-2": {"accepted": 1}}}
    found = reckon(SENT, acknowledged(primary=3), books(entities))
    assert (found.duplicates, found.dropped_duplicates, found.exit_code) == (0, 2, 0)


def test_pings_are_no_messages() -> None:
    entities = {**ALL_DIRECT, "events": {"e-1": {"accepted": 1}, "some-ping": {"ping": 1}}}
    assert reckon(SENT, acknowledged(primary=3), books(entities)).disagreements == ()


@pytest.mark.parametrize(
    ("routes", "given", "text"),
    [
        ({"primary": 2}, {}, "the source gave 3 rows, the sink acknowledged 2, and its four routes have 2."),
        ({"primary": 2, "backlog": 1}, {}, "the sink says 1 by backlog, the journal has 0 there."),
        ({"primary": 3}, {"backlog": {"o-1": {"accepted": 1}}}, "the sink says 0 by backlog, the journal has 1 there."),
        ({"primary": 3}, {"stored": {"orders": 1}}, "the journal has 3 messages accepted, the entities hold 1."),
    ],
)
def test_books_that_do_not_balance_are_told_and_no_success(
    routes: dict[str, int], given: dict[str, Any], text: str
) -> None:
    found = reckon(SENT, acknowledged(**routes), books(**given))
    assert text in found.disagreements
    assert found.exit_code == 1
    assert f"The books do not balance: {text}" in reckoning_lines(found, 60)


def test_acknowledgements_add_up_over_micro_batches() -> None:
    found = Acknowledged().plus(3, [RouteCounts("a", primary=1, backlog=1), RouteCounts("b", overflow=1)])
    assert found.plus(1, [RouteCounts("a", quarantine=1)]) == Acknowledged(4, 1, 1, 1, 1)


def test_the_longest_outage_is_the_one_that_counts_and_json_has_the_keys_in_order() -> None:
    outages = [Outage("orders", 3.123, 1.0), Outage("the whole primary", 2.0, 4.567)]
    told = reckon(SENT, acknowledged(primary=3), books(operations_primary=5, pings=2), outages=outages).as_json()
    assert list(told)[:11] == [
        "sent",
        "primary",
        "backlog",
        "overflow",
        "quarantine",
        "drained",
        "delivered",
        "lost",
        "duplicates",
        "failover_s",
        "failback_s",
    ]
    assert (told["failover_s"], told["failback_s"], told["operations"], told["pings"]) == (3.12, 4.57, 5, 2)


def test_the_reckoning_fits_twenty_lines_and_eighty_columns() -> None:
    outages = [Outage("orders", 13.123, 11.0), Outage("the whole primary", 12.0, 14.567)]
    many = {f"o-{number}": "orders" for number in range(123_456)}
    entities = {"orders": {name: {"accepted": 1, "duplicate": 1} for name in many}, "events": {}}
    found = reckon(
        many,
        acknowledged(primary=123_456),
        books(entities, operations_primary=250_000, operations_secondary=250_000, pings=1_000),
        outages=outages,
        drain_s=12.34,
    )
    lines = reckoning_lines(found, 99.0)
    assert len(lines) <= 20
    assert max(map(len, lines)) <= 79
    assert lines[-1].startswith("Nothing was lost")


# A process of its own: at its end the demo ends all that runs below it. The story is replaced, no Spark is started.
PROGRAM = """
import sys
from threading import Thread
from spark_sb_sink.demo import run as demo
from tests.demo import test_reckoning as made
given = []
class Played(Thread):
    error = reckoning = None
    def __init__(self, folder, state, scene):
        super().__init__(daemon=True)
    def interrupt(self):
        pass
    def run(self):
        self.reckoning = given[0]
demo.Performance = Played
for found in made.endings():
    given[:] = [found]
    print("code", demo.run(as_json=True, keep=None), flush=True)
"""


def endings() -> list[Any]:
    """All is well; one is lost; none is lost, and the books do not balance."""
    good = reckon(SENT, acknowledged(primary=3), books())
    return [good, replace(good, lost=1), replace(good, disagreements=("the books are wrong.",))]


def test_the_demo_ends_with_1_and_says_so_in_its_last_line_if_anything_was_lost_or_does_not_balance() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[1::2] == ["code 0", "code 1", "code 1"]
    good, lost, wrong = map(json.loads, lines[::2])
    assert [told["lost"] for told in (good, lost, wrong)] == [0, 1, 0]
    assert wrong["disagreements"] == ["the books are wrong."]
    assert "1 of 3 messages were lost" in done.stderr
    assert "The books do not balance: the books are wrong." in done.stderr
