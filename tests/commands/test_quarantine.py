"""`quarantine list|show`: what waits there, and why; and what a filter leaves of it."""

import base64
from pathlib import Path

import pytest

from spark_sb_sink.lanes import Table
from tests.commands.conftest import ConfFile
from tests.commands.support import run, sentence
from tests.commands.tables import Tables, message, never_a_message


@pytest.fixture
def filled(tables: Tables) -> Tables:
    gone = "no such entity: orders could not be found"
    rows = [message("orders", name, gone) for name in ("o-1", "o-2")]
    rows += [message("payments", "p-1", "too large: 300 KB where 256 KB are taken"), never_a_message("bad?name")]
    tables.unsent(Table.QUARANTINE, rows)
    return tables


def test_nothing_waits_where_nothing_was_ever_put(tables: Tables, conf_file: ConfFile) -> None:
    file = conf_file(state=tables.path)
    assert run("quarantine", "list", "--conf-file", file, "--json").json == {"total": 0, "rows": []}
    assert run("quarantine", "list", "--conf-file", file).out == "Nothing waits in quarantine.\n"
    assert "there is no message 'o-1'" in sentence(run("quarantine", "show", "--conf-file", file, "o-1"))


def test_a_list_has_what_waits_and_filters_go_together(filled: Tables, conf_file: ConfFile) -> None:
    file = conf_file(state=filled.path)

    def ids(*arguments: str) -> set[str | None]:
        told = run("quarantine", "list", "--conf-file", file, "--json", *arguments).json
        assert told["total"] == len(told["rows"])
        return {row["message_id"] for row in told["rows"]}

    assert ids() == {"o-1", "o-2", "p-1", None}
    assert ids("--entity", "orders", "--where", "message_id > 'o-1'") == {"o-2"}
    assert ids("--message-id", "o-1", "--message-id", "p-1") == {"o-1", "p-1"}
    assert ids("--reason", "TOO LARGE") == {"p-1"}
    [row] = run("quarantine", "list", "--conf-file", file, "--json", "--entity", "bad?name").json["rows"]
    assert not row["replayable"]
    done = run("quarantine", "list", "--conf-file", file, "--limit", "1")
    assert "4 in all, of which 1 are shown." in done.out
    done = run("quarantine", "list", "--conf-file", file)
    assert max(map(len, done.out.splitlines())) <= 80
    assert "never became a message" in " ".join(done.out.split())
    bad = run("quarantine", "list", "--conf-file", file, "--where", "no_such_column = 1")
    assert "--where got 'no_such_column = 1'" in sentence(bad)
    assert "--where got 'a = ='" in sentence(run("quarantine", "list", "--conf-file", file, "--where", "a = ="))
    fails = "int(message_id) = 1"  # on a row, so only when the job runs
    for command in (["quarantine", "list"], ["replay", "--dry-run"]):
        told = sentence(run(*command, "--conf-file", file, "--where", fails))
        assert f"--where got {fails!r}, which fails on a row of the table: [" in told


def test_a_damaged_table_is_a_sentence_and_for_status_a_note(filled: Tables, conf_file: ConfFile) -> None:
    for part in (Path(filled.path) / Table.QUARANTINE.value).glob("*.parquet"):
        part.write_bytes(b"no parquet")
    file = conf_file(state=filled.path)
    for command in (["quarantine", "list"], ["quarantine", "show", "o-1"]):
        told = sentence(run(*command, "--conf-file", file))
        assert f"The Delta tables under state = '{filled.path}' cannot be used: " in told
        assert "\n\tat " not in told
    for log in (Path(filled.path) / Table.QUARANTINE.value / "_delta_log").glob("*.json"):
        log.write_text("no json")
    done = run("status", "--conf-file", file, "--json")
    assert done.json["state"] is None
    assert "are not known: The Delta tables under state" in " ".join(done.json["notes"])


def test_show_tells_everything_of_one(filled: Tables, conf_file: ConfFile) -> None:
    file = conf_file(state=filled.path)
    [row] = run("quarantine", "show", "--conf-file", file, "o-1", "--json").json
    assert row["entity"] == "orders"
    assert row["application_properties"] == {"color": "red"}
    assert base64.b64decode(row["body"]["base64"]) == b"x"
    assert row["replayed"] is False
    assert len(run("quarantine", "show", "--conf-file", file, row["digest"][:8], "--json").json) == 1
    done = run("quarantine", "show", "--conf-file", file, "o-1")
    assert "color = red" in done.out
    assert "no such entity" in done.out
    assert max(map(len, done.out.splitlines())) <= 80


def test_what_is_wrong_is_a_sentence(conf_file: ConfFile, tmp_path: Path) -> None:
    for command in (["list"], ["show", "x"]):
        assert "takes the option state" in sentence(run("quarantine", *command, "--conf-file", conf_file()))
        assert "could not be read" in sentence(run("quarantine", *command, "--conf-file", tmp_path / "nowhere"))
        assert run("quarantine", *command).code == 2


def test_help_has_an_example() -> None:
    for command in ("list", "show"):
        assert f"Example: spark-sb-sink quarantine {command}" in run("quarantine", command, "--help").out
