"""`python -m tests.bench page`: the tables and plots of docs/performance.md, from the runs in docs/performance/*.json.

A run gets there by `--to docs/performance/NAME.json`. Between the markers nothing is written by hand; a test says so.
"""

import argparse
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.bench import tables
from tests.bench.harness import Row
from tests.bench.plot import charts_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "performance.md"
_BLOCK = re.compile(r"(<!-- begin ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

Runs = dict[str, Row]
MADE: dict[str, tuple[str, Callable[[list[Row]], str]]] = {
    "sink": ("sink", tables.sink),
    "sink-limits": ("sink", tables.sink_limits),
    "syphon": ("syphon", tables.syphon),
    "syphon-limits": ("syphon", tables.syphon_limits),
    "batch": ("batch", tables.batch),
    "failover": ("failover", tables.failover),
    "scale": ("scale", tables.scale),
}
"""By the name of a block: the run that it is of, and what makes it."""


def runs(folder: Path) -> Runs:
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))}


def page(text: str, found: Runs) -> str:
    """The same with all blocks made anew."""

    def made(match: "re.Match[str]") -> str:
        begin, name, end = match.groups()
        return f"{begin}{block(name, found)}\n{end}"

    return _BLOCK.sub(made, text)


def block(name: str, found: Runs) -> str:
    if name == "aims":
        return tables.aims({each: run["rows"] for each, run in found.items()})
    program, make = MADE[name]
    run = found[program]
    where = f"{run['cores']} cores, load {run['load']:g} when it began"
    return f"`{run['command']}` ({where}):\n\n{make(run['rows'])}"


def plots(found: Runs) -> dict[str, str]:
    """SVGs by the name of their file."""
    return {f"{name}.svg": chart.svg() for run in found.values() for name, chart in charts_of(run["rows"]).items()}


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench page", description=__doc__)
    parser.parse_args(words)
    folder = PAGE.with_suffix("")
    found = runs(folder)
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")
    for name, svg in plots(found).items():
        (folder / name).write_text(svg, encoding="utf-8")
    return 0
