"""`doctor`: each check says ok, warn or fail, and what to do about it."""

import asyncio
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pyspark
import pytest

from spark_sb_sink import doctor_machine, doctor_service
from spark_sb_sink.bounded import CallFailedError, within
from spark_sb_sink.broker import BrokerProcess
from spark_sb_sink.broker.faults import Refuse
from spark_sb_sink.doctor_entities import SHOWN
from spark_sb_sink.doctor_service import Seen
from spark_sb_sink.findings import Finding, Verdict
from spark_sb_sink.namespaces import NamespaceOptions
from spark_sb_sink.options import Options
from spark_sb_sink.testing import ServiceBusPair
from tests.commands.conftest import ConfFile
from tests.commands.support import Done, run, sentence, toml
from tests.commands.tables import Tables

FITS = {
    "azure-servicebus": "7.15.0",
    "pyspark": "4.2.0",
    "delta-spark": "4.4.0",
    "pandas": "2.3.3",
    "pyarrow": "20.0.0",
}


def doctor(file: Path, *arguments: str) -> tuple[Done, dict[str, dict[str, str]]]:
    done = run("doctor", "--conf-file", file, "--json", *arguments)
    return done, {each["check"]: each for each in done.json["checks"]}


@pytest.fixture
def untouched() -> Iterator[ServiceBusPair]:
    """A broker that no other test has made entities in: without names, the doctor looks at all that there are."""
    with BrokerProcess("primary", "secondary") as running:
        yield ServiceBusPair(running["primary"], running["secondary"])


def test_a_good_pair_passes_and_duplicate_detection_is_told(untouched: ServiceBusPair, tmp_path: Path) -> None:
    untouched.primary.create_queue("orders", requires_duplicate_detection=True, duplicate_window=86_400)
    untouched.primary.create_topic("news", requires_duplicate_detection=True, duplicate_window=600)
    untouched.primary.create_queue("plain")
    file = tmp_path / "pair.toml"
    file.write_text(toml(untouched.options()))
    assert run("pair", "--conf-file", file).code == 0
    done, found = doctor(file)
    assert done.code == 0
    assert done.json["ok"]
    for check in (
        "Java",
        "azure-servicebus",
        "Spark",
        "Delta",
        "backlog queues",
        "Send on backlog",
        "Listen on backlog",
        "clock against primary",
        "clock against secondary",
        "limits",
        "duplicates on orders",
    ):
        assert found[check]["verdict"] == "ok", found[check]
    assert "window of 1d" in found["duplicates on orders"]["found"]
    assert "longer than that lets duplicates through" in found["duplicates on news"]["cure"]
    assert found["duplicates on plain"]["verdict"] == "warn"
    _, named = doctor(file, "--entity", "orders")
    assert named["Send on orders"]["verdict"] == "ok"
    assert "duplicates on plain" not in named


def test_of_many_entities_the_first_are_told_and_the_rest_counted(untouched: ServiceBusPair, tmp_path: Path) -> None:
    names = [f"q{number:02}" for number in range(SHOWN + 3)]
    for name in names:
        untouched.primary.create_queue(name)
    file = tmp_path / "pair.toml"
    file.write_text(toml(untouched.options()))
    _, found = doctor(file)
    assert [name for name in names if f"duplicates on {name}" in found] == names[:SHOWN]
    assert found["duplicate detection"]["found"].startswith("3 more entities")
    assert "--entity" in found["duplicate detection"]["found"]
    _, named = doctor(file, "--entity", names[-1])
    assert f"duplicates on {names[-1]}" in named, "one that is named is told, however many there are"


def test_missing_queues_and_entities_are_told(conf_file: ConfFile) -> None:
    done, found = doctor(conf_file(), "--entity", "nowhere")
    assert done.code == 1
    assert found["backlog queues"]["verdict"] == "warn"
    assert "spark-sb-sink pair" in found["backlog queues"]["cure"]
    assert found["Send on nowhere"] == {
        "check": "Send on nowhere",
        "verdict": "fail",
        "found": found["Send on nowhere"]["found"],
        "cure": "make it, or correct its name",
    }
    _, assumed = doctor(conf_file(pairing="assume"))
    assert assumed["backlog queues"]["verdict"] == "fail"


