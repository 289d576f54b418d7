"""The benchmarks run to their end and tell what they promise; their figures are for people, not for tests."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.bench.harness import Samples, interleaved, tidy

ROOT = Path(__file__).parent.parent

KEYS = {
    "sink": (
        {"bytes", "entities"},
        {"ours_per_s", "sdk_batch_per_s", "sdk_single_per_s", "noop_per_s", "ratio_vs_sdk_batch"},
        {"ours_cpu_us", "sdk_batch_cpu_us", "noop_cpu_us", "cpu_ratio"},
    ),
    "syphon": ({"rtt_ms", "depth"}, {"ours_per_s", "sdk_per_s", "ratio"}, set()),
    "batch": ({"case", "entities"}, {"ours_ms", "bare_ms"}, {"overhead_ms"}),
    "failover": (
        {"fault", "interval_s"},
        {"failover_s", "failback_s", "before_per_s", "during_per_s", "after_per_s"},
        set(),
    ),
    "scale": ({"case", "bytes"}, {"ours_per_s", "worker_peak_mb"}, {"ours_cpu_us"}),
}
"""For each program: what names a case, figures that are more than zero, and figures that so short a run cannot tell."""


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.bench", *arguments], capture_output=True, text=True, cwd=ROOT, check=False
    )


def rows_of(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr[-4000:]
    return list(json.loads(done.stdout.splitlines()[-1])["rows"])


def test_the_broker_benchmark_has_a_short_form_whose_last_line_is_json() -> None:
    rows = rows_of(bench("broker", "--json", "--rounds", "1", "--messages", "2000"))
    assert [row["case"] for row in rows] == ["ingest, discard", "ingest, stored", "settled", "memory over payload"]
    assert all(row["per_s"] > 0 for row in rows[:3])


WITH_SPARK = ("batch", "sink", "scale")
"""They take turns in one process, and so in one JVM; the first one brings Delta."""
END = "the end of"
TAKE_TURNS = f"""
import importlib, sys
for name in sys.argv[1:]:
    assert importlib.import_module(f"tests.bench.{{name}}").main(["--quick", "--json"]) == 0
    print("{END}", name, flush=True)
"""


@pytest.mark.timeout(600)
def test_each_benchmark_with_spark_has_a_short_form_with_the_keys_that_it_promises(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TAKE_TURNS, *WITH_SPARK], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    said = done.stdout
    for program in WITH_SPARK:
        told, _, said = said.partition(f"{END} {program}\n")
        check(program, told, tmp_path)


@pytest.mark.parametrize("program", sorted(KEYS.keys() - {*WITH_SPARK}))
def test_each_benchmark_without_spark_has_a_short_form_with_the_keys_that_it_promises(
    program: str, tmp_path: Path
) -> None:
    done = bench(program, "--quick", "--json")
    assert done.returncode == 0, done.stderr[-4000:]
    check(program, done.stdout, tmp_path)


def check(program: str, told: str, tmp_path: Path) -> None:
    rows = json.loads(told.splitlines()[-1])["rows"]
    names, positive, any_number = KEYS[program]
    assert (
        len({tuple(row.get(name) for name in ("entities", "depth", *sorted(names))) for row in rows}) == len(rows) > 0
    )
    for row in rows:
        assert names | positive | any_number <= row.keys()
        assert all(row[key] > 0 for key in positive), row
        assert all(isinstance(row[key], int | float) for key in any_number)
    said = tmp_path / "said.txt"
    said.write_text(told, encoding="utf-8")
    drawn = bench("plot", str(said), "--to", str(tmp_path))
    assert drawn.returncode == 0, drawn.stderr
    for name in drawn.stdout.split():
        assert ElementTree.parse(name).getroot().tag.endswith("svg")


def test_an_unknown_benchmark_is_one_sentence_and_exit_code_2() -> None:
    done = bench("nothing")
    assert done.returncode == 2
    assert "broker" in done.stderr


def test_rounds_are_interleaved_and_begin_with_another_variant_each() -> None:
    order: list[str] = []

    def variant(name: str) -> Any:
        def run() -> dict[str, float]:
            order.append(name)
            return {"per_s": len(order)}

        return run

    samples = Samples()
    interleaved(3, {name: variant(name) for name in "abc"}, samples, before=lambda: order.append("-"))
    assert "".join(order) == "-a-b-c" + "-b-c-a" + "-c-a-b"
    assert samples.row()["a_per_s_spread"] == [2, 16]


def test_a_row_has_the_median_and_the_spread_of_all_rounds() -> None:
    samples = Samples()
    for figure in (3.0, 1.0, 100_000.0):
        samples.add(per_s=figure)
    assert samples.row() == {"per_s": 3, "per_s_spread": [1, 100_000]}
    assert tidy(123_456.0) == 123_500
