"""`replay`: quarantined messages come home under their old ids, once; what cannot, stays and says why."""

from collections.abc import Callable
from typing import Any

import pytest

from spark_sb_sink import replay as replaying
from spark_sb_sink.amqp import decode_message
from spark_sb_sink.broker.faults import Reject
from spark_sb_sink.commands.replay import _show
from spark_sb_sink.errors import ReplayRefusedError
from spark_sb_sink.lanes import Table
from spark_sb_sink.options import Options
from spark_sb_sink.quarantine import Filter, Quarantine
from spark_sb_sink.syphon.lease import Lease
from spark_sb_sink.testing import ServiceBusPair
from tests.commands.conftest import ConfFile
from tests.commands.support import run, sentence
from tests.commands.tables import Tables, message, never_a_message
from tests.syphon.field import Field


def ids(count: int, tag: str = "m") -> list[str]:
    return [f"{tag}-{number}" for number in range(count)]


def test_what_was_mended_comes_home_once_and_as_it_was(
    tables: Tables, servicebus: ServiceBusPair, conf_file: ConfFile, name: str
) -> None:
    rows = [message(name, each, "no such entity") for each in ids(30)]
    tables.unsent(Table.QUARANTINE, [*rows, message("other", "o-1"), never_a_message(name)])
    servicebus.primary.create_queue(name)  # the cause is mended
    file = conf_file(state=tables.path)
    planned = run("replay", "--conf-file", file, "--entity", name, "--dry-run", "--json").json
    assert (planned["matched"], planned["entities"], planned["sent"]) == (31, {name: 30}, 0)
    assert servicebus.arrived(name) == {}
    done = run("replay", "--conf-file", file, "--entity", name, "--json")
    assert done.code == 1, "one row stays"
    assert (done.json["sent"], done.json["primary"], done.json["kept"]) == (30, 30, 1)
    assert "never became a message" in done.json["kept_rows"][0]["why"]
    assert servicebus.arrived(name) == dict.fromkeys(ids(30), 1)
    again = run("replay", "--conf-file", file, "--entity", name)
    assert "0 of 1 sent" in again.out
    assert servicebus.arrived(name) == dict.fromkeys(ids(30), 1), "a second replay sends nothing twice"
    left = run("quarantine", "list", "--conf-file", file, "--json").json
    assert {row["message_id"] for row in left["rows"]} == {"o-1", None}
    assert tables.state.read("quarantine").count() == 32, "the quarantine itself is never changed"


def test_the_message_is_the_one_that_was_put_aside(
    tables: Tables, field: Field, name: str, options: Callable[..., Options]
) -> None:
    tables.quarantine(name, "m-1", body=b"\x00\xff")
    field.primary.create_queue(name)
    outcome = replaying.replay(tables.spark, options(state=tables.path), Filter(message_ids=("m-1",)))
    assert outcome.complete
    [arrived] = field.arrived(name)
    kept = tables.state.read("quarantine").first()
    before, after = decode_message(bytes(kept["message"])), decode_message(arrived)
    assert (after.data, after.message_id, after.application_properties) == (
        before.data,
        "m-1",
        before.application_properties,
    )


@pytest.fixture
def options(servicebus: ServiceBusPair) -> Callable[..., Options]:
    return lambda **changes: Options.from_dict(servicebus.options(**changes))


def test_a_crash_between_send_and_note_loses_nothing_and_repeats_only_ids(
    tables: Tables, servicebus: ServiceBusPair, name: str, options: Callable[..., Options], monkeypatch: Any
) -> None:
    servicebus.primary.create_queue(name)
    tables.quarantine(name, *ids(8))
    monkeypatch.setattr(replaying, "AT_ONCE", 3)
    given, everything = options(state=tables.path), Filter(entities=(name,))

    class Died(BaseException):
        """As if by kill -9: after the second part was sent, before it was noted."""

    noted = Quarantine(tables.spark, tables.path).state.note_replays
    calls: list[int] = []

    def note(self: Any, rows: Any) -> None:
        calls.append(len(rows))
        if len(calls) == 2:
            raise Died
        noted(rows)

    with monkeypatch.context() as patch:
        patch.setattr("spark_sb_sink.delta_state.DeltaState.note_replays", note)
        with pytest.raises(Died):
            replaying.replay(tables.spark, given, everything)
    assert Quarantine(tables.spark, tables.path).count(everything) == 5
    outcome = replaying.replay(tables.spark, given, everything)
    assert outcome.complete
    assert outcome.sent == 5
    arrived = servicebus.arrived(name)
    assert set(arrived) == set(ids(8)), "nothing is lost"
    assert sorted(arrived.values()) == [1] * 5 + [2] * 3, "what had been sent and not noted came again, with its id"


