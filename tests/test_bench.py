"""The benchmarks run to their end and tell what they promise; their figures are for people, not for tests."""

import json
import re
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.bench import batch, failover, page, scale, sink, syphon
from tests.bench.harness import Samples, interleaved, ratio, tidy
from tests.bench.plot import charts_of

ROOT = Path(__file__).parent.parent

KEYS = {
    "sink": (
        {"bytes", "entities"},
        {"ours_per_s", "sdk_batch_per_s", "sdk_batch_kept_per_s", "sdk_single_per_s", "noop_per_s"}
        | {"messages", "sdk_single_messages", "ratio_vs_sdk_batch", "ratio_vs_sdk_batch_kept", "ratio_vs_one_entity"},
        {"ours_cpu_us", "sdk_batch_cpu_us", "sdk_batch_kept_cpu_us", "noop_cpu_us", "cpu_ratio", "broker_cpu_us"}
        | {"sdk_link_ms"},
    ),
    "syphon": (
        {"rtt_ms", "depth"},
        {"ours_per_s", "sdk_per_s", "ratio", "ours_cpu_us", "sdk_messages"},
        {"broker_cpu_us", "cpu_ratio"},
    ),
    "batch": ({"case", "entities"}, {"ours_ms", "bare_ms"}, {"overhead_ms"}),
    "failover": (
        {"fault", "interval_s"},
        {"failover_s", "failback_s", "before_per_s", "during_per_s", "after_per_s"},
        set(),
    ),
    "scale": (
        {"case", "bytes"},
        {"ours_per_s", "messages", "worker_peak_mb", "driver_peak_mb"},
        {"ours_cpu_us", "broker_cpu_us"},
    ),
}
"""For each program: what names a case, figures that are more than zero, and figures that so short a run cannot tell."""
OF_A_CASE = {
    "entities": {"entities", "noop_cpu_us", "driver_jvm_peak_mb"},
    "size": {"entities", "noop_cpu_us", "driver_jvm_peak_mb"},
    "depth": {"depth", "growth_mb"},
}
"""What the rows of `scale` have besides, as each case stands elsewhere."""


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
for name in sys.argv[2:]:
    to = f"{{sys.argv[1]}}/{{name}}.json"
    assert importlib.import_module(f"tests.bench.{{name}}").main(["--quick", "--json", "--to", to]) == 0
    print("{END}", name, flush=True)
"""


@pytest.mark.timeout(600)
def test_each_benchmark_with_spark_has_a_short_form_with_the_keys_that_it_promises(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TAKE_TURNS, str(tmp_path), *WITH_SPARK],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
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
    done = bench(program, "--quick", "--json", "--to", str(tmp_path / f"{program}.json"))
    assert done.returncode == 0, done.stderr[-4000:]
    check(program, done.stdout, tmp_path)


def check(program: str, told: str, folder: Path) -> None:
    rows = json.loads(told.splitlines()[-1])["rows"]
    names, positive, any_number = KEYS[program]
    assert (
        len({tuple(row.get(name) for name in ("entities", "depth", *sorted(names))) for row in rows}) == len(rows) > 0
    )
    for row in rows:
        assert names | positive | any_number <= row.keys()
        assert all(row[key] > 0 for key in positive), row
        assert all(isinstance(row[key], int | float) for key in any_number)
        if program == "scale":
            assert row.keys() >= OF_A_CASE[row["case"]]
    run = json.loads((folder / f"{program}.json").read_text())
    assert (run["rows"], run["command"]) == (rows, f"python -m tests.bench {program} --rounds 1 --quick")
    for name, make in page.MADE.values():
        if name == program:
            assert make(rows).startswith("|")
    for chart in charts_of(rows).values():
        assert ElementTree.fromstring(chart.svg()).tag.endswith("svg")


def test_the_page_and_its_plots_are_those_of_the_runs_beside_it() -> None:
    """If this fails, `python -m tests.bench page` mends it."""
    text = page.PAGE.read_text(encoding="utf-8")
    folder = page.PAGE.with_suffix("")
    found = page.runs(folder)
    assert page.page(text, found) == text
    assert {name: (folder / name).read_text(encoding="utf-8") for name in page.plots(found)} == page.plots(found)
    assert {file.name for file in folder.glob("*.svg")} == page.plots(found).keys()
    assert set(re.findall(r"<!-- begin ([a-z-]+) -->", text)) == {"aims", *page.MADE}
    assert all(f"performance/{name}" in text for name in page.plots(found))


def test_a_full_run_has_every_case_that_is_asked_for() -> None:
    assert {(size.bytes, entities) for size, entities in sink.cases(quick=False)} == set(product((200, 4096), (1, 20)))
    assert {case[:2] for case in syphon.cases(quick=False)} == set(product((0, 10), (2_000, 100_000)))
    healths = [f"{health}{delta}" for health in ("healthy", "failed over") for delta in ("", ", with Delta")]
    assert set(batch.cases(quick=False)) == set(product(healths, (1, 50)))
    faults = {fault for fault, _ in failover.cases(quick=False)}
    assert faults >= {"connections refused", "black hole", "black hole after attach", "acknowledgement lost"}
    assert faults >= {"cut within a batch", "attach refused", "entity deleted", "entity disabled", "quota full"}
    assert set(failover.cases(quick=False)) == set(product(faults, (0.0, 5.0)))
    ends = {"entities": (1, 200), "size": (100, 200_000), "depth": (1_000, 200_000)}
    for case, (least, most) in ends.items():
        key = "bytes" if case == "size" else case
        of = [row[key] for row in scale.cases(quick=False) if row["case"] == case]
        assert (of[0], of[-1]) == (least, most)
        assert of == sorted(of)


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


def test_a_ratio_is_made_round_by_round_and_has_a_spread_of_its_own() -> None:
    samples = Samples()
    for ours, theirs in ((8.0, 4.0), (9.0, 3.0), (5.0, 1.0)):
        samples.add(ours=ours, theirs=theirs)
    samples.derive("ratio", ratio, "ours", "theirs")
    row = samples.row()
    assert (row["ratio"], row["ratio_spread"]) == (3, [2, 5])
