"""What all benchmarks share: rounds that are interleaved, the median and spread of each figure, and what is told."""

import argparse
import json
import os
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

Row = dict[str, Any]
T = TypeVar("T")
SIGNIFICANT = 4


@dataclass
class Samples:
    """The figures of one case over all rounds, by name."""

    by_name: dict[str, list[float]] = field(default_factory=dict)

    def add(self, **figures: float) -> None:
        for name, figure in figures.items():
            self.by_name.setdefault(name, []).append(figure)

    def median(self, name: str) -> float:
        return statistics.median(self.by_name[name])

    def derive(self, name: str, function: Callable[..., float], *of: str) -> None:
        """A figure made of others, round by round, so that it has a spread of its own."""
        self.by_name[name] = [function(*figures) for figures in zip(*(self.by_name[each] for each in of), strict=True)]

    def row(self) -> Row:
        """The median of each figure under its name, and beside it the least and the most of all rounds."""
        row: Row = {}
        for name, figures in self.by_name.items():
            row[name] = tidy(statistics.median(figures))
            if len(figures) > 1:
                row[f"{name}_spread"] = [tidy(min(figures)), tidy(max(figures))]
        return row


def tidy(figure: float) -> float:
    """As many digits as a measurement on a shared machine deserves."""
    rounded = float(f"{figure:.{SIGNIFICANT}g}")
    return int(rounded) if rounded.is_integer() else rounded


def interleaved(
    rounds: int,
    variants: Mapping[str, Callable[[], Mapping[str, float]]],
    samples: Samples,
    before: Callable[[], object] = lambda: None,
) -> None:
    """All variants in each round, each round beginning with another one, so that none always has the quiet moment.

    `before` goes before each measurement and is not measured.
    """
    for number in range(rounds):
        one_round(number, variants, samples, before)


def one_round(
    number: int,
    variants: Mapping[str, Callable[[], Mapping[str, float]]],
    samples: Samples,
    before: Callable[[], object] = lambda: None,
) -> None:
    """Each variant once, beginning with another one than the round before."""
    for name in turned(list(variants), number):
        before()
        samples.add(**{f"{name}_{figure}": value for figure, value in variants[name]().items()})


def turned(names: Sequence[T], number: int) -> list[T]:
    turn = number % len(names)
    return [*names[turn:], *names[:turn]]


def ratio(ours: float, theirs: float) -> float:
    return ours / max(theirs, 0.01)


@dataclass(frozen=True)
class Given:
    """What the command line said."""

    program: str
    rounds: int
    quick: bool = False
    json: bool = False
    only: tuple[str, ...] = ()
    to: Path | None = None

    @property
    def command(self) -> str:
        """What measures the same again."""
        words = ["python -m tests.bench", self.program, f"--rounds {self.rounds}"]
        words += ["--quick"] if self.quick else []
        return " ".join([*words, *(f'--only "{text}"' for text in self.only)])

    def wants(self, case: str) -> bool:
        return not self.only or any(word in case for word in self.only)


def arguments(program: str, words: Sequence[str], about: str | None, rounds: int) -> Given:
    """Of every benchmark the same."""
    parser = argparse.ArgumentParser(
        prog=f"python -m tests.bench {program}", description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help='the last line is {"rows": [ … ]}')
    parser.add_argument("--rounds", type=int, default=None, help=f"how often each case is measured (default {rounds})")
    parser.add_argument("--quick", action="store_true", help="few messages, one round: to see that it runs")
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="only cases whose name has this")
    parser.add_argument(
        "--to", type=Path, metavar="FILE", help="also write the rows, with the command, to a file for `page`"
    )
    given = parser.parse_args(words)
    wanted = given.rounds or (1 if given.quick else rounds)
    return Given(program, wanted, given.quick, given.json, tuple(given.only), given.to)


def finish(rows: Iterable[Row], given: Given) -> int:
    """Tell each case as soon as it is known, and all of them at the end."""
    found: list[Row] = []
    run = {"command": given.command, "cores": os.cpu_count(), "load": tidy(os.getloadavg()[0]), "rows": found}
    for row in rows:
        print("  ".join(f"{key} {_text(value)}" for key, value in row.items()), flush=True)
        found.append(row)
    if given.to is not None:
        given.to.write_text(json.dumps(run, indent=1) + "\n", encoding="utf-8")
    if given.json:
        print(json.dumps({"rows": found}), flush=True)
    return 0


def _text(value: object) -> str:
    return "…".join(map(str, value)) if isinstance(value, list) else str(value)
