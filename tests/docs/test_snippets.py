"""Everything that the pages show can be run, and is: Python and SQL by Spark, TOML as options, shell as commands."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_sb_sink.broker import BrokerProcess
from spark_sb_sink.option_loading import read_toml
from tests.docs.commands import WrongCommandError, check, commands_in, inline, load_options, submitted
from tests.docs.pages import ROOT, Block, all_blocks, blocks_of, inline_code, pages
from tests.test_conf import ENVIRONMENT

FOR_PEOPLE = frozenset({"", "text"})
"""Drawings, and what programs print."""
IN_SPARK = frozenset({"python", "sql"})
SOON = {"settle_time": "0s", "long_poll": "2s"}
"""So that nobody waits for a drain to be sure, or for a poll."""
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
    json.loads(block.code)


RUNNERS: dict[str, Callable[[Block, Path], None]] = {"toml": run_toml, "sh": run_sh, "json": run_json}


def test_every_block_is_of_a_language_that_a_runner_covers() -> None:
    unknown = {block.name: block.language for block in all_blocks()}
    covered = FOR_PEOPLE | IN_SPARK | RUNNERS.keys()
    assert {name: language for name, language in unknown.items() if language not in covered} == {}


@pytest.mark.parametrize("block", all_blocks(*RUNNERS), ids=lambda block: block.name)
@pytest.mark.usefixtures("environment")
def test_what_a_page_shows_is_right(block: Block, tmp_path: Path) -> None:
    RUNNERS[block.language](block, tmp_path)


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
        ("spark-submit jobs/none.py --conf-file conf/pipeline.toml", "no jobs/none.py"),
        ("spark-submit jobs/syphon.py --conf-file conf/none.toml", "no conf/none.toml"),
        ("spark-submit jobs/syphon.py --conf-file conf/no-delta.toml --often", "does not take"),
        (
            "spark-submit --packages io.delta:delta-spark_2.13:4.4.1 jobs/syphon.py --conf-file conf/no-delta.toml",
            "fit",
        ),
        ("pip install 'spark-sb-sink[nothing]'", "no extras nothing"),
        ("export SERVICEBUS_TERTIARY=x", "SERVICEBUS_TERTIARY"),
        ("kubectl apply -f x", "no runner covers kubectl"),
    ],
)
@pytest.mark.usefixtures("environment")
def test_a_command_that_is_wrong_is_found(line: str, told: str) -> None:
    [command] = commands_in(line)
    with pytest.raises(WrongCommandError, match=re.escape(told)):
        check(command)


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
