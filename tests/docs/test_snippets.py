"""Everything that the pages show can be run, and is: Python and SQL by Spark, TOML as options, shell as commands."""

import contextlib
import io
import json
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer

from spark_sb_sink.broker import BrokerProcess
from spark_sb_sink.cli import app
from spark_sb_sink.demo.ending import NEXT, reckoning_lines
from spark_sb_sink.demo.reckoning import Outage, Reckoning
from spark_sb_sink.option_loading import read_toml
from spark_sb_sink.syphon.job import _tell
from spark_sb_sink.syphon.query import Drained
from tests.docs.commands import EDGES, WrongCommandError, check, commands_in, inline, load_options, submitted
from tests.docs.pages import ROOT, Block, all_blocks, blocks_of, inline_code, pages
from tests.test_conf import ENVIRONMENT

FOR_PEOPLE = frozenset({"", "text"})
"""Drawings, and what programs print."""
IN_SPARK = frozenset({"python", "sql"})
SOON = {"settle_time": "0s", "long_poll": "2s"}
"""So that nobody waits for a drain to be sure, or for a poll."""
READ_FROM = {
    "sent": "sent",
    "primary": "direct",
    "backlog": "by backlog",
    "overflow": "by overflow",
    "quarantine": "quarantined",
    "drained": "drained",
    "delivered": "delivered",
    "lost": "lost",
    "duplicates": "duplicates",
}
SUBMIT = Path(sys.executable).with_name("spark-submit")


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


def run_toml(block: Block, folder: Path) -> None:
    """A block that shows a few options only is completed by two namespaces."""
    path = folder / "shown.toml"
    path.write_text(block.code)
    given = read_toml(path)
    missing = [side for side in ("primary", "secondary") if side not in given]
    path.write_text("".join(f'{side} = "${{SERVICEBUS_{side.upper()}}}"\n' for side in missing) + block.code)
    load_options(given, path)


def run_sh(block: Block, folder: Path) -> None:
    for command in commands_in(block.code):
        check(command)


