"""What all benchmarks share: rounds that are interleaved, the median and spread of each figure, and the last line."""

import argparse
import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Row = dict[str, Any]
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
    names = list(variants)
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            before()
            samples.add(**{f"{name}_{figure}": value for figure, value in variants[name]().items()})


@dataclass(frozen=True)
class Given:
    """What the command line said."""

    rounds: int
    quick: bool
    json: bool
    only: tuple[str, ...]

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
    given = parser.parse_args(words)
    return Given(given.rounds or (1 if given.quick else rounds), given.quick, given.json, tuple(given.only))


def finish(rows: Iterable[Row], given: Given) -> int:
    """Tell each case as soon as it is known, and all of them at the end."""
    found = []
    for row in rows:
        print("  ".join(f"{key} {_text(value)}" for key, value in row.items()), flush=True)
        found.append(row)
    if given.json:
        print(json.dumps({"rows": found}), flush=True)
    return 0


def _text(value: object) -> str:
    return "…".join(map(str, value)) if isinstance(value, list) else str(value)
