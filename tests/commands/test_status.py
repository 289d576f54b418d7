"""`status`: what waits and how long it will take, as far as the claim at hand allows to see."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from spark_sb_sink.backlog_look import BacklogLook, QueueLook
from spark_sb_sink.board_records import NotedChange
from spark_sb_sink.broker.faults import BlackHole, Refuse
from spark_sb_sink.delta_state import LedgerEntry
from spark_sb_sink.entity_look import NOBODY_LEFT, Belief, Traffic, entity_looks
from spark_sb_sink.events import RouteCounts
from spark_sb_sink.failover import Health, StateChange
from spark_sb_sink.state_look import Offset, StateLook, look, parse_offset
from spark_sb_sink.status import From, drain_time
from spark_sb_sink.syphon.overflow_drain import OverflowDrain
from tests.commands.conftest import ConfFile
from tests.commands.support import Done, run, sentence, toml
from tests.commands.tables import Tables
from tests.syphon.field import Field

FileOf = Callable[..., Path]


@pytest.fixture
def file_of(field: Field, tmp_path: Path) -> FileOf:
    """A file with the options of the field; claims: those of the secondary's policy."""

    def write(claims: list[str] | None = None, **changes: Any) -> Path:
        connection = field.secondary.connection_string
        if claims is not None:
            connection = field.secondary.add_policy(f"p-{'-'.join(claims)}-{field.name}", claims)
        side = {"connection_string": connection, "ca_file": str(field.secondary.ca_file)}
        path = tmp_path / "field.toml"
        given = {"backlog_queue_count": 2, "send_timeout": "5s", **changes}
        field.options(backlog_queue_count=given["backlog_queue_count"])
        path.write_text(
            toml({"primary": field.primary.connection_string, "primary_name": field.name, **given, "secondary": side})
        )
        return path

    return write


def status(file: Path, *arguments: str) -> Done:
    return run("status", "--conf-file", file, *arguments)


def test_it_counts_what_waits_is_deferred_and_is_dead(field: Field, file_of: FileOf) -> None:
    file = file_of()
    dead, alive = field.entities(2)
    drain = field.drain(backlog_queue_count=2, failover_interval="0s", ping_interval="30m")
    with field.primary.fault(Refuse(), dead):
        field.backlog_for(dead, 7)
        field.backlog_for(alive, 3)
        field.fill([b"\x00Su\xa0\x01x"])  # no envelope: can never be moved
        drain.run(60, until=lambda: field.in_backlog()["deferred"] == 7 and field.accepted(alive) == 3)
        drain.close()
    field.secondary.create_queue(field.queue(9))
    field.backlog_for(alive, 2, tag="late-")
    told = status(file, "--json").json
    first, second = told["queues"]
    assert (first["active"], first["deferred"], first["dead_lettered"]) == (9, 7, 1)
    assert not first["deferred_at_least"]
    assert 0 < first["fill"] < 0.01
    assert datetime.now(UTC) - datetime.fromisoformat(first["oldest"]) < timedelta(minutes=5)
    assert (second["active"], second["deferred"], second["oldest"]) == (0, 0, None)
    assert [each["name"] for each in told["extra"]] == [field.queue(9)]
    assert told["active"] == 9
    assert told["notes"] == []
    assert field.in_backlog() == {"active": 2, "deferred": 7, "scheduled": 0, "locked": 0}, "nothing is taken"


def test_peeking_is_bounded_and_says_so(field: Field, file_of: FileOf) -> None:
    file = file_of(backlog_queue_count=1)
    field.backlog_for(field.entity(), 30)
    [queue] = status(file, "--json", "--peek", "10").json["queues"]
    assert (queue["active"], queue["deferred"], queue["deferred_at_least"]) == (30, 0, True)
    done = status(file, "--peek", "10")
    assert "≥0" in done.out
    assert max(map(len, done.out.splitlines())) <= 80


