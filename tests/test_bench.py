"""The benchmarks run to their end and tell what they promise; their figures are for people, not for tests."""

import json
import subprocess
import sys
from pathlib import Path


def test_the_broker_benchmark_has_a_short_form_whose_last_line_is_json() -> None:
    arguments = ["-m", "tests.bench", "broker", "--json", "--rounds", "1", "--messages", "2000"]
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, cwd=Path(__file__).parent.parent, check=True
    )
    rows = json.loads(done.stdout.splitlines()[-1])["rows"]
    assert [row["case"] for row in rows] == ["ingest, discard", "ingest, stored", "settled", "memory over payload"]
    assert all(row["per_s"] > 0 for row in rows[:3])


def test_an_unknown_benchmark_is_one_sentence_and_exit_code_2() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench", "nothing"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent.parent,
        check=False,
    )
    assert done.returncode == 2
    assert "broker" in done.stderr