def test_each_backlog_queue_is_tried_also_where_nobody_may_look_at_them(
    servicebus: ServiceBusPair, conf_file: ConfFile
) -> None:
    path = f"{servicebus.name}/x-servicebus-transfer/"
    servicebus.secondary.create_queue(f"{path}0", max_message_kb=256)
    weak = servicebus.secondary.add_policy(f"sl-{servicebus.name}", ["Send", "Listen"])
    secondary = {"connection_string": weak, "ca_file": servicebus.secondary.ca_file}
    file = conf_file(secondary=secondary, pairing="assume")
    done, found = doctor(file)
    assert done.code == 1
    assert found["backlog queues"]["verdict"] == "fail"
    assert f"{path}1 is missing" in found["backlog queues"]["found"]
    assert found["Send on backlog"]["found"] == f"not known while there is no {path}1"
    servicebus.secondary.create_queue(f"{path}1")
    done, found = doctor(file)
    assert {found[check]["verdict"] for check in ("backlog queues", "Send on backlog", "Listen on backlog")} == {"ok"}
    servicebus.secondary.disable(f"{path}1")
    _, found = doctor(file)
    assert found["Send on backlog"]["found"] == f"{path}1 in {servicebus.secondary.endpoint}: disabled"
    assert found["Send on backlog"]["cure"] == found["Listen on backlog"]["cure"] == "enable it"
    assert "secondary" not in found, "it does answer"
    _, found = doctor(conf_file())
    assert (found["backlog queues"]["verdict"], "enable" in found["backlog queues"]["cure"]) == ("fail", True)


def test_an_entity_that_is_disabled_is_to_be_enabled(servicebus: ServiceBusPair, conf_file: ConfFile) -> None:
    servicebus.primary.create_queue("off")
    servicebus.primary.disable("off")
    done, found = doctor(conf_file(), "--entity", "off")
    assert (done.code, found["Send on off"]["verdict"]) == (1, "fail")
    assert "is disabled" in found["Send on off"]["found"]
    assert found["Send on off"]["cure"].startswith("enable it")
    assert "primary" not in found


def test_claims_that_are_missing_are_named(servicebus: ServiceBusPair, conf_file: ConfFile) -> None:
    servicebus.primary.create_queue("orders")
    assert run("pair", "--conf-file", conf_file()).code == 0
    listen = servicebus.primary.add_policy(f"l-{servicebus.name}", ["Listen"])
    send = servicebus.secondary.add_policy(f"s-{servicebus.name}", ["Send"])
    sides = {
        "primary": {"connection_string": listen, "ca_file": servicebus.primary.ca_file},
        "secondary": {"connection_string": send, "ca_file": servicebus.secondary.ca_file},
    }
    done, found = doctor(conf_file(**sides), "--entity", "orders")
    assert done.code == 1
    assert found["Send on orders"]["verdict"] == "fail"
    assert "grant Send on orders" in found["Send on orders"]["cure"]
    assert found["Listen on backlog"]["verdict"] == "fail"
    assert found["Send on backlog"]["verdict"] == "ok"
    assert "Manage" in found["backlog queues"]["cure"]
    assert found["duplicate detection"]["verdict"] == "warn"
    _, assumed = doctor(conf_file(**sides, pairing="assume"), "--entity", "orders")
    assert assumed["backlog queues"]["verdict"] == "ok", "nobody needs Manage then"


def test_a_wrong_key_is_refused_and_not_told(servicebus: ServiceBusPair, conf_file: ConfFile) -> None:
    key = "d3Jvbmcga2V5IHdyb25nIGtleSB3cm9uZyBrZXkgd3Jv"
    wrong = servicebus.primary.connection_string.split("SharedAccessKey=")[0] + f"SharedAccessKey={key}"
    done, found = doctor(conf_file(primary=f"{wrong};UseDevelopmentEmulator=true"))
    assert done.code == 1
    assert found["primary"]["verdict"] == "fail"
    assert "correct the key" in found["primary"]["cure"]
    assert key not in done.out


def test_a_namespace_that_is_out_is_one_failed_line(servicebus: ServiceBusPair, conf_file: ConfFile) -> None:
    with servicebus.primary.fault(Refuse()):
        done, found = doctor(conf_file(send_timeout="1s"))
    assert done.code == 1
    assert "cannot be reached" in found["primary"]["found"]
    assert "firewall" in found["primary"]["cure"]
    assert found["clock against primary"]["verdict"] == "warn"
    assert "network" in found["duplicate detection"]["cure"]
    assert "ask who manages" not in found["duplicate detection"]["cure"]
    assert found["clock against secondary"]["verdict"] == "ok"


