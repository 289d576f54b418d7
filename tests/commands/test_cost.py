"""`cost`: the arithmetic, what the broker counts for the same messages, and the command."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_sb_sink import cost
from spark_sb_sink.amqp import encode_message
from spark_sb_sink.broker.faults import Refuse
from spark_sb_sink.broker.journal import billed
from spark_sb_sink.syphon import deferred
from tests.commands.support import run, sentence, toml
from tests.conftest import await_that
from tests.syphon.field import Field

SETUPS = st.builds(
    cost.Setup,
    queues=st.integers(1, 10_000),
    long_poll=st.floats(1, 3600),
    syphons=st.integers(0, 20),
    failover_interval=st.floats(0, 3600),
    ping_interval=st.floats(1, 1800),
    ping_messages=st.booleans(),
    executors=st.integers(1, 100),
)
OUTAGES = st.builds(
    cost.Outage,
    seconds=st.floats(0, 30 * 86400),
    rate=st.floats(0, 50_000),
    message_bytes=st.integers(0, 100 * 2**20),
    entities=st.integers(1, 1000),
    deferred=st.floats(0, 1),
)


def test_ten_idle_queues_cost_28800_receives_in_30_days() -> None:
    assert cost.idle(cost.Setup()).receives_30d == 28_800


@given(SETUPS)
def test_idle_cost_grows_with_queues_and_syphons_and_shrinks_with_the_long_poll(setup: cost.Setup) -> None:
    idle = cost.idle(setup)
    per_queue = cost.idle(cost.Setup(queues=1, long_poll=setup.long_poll, syphons=1))
    assert idle.receives_30d == per_queue.receives_30d * setup.queues * setup.syphons
    assert idle.operations_30d == idle.receives_30d + idle.peeks_30d
    # A poll that is begun is billed: never less than the time divided by the poll, and less than one more.
    assert 0 <= per_queue.receives_30d - cost.DAYS_30 / setup.long_poll < 1


@given(SETUPS, OUTAGES)
def test_an_outage_costs_the_four_charges_of_every_message_and_nothing_is_counted_twice(
    setup: cost.Setup, outage: cost.Outage
) -> None:
    charges = cost.outage(setup, outage)
    assert charges.messages == math.ceil(outage.rate * outage.seconds)
    assert charges.diverted == (charges.messages if outage.seconds >= setup.failover_interval else 0)
    assert charges.primary_sends == charges.primary_receives == charges.messages * cost.steps(outage.message_bytes)
    # The envelope can take a message over one border of 64 KB, never over two.
    as_at_home = charges.diverted * cost.steps(outage.message_bytes)
    assert charges.backlog_sends == charges.backlog_receives
    assert charges.backlog_sends - as_at_home in (0, charges.diverted)
    assert charges.operations == charges.extra + charges.without_outage
    assert charges.deferred_receives <= charges.backlog_receives
    assert charges.extra >= 2 * charges.diverted


@given(SETUPS, OUTAGES)
def test_what_is_over_before_the_failover_interval_adds_no_operation(setup: cost.Setup, outage: cost.Outage) -> None:
    longer = replace(setup, failover_interval=outage.seconds + 1)
    charges = cost.outage(longer, outage)
    assert (charges.extra, charges.diverted) == (0, 0)
    assert charges.operations == charges.without_outage


def test_syphons_share_the_drain_and_without_one_there_is_none() -> None:
    outage = cost.Outage(seconds=3600, rate=100)
    assert cost.drain_seconds(cost.Setup(), outage, 500) == 720
    assert cost.drain_seconds(cost.Setup(syphons=3), outage, 500) == 240
    assert cost.drain_seconds(cost.Setup(syphons=0), outage, 500) is None
    assert cost.drain_seconds(cost.Setup(), outage, None) is None
    assert cost.drain_seconds(cost.Setup(failover_interval=3601), outage, 500) == 0


@given(st.integers(0, 2**40))
def test_a_message_is_charged_as_the_broker_bills_it(size: int) -> None:
    assert cost.steps(size) == billed(size)


@given(OUTAGES)
def test_pings_by_link_cost_nothing_and_a_short_outage_has_none(outage: cost.Outage) -> None:
    assert cost.pings(cost.Setup(ping_messages=False), outage) == 0
    assert cost.pings(cost.Setup(failover_interval=outage.seconds + 1), outage) == 0


HOUR = 3600


@pytest.mark.parametrize(
    ("given", "setup", "expected"),
    [
        ((60, 1), {}, 1 * 1 * 2),  # the fault that diverts, and the ping that succeeds
        ((HOUR, 1), {}, 60 * 1 * 2),  # 59 minutes after the failover interval
        ((HOUR, 3), {"executors": 2}, 60 * 3 * (2 + 1)),
        ((HOUR, 3), {"executors": 2, "syphons": 0}, 60 * 3 * 2),
        ((HOUR, 3), {"executors": 2, "syphons": 4, "ping_interval": 300.0}, 12 * 3 * (2 + 4)),
        ((HOUR, 2), {"executors": 5, "ping_interval": 1.0, "failover_interval": 0.0}, 3601 * 2 * (5 + 1)),
        ((59, 3), {"executors": 2}, 0),
    ],
)
def test_pings_are_entities_times_those_that_ping_times_intervals(
    given: tuple[float, int], setup: dict[str, float], expected: int
) -> None:
    seconds, entities = given
    charges = cost.outage(cost.Setup(**setup), cost.Outage(seconds, rate=0, entities=entities))  # type: ignore[arg-type]
    assert charges.pings == charges.extra == expected


@pytest.mark.parametrize(
    ("setup", "receives", "peeks"),
    [
        (cost.Setup(), 10 * 2880, 10 * 720),
        (cost.Setup(queues=3, syphons=2), 3 * 2 * 2880, 3 * 2 * 720),
        (cost.Setup(queues=3, long_poll=420), 3 * 6172, 3 * 720),  # 6171.4 polls: the last one is begun, and billed
        (cost.Setup(queues=7, long_poll=1800, syphons=5), 7 * 5 * 1440, 7 * 5 * 720),
        (cost.Setup(syphons=0), 0, 0),
    ],
)
def test_what_is_idle_is_billed_for_each_queue_and_each_syphon(setup: cost.Setup, receives: int, peeks: int) -> None:
    idle = cost.idle(setup)
    assert (idle.receives_30d, idle.peeks_30d, idle.operations_30d) == (receives, peeks, receives + peeks)


def test_each_executor_pings_each_entity_and_the_broker_bills_the_ping_that_is_taken(
    field: Field, tmp_path: Path
) -> None:
    names = field.entities(3)
    sinks = []
    for number in range(2):
        field.folder = tmp_path / f"executor-{number}"  # each has a board of its own
        field.folder.mkdir()
        sinks.append(field.factory(failover_interval="0s", ping_interval="1s", backlog_queue_count=1))
    faults = [field.primary.hang(Refuse(), name) for name in names]
    for number, sink in enumerate(sinks):
        sink.send({name: [encode_message(b"x", message_id=f"{name}-{number}")] for name in names})
    for fault in faults:
        field.primary.undo(fault)
    billed_pings = cost.pings(
        cost.Setup(failover_interval=0, ping_interval=1, executors=len(sinks), syphons=0),
        cost.Outage(seconds=0, rate=1, entities=len(names)),  # those of the outage found nobody, and are not billed
    )
    await_that(lambda: sum(field.primary.counters(name)["pings"] for name in names) >= billed_pings)
    for sink in sinks:
        sink.close()
    assert [field.primary.counters(name)["pings"] for name in names] == [len(sinks)] * len(names)


def test_what_is_known_elsewhere_is_the_same_here() -> None:
    assert deferred.LOOK_EVERY == cost.LOOK_EVERY
    assert deferred.PAGE == cost.PAGE


@pytest.mark.parametrize("size", [200, 70_000])
def test_the_broker_counts_what_the_formula_gives(field: Field, size: int) -> None:
    count = 60
    entity = field.entity()
    messages = [encode_message(b"x" * size, message_id=f"m{number}") for number in range(count)]
    factory = field.factory(failover_interval="0s", ping_interval="1s", backlog_queue_count=1)
    with field.primary.fault(Refuse(), entity):
        report = factory.send({entity: messages})[entity]
    assert report.backlog == count
    drain = field.drain(backlog_queue_count=1)
    field.until_empty(drain)
    assert len(field.arrived(entity)) == count
    charges = cost.outage(
        cost.Setup(queues=1, failover_interval=0, ping_interval=1),
        cost.Outage(seconds=count, rate=1, message_bytes=len(messages[0])),
    )
    away, home = field.secondary.counters(field.queue(0)), field.primary.counters(entity)
    assert (away["sends"], away["receives"]) == (charges.backlog_sends, charges.backlog_receives)
    assert (home["sends"], home["receives"]) == (charges.primary_sends, charges.primary_receives)
    assert home["pings"] <= charges.pings


def test_the_broker_counts_deferred_messages_as_the_formula_does(field: Field) -> None:
    dead, alive = field.entities(2)
    size = len(encode_message(b"x" * 20, message_id=f"{dead}-0"))
    drain = field.drain(failover_interval="0s", ping_interval="1s")
    hung = field.primary.hang(Refuse(), dead)
    field.backlog_for(dead, 100)
    field.backlog_for(alive, 100)
    drain.run(60, until=lambda: field.accepted(alive) == 100 and field.in_backlog()["deferred"] == 100)
    field.primary.undo(hung)
    field.until_empty(drain)
    counted = field.secondary.counters(field.queue(0))
    put_aside = counted["events"]["deferred"]
    charges = cost.outage(cost.Setup(queues=1), cost.Outage(200, 1, size, 2, deferred=put_aside / 200))
    assert counted["receives"] == charges.backlog_receives + charges.deferred_receives
    # Requests come in pages, and the looks between them depend on the moment (11 where 4 are told): of that order, and
    # no fewer than are told.
    assert charges.deferred_requests <= counted["management"] <= 5 * charges.deferred_requests


class TestCommand:
    def test_json_has_28800_for_the_defaults(self) -> None:
        told = run("cost", "--json").json
        assert told["idle_receives_30d"] == 28_800
        assert "money" not in told

    def test_queues_long_poll_and_syphons_vary_it(self) -> None:
        told = run("cost", "--json", "--queues", "4", "--long-poll", "5m", "--syphons", "3").json
        assert told["idle_receives_30d"] == 4 * 8640 * 3

    def test_entities_executors_and_syphons_ping(self) -> None:
        arguments = ["--outage", "1h", "--entities", "3", "--executors", "2", "--syphons", "2"]
        assert run("cost", "--json", *arguments).json["outage"]["pings"] == 60 * 3 * (2 + 2)

    def test_money_is_told_at_the_prices_given(self) -> None:
        arguments = ["--outage", "1h", "--rate", "100", "--message-size", "100KB", "--price-per-million", "0.8"]
        told = run("cost", "--json", *arguments, "--base-price", "10").json
        outage = told["outage"]
        assert outage["messages"] == 360_000
        assert outage["backlog_sends"] == outage["primary_receives"] == 720_000
        assert told["money"]["outage"] == pytest.approx(outage["operations"] * 0.8 / 1e6)
        assert told["money"]["idle_30d"] == pytest.approx(10 + told["idle_operations_30d"] * 0.8 / 1e6)

    def test_a_file_gives_the_setup_and_flags_go_before_it(self, tmp_path: Path) -> None:
        file = tmp_path / "pair.toml"
        side = "Endpoint=sb://{}.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey=azE="
        options = {"primary": side.format("a"), "secondary": side.format("b"), "ping": "link", "max_rate": 50}
        file.write_text(toml({**options, "backlog_queue_count": 2, "long_poll": "30m"}))
        told = run("cost", "--conf-file", file, "--json", "--queues", "5").json
        assert told["idle_receives_30d"] == 5 * 1440
        assert told["outage"]["pings"] == 0
        assert told["outage"]["drain_seconds"] == told["outage"]["messages"] / 50
        two = run("cost", "--conf-file", file, "--json", "--syphons", "2").json
        assert two["outage"]["drain_seconds"] == told["outage"]["drain_seconds"] / 2
        assert "for each of 2 syphons" in run("cost", "--conf-file", file, "--syphons", "2").out
        assert "Without a syphon nothing is drained." in run("cost", "--conf-file", file, "--syphons", "0").out

    def test_a_short_outage_diverts_nothing_and_says_so(self) -> None:
        done = run("cost", "--outage", "30s")
        assert "Shorter than failover_interval (1m): nothing is diverted" in " ".join(done.out.split())
        assert max(map(len, done.out.splitlines())) <= 80
        outage = run("cost", "--outage", "30s", "--json").json["outage"]
        assert (outage["messages"], outage["backlog_sends"], outage["extra"]) == (3000, 0, 0)
        assert run("cost", "--outage", "1m", "--json").json["outage"]["backlog_sends"] == 6000

    @pytest.mark.parametrize("columns", [80, 120])
    def test_a_person_sees_tables_that_fit(self, columns: int) -> None:
        done = run("cost", "--price-per-million", "0.8", "--deferred", "0.1", columns=columns)
        assert done.code == 0
        assert max(map(len, done.out.splitlines())) <= columns
        assert "28,800" in done.out
        assert "sent to the backlog" in done.out
        assert "\x1b" not in done.out

    def test_what_is_wrong_is_one_sentence(self, tmp_path: Path) -> None:
        assert "--outage got 'soon'" in sentence(run("cost", "--outage", "soon"))
        assert "--long-poll got '-1'" in sentence(run("cost", "--long-poll", "-1"))
        for text in ("0s", "5h"):
            told = sentence(run("cost", "--long-poll", text))
            assert f"--long-poll got '{text}', but takes a duration from 1s to 60m" in told
        for count in ("0", "20000"):
            told = sentence(run("cost", "--queues", count))
            assert f"--queues got {count}, but takes a whole number from 1 to 10000" in told
        for flag in ("--rate", "--price-per-million"):
            for text in ("inf", "nan"):
                assert flag in sentence(run("cost", flag, text))
        assert "more messages than can be counted" in sentence(run("cost", "--rate", "1e308", "--outage", "9d"))
        assert "takes --price-per-million with it" in sentence(run("cost", "--base-price", "10"))
        assert "--message-size got 'big'" in sentence(run("cost", "--message-size", "big"))
        assert "nowhere.toml could not be read" in sentence(run("cost", "--conf-file", tmp_path / "nowhere.toml"))

    def test_help_has_an_example(self) -> None:
        assert "Example: spark-sb-sink cost" in run("cost", "--help").out
