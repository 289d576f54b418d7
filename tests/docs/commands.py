"""Runs shell commands as the pages show them, up to where they would leave this process: no namespace, no Spark.

So a file is read, and every argument is looked at, by the command itself.
"""

import contextlib
import importlib.util
import io
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

import pytest
import typer
from typer.testing import CliRunner

from spark_sb_sink import __version__, pipeline
from spark_sb_sink.cli import app
from spark_sb_sink.option_loading import PIPELINE_TABLES
from spark_sb_sink.options import Options
from spark_sb_sink.pipeline_options import PipelineOptions
from spark_sb_sink.sessions import _DELTA
from spark_sb_sink.syphon import job
from tests.docs.pages import COMING_COMMANDS, ROOT

JOBS: dict[str, Callable[[Sequence[str]], int]] = {"pipeline.py": pipeline.main, "syphon.py": job.main}
_SUBMIT_OPTIONS = frozenset(
    {
        "--master",
        "--deploy-mode",
        "--name",
        "--packages",
        "--conf",
        "--jars",
        "--py-files",
        "--archives",
        "--num-executors",
    }
)
_SCALA = "2.13"


class WrongCommandError(AssertionError):
    """A command that would not do what the page says."""


def commands_in(code: str) -> Iterator[list[str]]:
    """The commands of a block, as lists of words."""
    for line in code.replace("\\\n", " ").splitlines():
        words = shlex.shlex(line, posix=True, punctuation_chars="&|;")
        words.whitespace_split = True
        command: list[str] = []
        for word in words:
            if set(word) <= set("&|;"):
                yield command
                command = []
            else:
                command.append(word)
        if command:
            yield command


def check(words: Sequence[str]) -> None:
    """Raises `WrongCommandError` for what cannot be right, and for what nobody here knows."""
    name = Path(words[0]).name
    if name not in _CHECKS:
        raise WrongCommandError(f"no runner covers {name}: {shlex.join(words)}")
    _CHECKS[name](words[1:])


def _command(words: Sequence[str]) -> tuple[Any, list[str]]:
    """The command of spark-sb-sink that the words name, and its arguments; None for one that is to come."""
    # Typer has Click inside or beside it, depending on its version: no class of theirs is named here.
    command, rest = typer.main.get_command(app), list(words)
    while commands := getattr(command, "commands", None):
        if not rest or rest[0].startswith("-"):
            return command, rest
        if rest[0] not in commands:
            if command.name == "spark-sb-sink" and rest[0] in COMING_COMMANDS:
                return None, rest[1:]
            raise WrongCommandError(f"spark-sb-sink has no command {rest[0]}: {shlex.join(words)}")
        command, rest = commands[rest[0]], rest[1:]
    return command, rest


class EdgeReached(BaseException):
    """The command took all that it was given, and would now start Spark or talk to a namespace."""


EDGES = (
    "spark_sb_sink.commands.broker._serve",
    "spark_sb_sink.commands.demo.require_java",
    "spark_sb_sink.commands.quarantine.session",
    "spark_sb_sink.commands.replay.session",
    "spark_sb_sink.commands.status.DriverLoop",
    "spark_sb_sink.commands.syphon.start",
    "spark_sb_sink.doctor.machine",
    "spark_sb_sink.pairing.pair",
    "spark_sb_sink.pipeline.job_session",
    "spark_sb_sink.syphon.job.job_session",
)
READERS_FILES = ("pair.toml",)
"""Files that a page speaks of as the reader's own. Like those with a path on somebody's machine they are taken to be
a good one, with `state`."""
GOOD = "conf/topics-with-sessions.toml"


@contextmanager
def up_to_the_edge() -> Iterator[None]:
    """In the folder of the project, where the pages' commands are typed."""

    def reached(*args: object, **kwargs: object) -> NoReturn:
        raise EdgeReached

    with contextlib.chdir(ROOT), pytest.MonkeyPatch.context() as patch, contextlib.suppress(EdgeReached):
        for edge in EDGES:
            patch.setattr(edge, reached)
        yield


def _with_file(arguments: Sequence[str]) -> list[str]:
    given = list(arguments)
    if "--conf-file" in given[:-1]:
        at = given.index("--conf-file") + 1
        given[at] = GOOD if given[at] in READERS_FILES or given[at].startswith("/") else given[at]
    return given


def _ours(arguments: Sequence[str]) -> None:
    _command(arguments)
    with up_to_the_edge():
        done = CliRunner().invoke(app, _with_file(arguments), catch_exceptions=False)
        if done.exit_code != 0:
            raise WrongCommandError(f"spark-sb-sink {shlex.join(arguments)}: {done.stderr or done.stdout}")


def inline(text: str) -> None:
    """A command in running text may leave out what is required, but names no option that is not there."""
    command, rest = _command(shlex.split(text)[1:])
    known = {option for parameter in command.params for option in parameter.opts} if command else set()
    for word in rest if command else ():
        if word.startswith("--") and word.split("=")[0] not in known | {"--help"}:
            raise WrongCommandError(f"{word} is no option: {text}")


