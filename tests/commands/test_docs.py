"""What docs/commands.md shows is run, in its order, on the pair that it speaks of; and it names every option."""

import os
import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
import typer
from typer.main import get_command

from spark_sb_sink.amqp import encode_message
from spark_sb_sink.board_records import NotedChange
from spark_sb_sink.cli import app
from spark_sb_sink.delta_state import LedgerEntry
from spark_sb_sink.envelope import wrap
from spark_sb_sink.events import RouteCounts
from spark_sb_sink.failover import Health, StateChange
from spark_sb_sink.lanes import Table
from spark_sb_sink.testing import ServiceBusPair
from tests.commands.support import run, toml
from tests.commands.tables import Tables, message, never_a_message
from tests.syphon.field import Field

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```sh\n(spark-sb-sink .*?)\n```\n\n```text\n(.*?)\n```", PAGE, re.DOTALL)
OURS = ("pair", "doctor", "status", "quarantine list", "quarantine show", "replay", "cost")
KEEPS_SOME = ("replay --conf-file pair.toml --entity orders",)
"""Examples in which something stays, with exit code 1."""


def skeleton(output: str) -> list[str]:
    """The words of an output that do not depend on the moment or the machine: none that has a digit or a path in it."""
    return [word for word in output.split() if not re.search(r"[\d/]", word)]


@pytest.fixture
def stage(tables: Tables, servicebus: ServiceBusPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tables:
    """A pair in the middle of an outage, as the page tells of it."""
    servicebus.primary.create_queue("orders", requires_duplicate_detection=True, duplicate_window=86_400)
    servicebus.primary.create_queue("payments")
    monkeypatch.chdir(tmp_path)
    Path("pair.toml").write_text(toml(servicebus.options(primary_name="contoso", state=tables.path)))
    now = datetime.now(UTC).timestamp()
    out = StateChange("orders", Health.SUSPECT, Health.FAILED_OVER, "connection lost", 0.0)
    back = StateChange("payments", Health.PROBATION, Health.HEALTHY, "a message was accepted", 0.0)
    changes = (NotedChange("b", 1, out, now - 700), NotedChange("b", 2, back, now - 60))
    counts = (RouteCounts("orders", backlog=40, overflow=3, quarantine=2), RouteCounts("payments", primary=160))
    tables.state.note(LedgerEntry("q", 41, now - 2, True, 205, 1.3, counts, changes))
    why = "rejected: the property color is not allowed"
    bad = never_a_message("orders", "scheduled_enqueue_time is before the year 1970")
    tables.unsent(Table.QUARANTINE, [message("orders", "order-4711", why), message("orders", "order-4712", why), bad])
    tables.overflow("orders", "order-1", "order-2", "order-3")
    tables.transfer("contoso/x-servicebus-transfer/0", "payments", 120)
    return tables


def test_every_example_of_the_page_does_what_it_shows(stage: Tables, servicebus: ServiceBusPair, field: Field) -> None:
    assert [" ".join(command.split()[1:3]).split(" --")[0] for command, _ in EXAMPLES] == [
        *("pair", "doctor", "status", "quarantine list", "quarantine show", "replay", "replay", "cost")
    ]
    for command, shown in EXAMPLES:
        arguments = shlex.split(command)[1:]
        done = run(*arguments, columns=400)  # on the page it is 80; a path that is folded would be other words
        print(f"$ {command}\n{done.out}")  # with -s, or when it fails, the page can be written anew from this
        keeps = " ".join(arguments) in KEEPS_SOME
        assert done.code == (1 if keeps else 0), done.err
        assert skeleton(done.out) == skeleton(shown), command
        if arguments[0] == "cost":  # talks to nobody, so it is the same everywhere
            assert done.out.split() == shown.split()
        if arguments[0] == "pair":
            messages = [wrap(encode_message(b"x" * 400, message_id=f"order-{n}"), "orders") for n in range(40)]
            field.name = "contoso"
            field.fill(messages)
    assert servicebus.arrived("orders") == {"order-4711": 1, "order-4712": 1}


@pytest.mark.parametrize("name", OURS)
def test_the_page_names_every_option_of_a_command(name: str) -> None:
    command = get_command(app)
    for word in name.split():
        assert isinstance(command, typer.core.TyperGroup)
        command = command.commands[word]
    options = {opt for param in command.params for opt in param.opts if opt.startswith("--")} - {"--help"}
    assert {option for option in options if f"`{option}" not in PAGE} == set()


def test_the_page_has_every_command_of_the_program() -> None:
    command = get_command(app)
    assert isinstance(command, typer.core.TyperGroup)
    assert {name for name in command.commands if f"`{name}`" not in PAGE} == set()


def test_every_link_leads_somewhere() -> None:
    for page in ("commands.md", "testing.md"):
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
            assert (ROOT / "docs" / target).exists(), target


def test_as_a_program_in_a_pipe_it_prints_plain_text() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "spark_sb_sink.cli", "cost"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "TERM": "xterm-256color", "FORCE_COLOR": ""},
    )
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert done.stderr == ""