def test_identical_messages_of_a_batch_are_told_apart_by_their_number(
    tables: Tables,
    servicebus: ServiceBusPair,
    name: str,
    options: Callable[..., Options],
    monkeypatch: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    servicebus.primary.create_queue(name)
    tables.quarantine(name, "same", "same", "same")
    monkeypatch.setattr(replaying, "AT_ONCE", 1)
    given, everything = options(state=tables.path), Filter(entities=(name,))
    parts: list[int] = []
    outcome = replaying.replay(tables.spark, given, everything, stop=lambda: len(parts) == 2, noted=parts.append)
    assert (outcome.sent, outcome.stopped, outcome.complete) == (2, True, False)
    _show(outcome, dry_run=False)
    assert "Stopped by a signal: what was sent is noted" in capsys.readouterr().out
    assert replaying.replay(tables.spark, given, everything).sent == 1
    assert servicebus.arrived(name) == {"same": 3}


def test_what_is_refused_again_stays_and_what_is_diverted_is_sent(
    tables: Tables, servicebus: ServiceBusPair, name: str, options: Callable[..., Options]
) -> None:
    bad, out, foreign = f"{name}-bad", f"{name}-out", f"{name}-foreign"
    for entity in (bad, out):
        servicebus.primary.create_queue(entity)
    tables.unsent(Table.QUARANTINE, [message(e, i) for e in (bad, out, foreign) for i in ids(2, e)])
    servicebus.primary.hang(Reject("amqp:not-allowed", "not like this"), bad)
    with servicebus.outage(out):
        outcome = replaying.replay(tables.spark, options(state=tables.path), Filter(where=f"entity like '{name}%'"))
    assert (outcome.matched, outcome.primary, outcome.backlog) == (6, 0, 2)
    assert servicebus.backlog() == dict.fromkeys(ids(2, out), 1)
    why = {each.row.message_id: each.why for each in outcome.kept}
    assert set(why) == {*ids(2, bad), *ids(2, foreign)}
    assert "not like this" in why[f"{bad}-0"]
    assert "no such entity" in why[f"{foreign}-0"]
    assert Quarantine(tables.spark, tables.path).count() == 4


def test_a_refused_claim_ends_it_for_that_entity_only(
    tables: Tables, servicebus: ServiceBusPair, name: str, options: Callable[..., Options]
) -> None:
    servicebus.primary.create_queue(name)
    tables.quarantine(name, *ids(2))
    weak = servicebus.primary.add_policy(f"listen-{name}", ["Listen"])
    given = options(state=tables.path, primary=weak)
    outcome = replaying.replay(tables.spark, given, Filter(entities=(name,)))
    assert outcome.sent == 0
    assert "Send claim" in str(outcome.errors[0])
    assert Quarantine(tables.spark, tables.path).count() == 2


def test_one_replay_at_a_time(tables: Tables, options: Callable[..., Options]) -> None:
    tables.quarantine("orders", "o-1")
    assert Lease(tables.spark, tables.state, "somebody else", name="replay").take()
    with pytest.raises(ReplayRefusedError, match=r"is under way.* Wait that long and replay again"):
        replaying.replay(tables.spark, options(state=tables.path), Filter(entities=("orders",)))


def test_what_is_wrong_is_a_sentence(tables: Tables, conf_file: ConfFile) -> None:
    file = conf_file(state=tables.path)
    assert "takes a filter" in sentence(run("replay", "--conf-file", file))
    assert "and not both" in sentence(run("replay", "--conf-file", file, "--all", "--entity", "orders"))
    assert "takes the option state" in sentence(run("replay", "--conf-file", conf_file(), "--all"))
    done = run("replay", "--conf-file", conf_file(state=tables.path), "--all")
    assert (done.code, done.out) == (0, "Nothing of the kind waits in quarantine.\n")


def test_help_has_an_example() -> None:
    assert "Example: spark-sb-sink replay" in run("replay", "--help").out