@dataclass(frozen=True, slots=True)
class Submitted:
    """A line of spark-submit, taken apart."""

    options: tuple[tuple[str, str], ...]
    script: str
    arguments: tuple[str, ...]

    def values(self, option: str) -> list[str]:
        return [value for name, value in self.options if name == option]

    @property
    def here(self) -> bool:
        """Whether it can be run on this machine without fetching anything."""
        return not self.values("--packages") and not any("://" in value for value in self.values("--master"))


def submitted(arguments: Sequence[str]) -> Submitted:
    options, rest = list[tuple[str, str]](), list(arguments)
    while rest and rest[0].startswith("--"):
        if rest[0] not in _SUBMIT_OPTIONS:
            raise WrongCommandError(f"{rest[0]} is not known of spark-submit")
        options.append((rest[0], rest[1]))
        rest = rest[2:]
    if not rest:
        raise WrongCommandError("spark-submit takes a script")
    return Submitted(tuple(options), rest[0], tuple(rest[1:]))


def _submit(arguments: Sequence[str]) -> None:
    line = submitted(arguments)
    spark, delta = version("pyspark"), version("delta-spark")
    packages = {
        f"org.apache.spark:spark-sql-kafka-0-10_{_SCALA}:{spark}",
        f"io.delta:delta-spark_{spark.rpartition('.')[0]}_{_SCALA}:{delta}",
    }
    for package in (part for value in line.values("--packages") for part in value.split(",")):
        if package not in packages:
            raise WrongCommandError(f"{package} is not one of those that fit: {sorted(packages)}")
    settings = dict(value.split("=", 1) for value in line.values("--conf"))
    if any("delta-spark" in value for value in line.values("--packages")) and not _DELTA.items() <= settings.items():
        raise WrongCommandError("Delta's package without its two settings")
    _job(line.script, line.arguments)


def _job(script: str, arguments: Sequence[str]) -> None:
    path = script.removeprefix("local://")
    if not (ROOT / path).exists() and not path.startswith("/"):
        raise WrongCommandError(f"there is no {script}")
    told = io.StringIO()
    with contextlib.redirect_stderr(told):
        try:
            with up_to_the_edge():
                code = JOBS[Path(path).name](_with_file(arguments))
                raise WrongCommandError(f"{script} {shlex.join(arguments)} ended with {code}: {told.getvalue()}")
        except SystemExit as error:
            raise WrongCommandError(f"{script} does not take {shlex.join(arguments)}: {told.getvalue()}") from error


def load_options(tables: dict[str, Any], path: Path, *, whole: bool = False) -> None:
    """The file as the jobs read it: a pipeline where it has a source, else options."""
    if whole or any(name in tables for name in PIPELINE_TABLES):
        PipelineOptions.from_toml(path)
    else:
        Options.from_toml(path)


def _pip(arguments: Sequence[str]) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    if arguments[0] not in ("install", "wheel"):
        raise WrongCommandError(f"pip {arguments[0]}")
    for argument in arguments[1:]:
        if argument.startswith("spark-sb-sink") and ".dev" in __version__:
            raise WrongCommandError("no index has spark-sb-sink before its first release")
        match = re.fullmatch(r"(?:spark-sb-sink|\.)(?:\[([\w,]+)\])?(?:==[\d.]+)?", argument)
        if match is None and not argument.startswith("-"):
            raise WrongCommandError(f"pip {arguments[0]} {argument}")
        if match is not None and match[1] and not set(match[1].split(",")) <= extras.keys():
            raise WrongCommandError(f"there are no extras {match[1]}; there are {sorted(extras)}")


def _python(arguments: Sequence[str]) -> None:
    if arguments[0] != "-m":
        _job(arguments[0], arguments[1:])
    elif importlib.util.find_spec(arguments[1]) is None:
        raise WrongCommandError(f"there is no module {arguments[1]}")


def _export(arguments: Sequence[str]) -> None:
    used = {name for path in (ROOT / "conf").glob("*.toml") for name in re.findall(r"\$\{(\w+)\}", path.read_text())}
    for argument in arguments:
        name = argument.partition("=")[0]
        if name not in used and not name.startswith("AZURE_"):
            raise WrongCommandError(f"no file in conf/ asks for {name}")


def _pytest(arguments: Sequence[str]) -> None:
    for argument in arguments:
        if not argument.startswith("-") and not (ROOT / argument).exists():
            raise WrongCommandError(f"there is no {argument}")


_CHECKS: dict[str, Callable[[Sequence[str]], None]] = {
    "spark-sb-sink": _ours,
    "spark-submit": _submit,
    "pip": _pip,
    "python": _python,
    "pytest": _pytest,
    "export": _export,
}
