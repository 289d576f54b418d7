"""The run-books drain what the pipeline has put aside: each syphon knows the `state` that is deleted in the end."""

import re
import shlex

import pytest

from spark_sb_sink.options import Options
from tests.docs.commands import commands_in
from tests.docs.pages import ROOT, blocks_of, inline_code, text_of
from tests.test_conf import ENVIRONMENT

PAGE = "docs/operations.md"


def syphons() -> list[list[str]]:
    """Every command of the page that starts one, in blocks and in running text."""
    shown = [command for block in blocks_of(PAGE) if block.language == "sh" for command in commands_in(block.code)]
    shown += [shlex.split(code) for code in inline_code(PAGE) if re.match(r"spark-(?:sb-sink|submit) ", code)]
    return [command for command in shown if command[1] == "syphon" or "jobs/syphon.py" in command]


def test_there_are_syphons_in_the_run_books() -> None:
    assert len(syphons()) >= 4


@pytest.mark.parametrize("command", syphons(), ids=shlex.join)
def test_a_syphon_of_a_run_book_knows_of_the_overflow(command: list[str]) -> None:
    assert "--conf-file" in command, "without its file nobody knows which state it drains"
    file = ROOT / command[command.index("--conf-file") + 1]
    assert Options.from_toml(file, ENVIRONMENT).state is not None


def test_the_tables_are_deleted_only_after_a_drain_that_knew_of_them() -> None:
    steps = text_of(PAGE).partition("## Taking it out")[2]
    assert steps.index("Its `state` is required") < steps.index("syphon --conf-file") < steps.index("Then the tables")


def test_the_example_for_the_syphon_says_what_is_missing_without_state() -> None:
    text = (ROOT / "conf" / "syphon.toml").read_text(encoding="utf-8")
    assert re.search(r"overflow is not drained.*\n(#.*\n)*# state = ", text)