def test_without_manage_it_shows_what_listen_allows(field: Field, file_of: FileOf) -> None:
    file = file_of(["Listen"])
    field.backlog_for(field.entity(), 5)
    told = status(file, "--json").json
    assert [queue["active"] for queue in told["queues"]] == [5, 0]
    assert told["queues"][0]["dead_lettered"] is None
    [note] = told["notes"]
    assert "takes the Manage claim" in note
    bounded = status(file, "--json", "--peek", "2").json
    assert (bounded["queues"][0]["active_at_least"], bounded["active"]) == (True, None)
    words = " ".join(status(file).out.split())
    assert "Note: Dead letters, sizes and extra queues are not known" in words


def test_with_send_alone_it_says_that_it_sees_nothing(field: Field, file_of: FileOf) -> None:
    done = status(file_of(["Send"]), "--json")
    assert done.code == 1
    assert any("Listen claim" in note for note in done.json["notes"])


def test_missing_queues_are_told_and_a_dead_secondary_is_no_traceback(field: Field, file_of: FileOf) -> None:
    file = file_of(send_timeout="1s")
    field.secondary.delete(field.queue(1))
    assert [queue["missing"] for queue in status(file, "--json").json["queues"]] == [False, True]
    assert "missing" in status(file).out
    with field.secondary.fault(BlackHole()):
        done = status(file_of(send_timeout="1s", backlog_queue_count=10), "--json")
    assert done.code == 1
    administration, peeking = done.json["notes"]
    assert "did not answer" in administration
    assert f"{field.queue(2)} and 7 more in " in peeking, "one note, not one for each queue"


def test_no_queue_at_all_is_no_empty_backlog(field: Field, file_of: FileOf) -> None:
    done = status(file_of(primary_name="primry"), "--json")
    assert (done.code, done.json["active"], done.json["drain"]["seconds"]) == (1, None, None)
    [note] = done.json["notes"]
    assert "None of the 2 backlog queues exists under primry/x-servicebus-transfer/" in note
    assert "is primary_name right?" in note
    file = file_of(["Listen"], primary_name="primry")
    by_peek = status(file, "--json")
    assert (by_peek.code, by_peek.json["active"]) == (1, None)
    assert by_peek.json["notes"][-1] == note
    words = " ".join(status(file).out.split())
    assert "nothing waits" not in words
    assert "Time to drain: not known, as there is no backlog queue." in words


def test_what_is_missing_does_not_hide_that_nothing_was_seen() -> None:
    unseen, missing = QueueLook("p/0"), QueueLook("p/1", missing=True)
    assert BacklogLook("ns", "p/", (unseen, missing)).blind
    assert BacklogLook("ns", "p/", (missing,)).blind
    assert not BacklogLook("ns", "p/", (replace(unseen, active=0), missing)).blind


@pytest.mark.parametrize("claims", [None, ["Listen"]])
def test_a_queue_that_is_disabled_is_told(field: Field, file_of: FileOf, claims: list[str] | None) -> None:
    file = file_of(claims)
    field.backlog_for(field.entity(), 5)
    field.secondary.disable(field.queue(0))
    told = status(file, "--json").json
    second = None if claims else "Active"
    assert [queue["status"] for queue in told["queues"]] == ["Disabled", second]
    assert f"{field.queue(0)} in " in told["notes"][-1]
    assert "status Disabled. Enable" in told["notes"][-1]
    assert "0 (Disabled)" in status(file).out


def test_two_looks_tell_whether_it_drains(field: Field, file_of: FileOf) -> None:
    file = file_of()
    assert "nothing waits" in status(file).out
    field.backlog_for(field.entity(), 5)
    told = status(file, "--json", "--look-again", "100ms").json
    assert told["drain"]["seconds"] is None
    assert "not draining" in told["drain"]["told"]
    assert "--look-again" in status(file, "--json").json["drain"]["told"]