@pytest.mark.parametrize("columns", [80, 120])
def test_a_person_sees_lines_that_fit(
    servicebus: ServiceBusPair, conf_file: ConfFile, columns: int, caplog: pytest.LogCaptureFixture
) -> None:
    servicebus.secondary.create_queue(f"{servicebus.name}/x-servicebus-transfer/0")  # unlike one that we make
    done = run("doctor", "--conf-file", conf_file(), columns=columns)
    assert done.code == 0, "the first start makes what is missing"
    assert max(map(len, done.out.splitlines())) <= columns
    assert "→ spark-sb-sink pair makes" in done.out
    assert " failed, " in done.out.splitlines()[-1]
    assert caplog.records == [], "what pairing would log is in the table"


class TestClock:
    @pytest.mark.parametrize(
        ("ahead", "verdict", "words"),
        [(0, Verdict.OK, "within"), (60, Verdict.WARN, "60 s fast"), (-900, Verdict.FAIL, "900 s slow")],
    )
    async def test_it_is_compared_with_the_date_of_the_service(
        self, servicebus: ServiceBusPair, ahead: float, verdict: Verdict, words: str
    ) -> None:
        side = NamespaceOptions(**servicebus.options()["primary"])
        found = await doctor_service.clock("primary", side, 10, now=lambda: time.time() + ahead)
        assert found.verdict is verdict
        minutes = found.found.replace("59 s", "60 s").replace("61 s", "60 s")
        assert words in minutes.replace("899 s", "900 s").replace("901 s", "900 s")

    async def test_without_the_certificate_it_is_not_known(self, servicebus: ServiceBusPair) -> None:
        side = NamespaceOptions(connection_string=servicebus.primary.connection_string)
        found = await doctor_service.clock("primary", side, 10)
        assert found.verdict is Verdict.WARN
        assert "ca_file" in found.cure


