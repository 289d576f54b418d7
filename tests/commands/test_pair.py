"""`pair`: makes what is missing, changes nothing, and says what differs."""

import logging
from pathlib import Path

import pytest

from spark_sb_sink.broker.faults import BlackHole
from spark_sb_sink.testing import ServiceBusPair
from tests.commands.conftest import ConfFile
from tests.commands.support import run, sentence


def queues(pair: ServiceBusPair) -> list[str]:
    return sorted(name for name in pair.secondary.overview()["entities"] if name.startswith(pair.name))


def path(pair: ServiceBusPair, number: int | str) -> str:
    return f"{pair.name}/x-servicebus-transfer/{number}"


def test_it_makes_the_queues_and_finds_them_the_next_time(servicebus: ServiceBusPair, conf_file: ConfFile) -> None:
    told = run("pair", "--conf-file", conf_file(), "--json").json
    assert told["created"] == queues(servicebus) == [path(servicebus, 0), path(servicebus, 1)]
    assert told["as_expected"]
    again = run("pair", "--conf-file", conf_file(), "--json").json
    assert (again["created"], again["found"]) == ([], told["created"])


def test_a_dry_run_makes_nothing_and_tells_by_its_exit_code(servicebus: ServiceBusPair, conf_file: ConfFile) -> None:
    servicebus.secondary.create_queue(path(servicebus, 0), max_delivery_count=7)
    before = queues(servicebus)
    done = run("pair", "--conf-file", conf_file(), "--dry-run", "--json")
    assert done.code == 1
    assert done.json["missing"] == [path(servicebus, 1)]
    assert {"queue": path(servicebus, 0), "property": "max_delivery_count", "got": "7", "expected": "2147483647"} in (
        done.json["differing"]
    )
    assert queues(servicebus) == before


def test_a_dry_run_of_a_whole_pair_ends_with_0(conf_file: ConfFile) -> None:
    assert run("pair", "--conf-file", conf_file()).code == 0
    done = run("pair", "--conf-file", conf_file(), "--dry-run")
    assert done.code == 0
    assert "there, as expected" in done.out
    assert done.err == ""


@pytest.mark.parametrize("columns", [80, 120])
def test_a_person_sees_what_differs_and_what_is_extra(
    servicebus: ServiceBusPair, conf_file: ConfFile, columns: int
) -> None:
    servicebus.secondary.create_queue(path(servicebus, 0), lock_duration=5)
    servicebus.secondary.create_queue(path(servicebus, 7))
    done = run("pair", "--conf-file", conf_file(), columns=columns)
    assert done.code == 0, "what differs is used as it is"
    assert max(map(len, done.out.splitlines())) <= columns
    words = " ".join(done.out.split())
    assert "lock_duration is 5s, expected 1m" in words
    assert "7 extra not used, and left alone" in words
    assert "1 found, 1 made." in words
    assert done.err == "", "what the library would log is shown once, not twice"


def test_assumed_queues_are_looked_at_and_never_made(servicebus: ServiceBusPair, conf_file: ConfFile) -> None:
    file = conf_file(pairing="assume")
    assert "with --dry-run they are looked at" in sentence(run("pair", "--conf-file", file))
    done = run("pair", "--conf-file", file, "--dry-run", "--json")
    assert (done.code, len(done.json["missing"])) == (1, 2)
    assert queues(servicebus) == []


def test_a_missing_claim_and_a_dead_secondary_are_sentences(servicebus: ServiceBusPair, conf_file: ConfFile) -> None:
    side = {"ca_file": servicebus.secondary.ca_file}
    weak = servicebus.secondary.add_policy(f"send-{servicebus.name}", ["Send"])
    file = conf_file(secondary={"connection_string": weak, **side})
    assert "lacks the Manage claim" in sentence(run("pair", "--conf-file", file))
    with servicebus.secondary.fault(BlackHole()):
        told = sentence(run("pair", "--conf-file", conf_file(send_timeout="500ms")))
    assert "could not be reached" in told


def test_what_is_wrong_with_the_options_is_a_sentence(tmp_path: Path, conf_file: ConfFile) -> None:
    assert "could not be read" in sentence(run("pair", "--conf-file", tmp_path / "nowhere.toml"))
    assert "backlog_queue_count got 0" in sentence(run("pair", "--conf-file", conf_file(backlog_queue_count=0)))
    assert run("pair").code == 2


def test_several_things_that_are_wrong_with_the_options_are_one_line(tmp_path: Path) -> None:
    file = tmp_path / "pair.toml"
    file.write_text('pairing = "assume"\n')
    told = sentence(run("pair", "--conf-file", file))
    assert "primary is missing" in told
    assert "; secondary is missing" in told


def test_an_identity_that_is_refused_is_a_sentence_and_no_log_of_azure_identity(
    conf_file: ConfFile, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "EnvironmentCredential")
    monkeypatch.delenv("AZURE_CLIENT_ID", raising=False)
    file = conf_file(secondary={"namespace": "b.invalid", "identity": "default"})
    before = logging.getLogger("azure").level
    assert "EnvironmentCredential authentication unavailable" in sentence(run("pair", "--conf-file", file))
    assert caplog.records == []
    assert logging.getLogger("azure").level == before, "what others log is not lost for good"


def test_help_has_an_example() -> None:
    assert "Example: spark-sb-sink pair" in run("pair", "--help").out