def waiting(count: int | None, at: float = 0.0) -> BacklogLook:
    return BacklogLook("ns", "p/", (QueueLook("p/0", active=count),), at=datetime.fromtimestamp(at, UTC))


def test_the_time_to_drain_is_told_only_where_it_is_known() -> None:
    assert drain_time(waiting(0), None).seconds == 0
    assert drain_time(waiting(None), None).seconds is None
    two = drain_time(waiting(600, at=10), None, waiting(1000, at=0))
    assert (two.seconds, two.rate, two.source) == (15.0, 40.0, From.LOOKS)
    noted = drain_time(waiting(600), StateLook(rate=20.0))
    assert (noted.seconds, noted.source) == (30.0, From.TRANSFERS)
    assert "is one running?" in drain_time(waiting(600), StateLook()).told


def change(entity: str, before: Health, after: Health, at: float, board: str = "board-1") -> NotedChange:
    return NotedChange(board, 1, StateChange(entity, before, after, "because", 0.0), at)


class TestDelta:
    def test_it_knows_entities_overflow_quarantine_and_the_rate(self, tables: Tables, conf_file: ConfFile) -> None:
        now = datetime.now(UTC).timestamp()
        changes = (
            change("orders", Health.HEALTHY, Health.SUSPECT, now - 90),
            change("orders", Health.SUSPECT, Health.FAILED_OVER, now - 30),
            change("orders", Health.PROBATION, Health.HEALTHY, now - 10, "board-2"),  # and the first one still diverts
            change("payments", Health.SUSPECT, Health.FAILED_OVER, now - 70),
            change("payments", Health.PROBATION, Health.HEALTHY, now - 60),
        )
        counts = (RouteCounts("orders", backlog=10),)
        tables.state.note(LedgerEntry("q", 1, now, False, 10, 1.0, counts, changes, "it failed"))
        tables.quarantine("orders", "o-1", "o-2")
        tables.overflow("orders", "v-1", "v-2", "v-3")
        tables.transfer("p/x-servicebus-transfer/0", "orders", 120)
        tables.transfer("overflow", "orders", 5000)
        told = run("status", "--conf-file", conf_file(state=tables.path), "--json").json["state"]
        assert [(each["entity"], each["state"]) for each in told["entities"]] == [
            ("orders", "failed over"),
            ("payments", "healthy"),
        ]
        assert told["last_batch"]["error"] == "it failed"
        assert (told["overflow"], told["overflow_exact"], told["quarantine"]) == (3, True, 2)
        assert told["moved"] == 120
        assert 0 < told["rate"] <= 120 / 5
        done = run("status", "--conf-file", conf_file(state=tables.path))
        assert max(map(len, done.out.splitlines())) <= 80
        assert "Overflow: 3 waiting. Quarantine: 2 waiting." in done.out
        assert "failed over" in done.out
        late = look(tables.spark, tables.path, datetime.now(UTC) + timedelta(hours=1))
        assert late.rate is None, "what was moved an hour ago is no present rate"
        assert [each.state for each in late.entities] == ["healthy", "healthy"], "who has said nothing since is gone"

    def test_overflow_that_was_drained_does_not_wait(self, tables: Tables, field: Field) -> None:
        entity = field.entity()
        options = field.options(state=tables.path)
        tables.overflow(entity, "v-1", "v-2")
        tables.overflow(entity, "v-3")
        drain = OverflowDrain(tables.spark, options, lambda: options, lambda sent: None)
        assert drain.drain()
        assert field.accepted(entity) == 3
        found = look(tables.spark, tables.path)
        assert (found.overflow, found.overflow_exact) == (0, True)
        tables.overflow(entity, "v-4", "v-5")
        found = look(tables.spark, tables.path)
        assert (found.overflow, found.overflow_exact) == (2, True)

    def test_tables_that_cannot_be_read_are_a_note(self, tables: Tables, conf_file: ConfFile) -> None:
        told = run("status", "--conf-file", conf_file(state="nosuchscheme://x/y"), "--json").json
        assert told["state"] is None
        assert "overflow and quarantine are not known" in " ".join(told["notes"])
        assert run("status", "--conf-file", conf_file(state=tables.path), "--no-state", "--json").json["state"] is None


