"""What the commands share: options from a file, a table for people, JSON for programs. Knows no command."""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from spark_sb_sink.commands import fail
from spark_sb_sink.durations import parse_duration
from spark_sb_sink.errors import SparkSbSinkError
from spark_sb_sink.options import Options

ConfFile = Annotated[str, typer.Option("--conf-file", help="A TOML file with the options.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on standard output.")]

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


@contextmanager
def told_errors() -> Iterator[None]:
    """What goes wrong in a way that we know is a sentence and exit code 2."""
    try:
        yield
    except SparkSbSinkError as error:
        fail(str(error))


def load(conf_file: str, **changes: Any) -> Options:
    """The options of the file; flags go before what stands there."""
    with told_errors():
        return Options.from_toml(conf_file, changes={key: value for key, value in changes.items() if value is not None})


def duration(flag: str, text: str | None) -> float | None:
    """Seconds of a flag, or exit code 2 with a sentence that names it."""
    try:
        return None if text is None else parse_duration(text)
    except ValueError:
        fail(f'{flag} got {text!r}, but takes a duration such as "10m".')


def print_json(value: Any) -> None:
    """One document on standard output."""
    print(json.dumps(value, indent=2, default=_plain))


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    raise TypeError(type(value).__name__)


def console() -> Console:
    """Standard output, as wide as it is; in a pipe without colours, and lines are not cut there."""
    return Console(file=sys.stdout, highlight=False, soft_wrap=False, emoji=False, markup=False)


def heading(text: str) -> Text:
    return Text(text, style="bold")


def table(*columns: str, right: Sequence[str] = ()) -> Table:
    """A table that folds what does not fit; `right` are the columns of numbers."""
    made = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for name in columns:
        made.add_column(name, justify="right" if name in right else "left", overflow="fold", no_wrap=name in right)
    return made


def verdict(word: str) -> Text:
    """ok, warn or fail, in its colour where there are colours."""
    return Text(word, style=_STYLES.get(word, ""))


def number(value: float | None) -> str:
    """With commas between thousands; a question mark for what is not known."""
    return "?" if value is None else f"{value:,}"


def moment(value: datetime | None) -> str:
    return "" if value is None else value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def size(value: float | None) -> str:
    """Bytes for people."""
    if value is None:
        return "?"
    for unit in ("B", "KB", "MB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.2f} GB"