class TestMachine:
    def verdicts(self, changed: dict[str, Any], *, delta_needed: bool = True) -> dict[str, Finding]:
        found = {name: text for name, text in {**FITS, **changed}.items() if text is not None}
        return {each.check: each for each in doctor_machine.packages(found, delta_needed=delta_needed)}

    def test_what_the_tests_run_on_fits(self) -> None:
        assert {each.verdict for each in self.verdicts({}).values()} == {Verdict.OK}

    @pytest.mark.parametrize(
        ("changed", "check", "verdict"),
        [
            ({"pyspark": None}, "Spark", Verdict.FAIL),
            ({"pyspark": "3.5.1"}, "Spark", Verdict.WARN),
            ({"pyspark": "4.0.1"}, "Spark", Verdict.WARN),
            ({"delta-spark": None}, "Delta", Verdict.FAIL),
            ({"delta-spark": "4.4.1"}, "Delta", Verdict.WARN),
            ({"delta-spark": "4.0.0"}, "Delta", Verdict.WARN),
            ({"delta-spark": doctor_machine.UNTOLD}, "Delta", Verdict.WARN),
            ({"pandas": "3.0.0"}, "pandas", Verdict.FAIL),
            ({"pyarrow": "17.0.0"}, "pyarrow", Verdict.FAIL),
            ({"pyarrow": "12.0.0", "pyspark": "3.5.1"}, "pyarrow", Verdict.WARN),
            ({"pyarrow": None}, "pyarrow", Verdict.FAIL),
        ],
    )
    def test_what_does_not_fit_has_a_cure(self, changed: dict[str, Any], check: str, verdict: Verdict) -> None:
        found = self.verdicts(changed)[check]
        assert found.verdict is verdict
        assert found.cure

    def test_without_state_delta_is_not_missed(self) -> None:
        assert self.verdicts({"delta-spark": None}, delta_needed=False)["Delta"].verdict is Verdict.OK

    def test_an_old_spark_is_told_what_it_cannot_do(self) -> None:
        found = self.verdicts({"pyspark": "3.5.1"})["Spark"]
        assert 'cannot have format("servicebus")' in found.found
        assert "foreachBatch may work" in found.cure

    def test_what_a_platform_brings_without_metadata_of_pip_is_there(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        def unknown(name: str) -> str:
            raise PackageNotFoundError(name)

        monkeypatch.setattr(doctor_machine, "version", unknown)
        found = doctor_machine.installed()
        assert found == {"pyspark": pyspark.__version__, "delta-spark": doctor_machine.UNTOLD}
        assert doctor_machine.jars(found, [tmp_path], delta_needed=True).verdict is Verdict.WARN
        monkeypatch.setattr(doctor_machine, "find_spec", lambda name: None)
        assert doctor_machine.installed() == {}

    def test_jars_are_found_where_spark_keeps_them(self, tmp_path: Path) -> None:
        def look(**changed: bool) -> Verdict:
            return doctor_machine.jars(FITS, [tmp_path / "no", tmp_path], **{"delta_needed": True, **changed}).verdict

        assert look() is Verdict.WARN
        assert look(delta_needed=False) is Verdict.OK
        (tmp_path / "io.delta_delta-spark_4.2_2.13-4.3.0.jar").touch()
        assert look() is Verdict.WARN, "another version does not do"
        (tmp_path / "io.delta_delta-spark_4.2_2.13-4.4.0.jar").touch()
        assert look() is Verdict.OK

    def test_no_java_is_a_failed_line(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
        found = doctor_machine.java()
        assert found.verdict is Verdict.FAIL
        assert "Install a JDK" in found.cure


def test_a_backlog_that_takes_smaller_messages_is_a_warning(servicebus: ServiceBusPair) -> None:
    options = Options.from_dict(servicebus.options())
    found = doctor_service.limits(options, Seen(2**20), Seen(2**18))
    assert found.verdict is Verdict.WARN
    assert "256KiB" in found.found
    assert doctor_service.limits(options, Seen(2**18), Seen(2**20)).verdict is Verdict.OK


@pytest.mark.parametrize(
    ("home", "away", "unknown"),
    [
        (Seen(), Seen(), ["the primary", "the backlog"]),
        (Seen(2**18), Seen(), ["the backlog"]),
        (Seen(), Seen(2**18), ["the primary"]),
    ],
)
def test_a_limit_that_is_not_known_is_no_limit_that_fits(
    servicebus: ServiceBusPair, home: Seen, away: Seen, unknown: list[str]
) -> None:
    found = doctor_service.limits(Options.from_dict(servicebus.options()), home, away)
    assert found.verdict is Verdict.WARN
    assert [side for side in ("the primary", "the backlog") if side in found.found] == unknown
    assert "--entity" in found.cure


async def test_the_backlog_is_held_against_the_largest_of_the_entities(servicebus: ServiceBusPair, name: str) -> None:
    sizes = {f"{name}-large": 256, f"{name}-small": 64}
    for entity, size in sizes.items():
        servicebus.primary.create_queue(entity, max_message_kb=size)
    options = Options.from_dict(servicebus.options())
    for order in (list(sizes), list(reversed(sizes))):
        _, seen = await doctor_service.primary(options, order)
        assert seen == Seen(2**18)


class TestDeadline:
    async def test_a_call_ends_at_the_deadline_and_says_so(self) -> None:
        with pytest.raises(CallFailedError) as caught:
            await within(0.2, asyncio.sleep(0.3))
        assert caught.value.told == "no answer within 200ms"

    async def test_a_call_that_answers_in_time_gives_its_answer(self) -> None:
        assert await within(20, asyncio.sleep(0, "answer")) == "answer"


def test_delta_is_tried_where_state_is_set(tables: Tables, conf_file: ConfFile) -> None:
    _, good = doctor(conf_file(state=tables.path))
    assert good["state"]["verdict"] == "ok"
    done, bad = doctor(conf_file(state="nosuchscheme://x/y"))
    assert (done.code, bad["state"]["verdict"]) == (1, "fail")
    assert "state" not in doctor(conf_file(state=tables.path), "--no-spark")[1]


def test_what_is_wrong_is_a_sentence(tmp_path: Path) -> None:
    assert "could not be read" in sentence(run("doctor", "--conf-file", tmp_path / "nowhere.toml"))
    assert run("doctor").code == 2


def test_help_has_an_example() -> None:
    assert "Example: spark-sb-sink doctor" in run("doctor", "--help").out