T0 = datetime(2026, 1, 1, tzinfo=UTC)


def at(minute: float) -> datetime:
    return T0 + timedelta(minutes=minute)


def belief(board: str, state: Health, minute: float) -> Belief:
    return Belief("orders", board, state.value, at(minute), f"{board} says so", at(minute + 0.5))


OUT_ON_A = belief("a", Health.FAILED_OVER, 1)
BACK_ON_B = belief("b", Health.HEALTHY, 2)


@pytest.mark.parametrize(
    ("beliefs", "traffic", "minute", "expected"),
    [
        ([OUT_ON_A], Traffic(), 600, ("failed over", "a says so")),
        ([OUT_ON_A, BACK_ON_B], Traffic(diverted_at=at(3)), 4, ("failed over", "a says so")),
        ([OUT_ON_A, BACK_ON_B], Traffic(diverted_at=at(2.5)), 4, ("failed over", "a says so")),
        ([OUT_ON_A, BACK_ON_B], Traffic(diverted_at=at(2.5)), 8, ("healthy", "b says so")),
        ([OUT_ON_A, BACK_ON_B], Traffic(diverted_at=at(1.5)), 3, ("healthy", "b says so")),
        ([OUT_ON_A, belief("b", Health.HEALTHY, 0)], Traffic(diverted_at=at(1.5)), 9, ("failed over", "a says so")),
        ([OUT_ON_A, belief("b", Health.SUSPECT, 2)], Traffic(), 3, ("failed over", "a says so")),
        # Nobody else ever noted a change, as it was never out for them: what they send tells.
        ([OUT_ON_A], Traffic(at(5), at(5), at(4)), 6, ("failed over", "a says so")),
        ([OUT_ON_A], Traffic(at(5), at(5), at(4)), 11, ("healthy", NOBODY_LEFT)),
        ([OUT_ON_A], Traffic(at(5), at(6), at(5)), 7, ("healthy", NOBODY_LEFT)),
        # A micro-batch that had begun before says nothing: the rows may have gone before the fault.
        ([OUT_ON_A], Traffic(at(1.5), at(1.5), at(0)), 60, ("failed over", "a says so")),
    ],
)
def test_an_entity_is_as_the_worst_executor_has_it_until_that_one_is_gone(
    beliefs: list[Belief], traffic: Traffic, minute: float, expected: tuple[str, str]
) -> None:
    [found] = entity_looks(beliefs, {"orders": traffic}, at(minute))
    assert (found.state, found.reason) == expected


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        ('{"sourceVersion":1,"reservoirVersion":5,"index":-1,"isStartingVersion":false}', Offset(5, whole=True)),
        ('{"sourceVersion":1,"reservoirVersion":5,"index":3,"isStartingVersion":false}', Offset(5, whole=False)),
        ('{"sourceVersion":1,"reservoirVersion":0,"index":3,"isStartingVersion":true}', Offset(0, whole=False)),
        ("-", None),
    ],
)
def test_how_far_the_overflow_is_drained_is_read_from_the_offset_log(last: str, expected: Offset | None) -> None:
    assert parse_offset(f'v1\n{{"batchWatermarkMs":0}}\n{last}\n') == expected


def test_what_is_wrong_is_a_sentence(tmp_path: Path, conf_file: ConfFile) -> None:
    assert "could not be read" in sentence(run("status", "--conf-file", tmp_path / "nowhere.toml"))
    assert "--look-again got 'soon'" in sentence(run("status", "--conf-file", conf_file(), "--look-again", "soon"))
    assert run("status").code == 2


def test_help_has_an_example() -> None:
    assert "Example: spark-sb-sink status" in run("status", "--help").out