def run_json(block: Block, folder: Path) -> None:
    """What a drain prints with --json is all the JSON that the pages show."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        _tell(Drained(empty=True, left={}, overflow_empty=True, moved=12_000), as_json=True, stopped=False)
    assert json.loads(block.code) == json.loads(printed.getvalue())


RUNNERS: dict[str, Callable[[Block, Path], None]] = {"toml": run_toml, "sh": run_sh, "json": run_json}


def test_every_block_is_of_a_language_that_a_runner_covers() -> None:
    unknown = {block.name: block.language for block in all_blocks()}
    covered = FOR_PEOPLE | IN_SPARK | RUNNERS.keys()
    assert {name: language for name, language in unknown.items() if language not in covered} == {}


@pytest.mark.parametrize("block", all_blocks(*RUNNERS), ids=lambda block: block.name)
@pytest.mark.usefixtures("environment")
def test_what_a_page_shows_is_right(block: Block, tmp_path: Path) -> None:
    RUNNERS[block.language](block, tmp_path)


def examples() -> dict[str, str]:
    """Of the help of each command, and what the demo says to type next."""

    def of(command: Any) -> Iterator[str]:
        yield from re.findall(r"Example: (spark-sb-sink .*)", command.help or "")
        for inner in getattr(command, "commands", {}).values():
            yield from of(inner)

    found = {" ".join(line.split()[1:3]).split(" --")[0]: line for line in of(typer.main.get_command(app))}
    return found | {f"{line} (next)": line.format(program="spark-sb-sink") for line in NEXT}


def test_every_command_has_an_example() -> None:
    assert {name for name in examples() if "(next)" not in name} == {
        *("broker", "cost", "demo", "doctor", "pair", "status", "syphon"),
        *("quarantine list", "quarantine show", "replay"),
    }


@pytest.mark.parametrize("line", examples().values())
@pytest.mark.usefixtures("environment")
def test_an_example_of_the_help_is_right(line: str, tmp_path: Path) -> None:
    [command] = commands_in(line.replace("--keep ", f"--keep {tmp_path}/"))
    check(command)


def test_the_readme_shows_how_each_of_its_two_commands_ends() -> None:
    blocks = list(blocks_of("README.md"))
    ends = {block.code: after.code for block, after in pairwise(blocks) if "python -m venv" in block.code}
    assert len(ends) == 2
    demo, tests = ends.values()
    assert demo.startswith("Reckoning")
    assert re.fullmatch(r"\d+ passed in [\d.]+s \(\d:\d\d:\d\d\)\n", tests)


def test_the_reckoning_of_the_readme_is_one_that_the_demo_prints() -> None:
    """Made anew from its own numbers, line by line."""
    [shown] = [block.code for block in blocks_of("README.md") if block.code.startswith("Reckoning")]
    told = dict(re.findall(r"^  ([a-z ]+?) {2,}(\S.*)$", shown, re.MULTILINE))
    outages = [
        Outage(what, float(over), float(back))
        for (over, what), (back, _) in zip(
            *(re.findall(r"([\d.]+) s for ([\w ]+)", told[label]) for label in ("failover", "failback")), strict=True
        )
    ]
    billed = [
        int(text.replace(",", "")) for text in re.findall(r"(?:primary|secondary|pings) ([\d,]+)", told["operations"])
    ]
    found = Reckoning(
        **{field: int(told[label].split()[0].replace(",", "")) for field, label in READ_FROM.items()},
        dropped_duplicates=0,
        outages=tuple(outages),
        drain_s=float(re.search(r"in ([\d.]+) s", told["drained"])[1]),
        operations_primary=billed[0],
        operations_secondary=billed[1],
        pings=billed[2],
        disagreements=(),
    )
    seconds = float(re.search(r"All of it took (\d+) s", shown)[1])
    assert "\n".join(reckoning_lines(found, seconds)) == shown.rstrip("\n")
    assert found.sent == found.primary + found.backlog + found.overflow + found.quarantine


@pytest.mark.parametrize("page", pages())
def test_commands_in_running_text_name_what_is_there(page: str) -> None:
    for code in inline_code(page):
        if code.startswith("spark-sb-sink ") and "|" not in code:
            inline(code)


@pytest.mark.timeout(600)
def test_every_python_and_sql_block_runs_and_orders_arrive(broker: BrokerProcess, tmp_path: Path) -> None:
    primary, secondary = broker["primary"], broker["secondary"]
    for side in (primary, secondary):
        side.undo()
    primary.create_queue("orders")
    # As on a reader's machine: connection strings in the environment, conf/ and jobs/ where one works.
    (tmp_path / "conf").mkdir()
    for path in (ROOT / "conf").glob("*.toml"):
        (tmp_path / "conf" / path.name).write_text(_soon(path.read_text(encoding="utf-8")))
    trusted = tmp_path / "ca.pem"
    trusted.write_text("".join(dict.fromkeys(Path(side.ca_file).read_text() for side in (primary, secondary))))
    shown = [[block for block in blocks_of(page) if block.language in IN_SPARK] for page in pages()]
    done = subprocess.run(
        [sys.executable, "-m", "tests.docs.app", str(tmp_path)],
        input=json.dumps([[_as_dict(block) for block in blocks] for blocks in shown if blocks]),
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "SERVICEBUS_PRIMARY": primary.connection_string,
            "SERVICEBUS_SECONDARY": secondary.connection_string,
            "SSL_CERT_FILE": str(trusted),
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
    )
    print(done.stderr[-4000:])  # when each block began
    assert done.returncode == 0
    failures = json.loads((tmp_path / "failures.json").read_text())
    assert failures == [], "\n".join(failures)
    assert {"o-1", "o-2"} <= primary.tally("orders").keys()


def _soon(conf: str) -> str:
    rest = [line for line in conf.splitlines() if line.partition("=")[0].strip() not in SOON]
    return "\n".join([*(f'{key} = "{value}"' for key, value in SOON.items()), *rest])


def _as_dict(block: Block) -> dict[str, object]:
    return {"page": block.page, "line": block.line, "language": block.language, "code": block.code}


def submit_lines() -> list[str]:
    """One line of spark-submit for each job, of those that fetch nothing; `check` reads the files of all of them."""
    found = dict[str, str]()
    for block in all_blocks("sh"):
        for command in commands_in(block.code):
            if command[0] == "spark-submit" and (line := submitted(command[1:])).here:
                found.setdefault(line.script, " ".join(command))
    return list(found.values())


@pytest.mark.parametrize("line", submit_lines())
def test_a_line_of_spark_submit_comes_as_far_as_its_options(line: str) -> None:
    [command] = commands_in(line)
    environ = {name: value for name, value in os.environ.items() if name not in ENVIRONMENT}
    done = subprocess.run(
        [str(SUBMIT), "--master", "local[2]", *command[1:]],
        env={**environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    told = done.stdout + done.stderr  # the JVM gives out what Python says as its own
    assert done.returncode == 2, told
    assert re.search(r"takes its value from the environment variable \w+, which is not set", told)


# The machinery itself


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("spark-sb-sink nonsense", "no command nonsense"),
        ("spark-sb-sink syphon --conf-file x --untill-empty", "--untill-empty"),
        ("spark-sb-sink syphon --until-empty", "--conf-file"),
        ("spark-sb-sink syphon --conf-file conf/no-delta.toml --until-empty --within soon", "--within got 'soon'"),
        ("spark-sb-sink status --conf-file conf/none.toml", "conf/none.toml could not be read"),
        ("spark-sb-sink status --conf-file conf/no-delta.toml --look-again soon", "--look-again got 'soon'"),
        ("spark-sb-sink replay --conf-file conf/topics-with-sessions.toml", "takes a filter"),
        ("spark-sb-sink quarantine list --conf-file conf/no-delta.toml", "takes the option state"),
        ("spark-sb-sink cost --outage soon", "--outage got 'soon'"),
        ("spark-sb-sink broker --namespace a.b", "'a.b' is no namespace name"),
        ("spark-submit jobs/none.py --conf-file conf/pipeline.toml", "no jobs/none.py"),
        ("spark-submit jobs/syphon.py --conf-file conf/none.toml", "conf/none.toml could not be read"),
        ("spark-submit jobs/syphon.py --conf-file conf/no-delta.toml --within 1m", "--within is a time limit"),
        ("spark-submit jobs/syphon.py --conf-file conf/no-delta.toml --often", "does not take"),
        (
            "spark-submit --packages io.delta:delta-spark_2.13:4.4.1 jobs/syphon.py --conf-file conf/no-delta.toml",
            "fit",
        ),
        ("pip install '.[nothing]'", "no extras nothing"),
        ("pip install 'spark-sb-sink[spark]'", "no index has spark-sb-sink"),
        ("pip wheel spark-sb-sink", "no index has spark-sb-sink"),
        ("pip download .", "pip download"),
        ("export SERVICEBUS_TERTIARY=x", "SERVICEBUS_TERTIARY"),
        ("kubectl apply -f x", "no runner covers kubectl"),
    ],
)
@pytest.mark.usefixtures("environment")
def test_a_command_that_is_wrong_is_found(line: str, told: str) -> None:
    [command] = commands_in(line)
    with pytest.raises(WrongCommandError, match=re.escape(told)):
        check(command)


@pytest.mark.usefixtures("environment")
def test_what_is_right_comes_to_the_edge_and_starts_nothing() -> None:
    for line in (
        "spark-sb-sink syphon --conf-file conf/no-delta.toml --until-empty --within 1m",
        "spark-sb-sink doctor --conf-file pair.toml",
        "spark-submit jobs/pipeline.py --conf-file /opt/app/pipeline.toml",
        "spark-sb-sink demo",
        "spark-sb-sink --help",
    ):
        [command] = commands_in(line)
        check(command)
    assert all(callable(pkgutil.resolve_name(edge)) for edge in EDGES)


def test_an_option_that_is_wrong_in_running_text_is_found() -> None:
    inline("spark-sb-sink syphon --until-empty")
    with pytest.raises(WrongCommandError, match="--now is no option"):
        inline("spark-sb-sink syphon --now")


def test_commands_are_told_apart() -> None:
    code = "# first this\na 'b c' && d \\\n  e  # so\nf | g\n"
    assert list(commands_in(code)) == [["a", "b c"], ["d", "e"], ["f"], ["g"]]


def test_blocks_are_found_with_their_lines() -> None:
    text = "x\n```sh\na\n```\n```\nb\n```\n"
    assert [(block.line, block.language, block.code) for block in blocks_of("p", text)] == [
        (3, "sh", "a\n"),
        (6, "", "b\n"),
    ]
    with pytest.raises(AssertionError, match="never closed"):
        list(blocks_of("p", "```sh\na\n"))
