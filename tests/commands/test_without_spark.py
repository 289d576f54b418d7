"""Commands that need Spark, where it is not installed or does not start: one sentence and exit code 2, no traceback."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands.support import run, sentence, toml

ROOT = Path(__file__).resolve().parents[2]
SIDE = "Endpoint=sb://{}.invalid/;SharedAccessKeyName=n;SharedAccessKey=azE="
# In a process of its own, in which nobody has imported Spark: each command, and what it comes to.
PROGRAM = """
import json, sys
if sys.argv[1] == "no pyspark":
    sys.modules["pyspark"] = None
from tests.commands.support import run
found = []
for arguments in json.loads(sys.argv[2]):
    done = run(*arguments)
    found.append((done.code, done.out, done.err))
print(json.dumps(found))
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "pair.toml"
    sides = {"primary": SIDE.format("a"), "secondary": SIDE.format("b")}
    path.write_text(toml({**sides, "state": str(tmp_path / "state")}))
    return str(path)


def outcomes(how: str, *commands: list[str], **environ: str) -> list[tuple[int, str, str]]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how, json.dumps(commands)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
    )
    assert done.returncode == 0, done.stderr
    return [(code, out, err) for code, out, err in json.loads(done.stdout)]


def test_without_pyspark_it_says_what_to_install(file: str) -> None:
    with_file = ["--conf-file", file]
    commands = [["syphon"], ["replay", "--all"], ["replay", "--entity", "x"], ["quarantine", "list"]]
    for command, (code, out, err) in zip(
        commands, outcomes("no pyspark", *([*command, *with_file] for command in commands)), strict=True
    ):
        assert (code, out) == (2, ""), command
        assert "needs pyspark; install it from a clone of the project: pip install '.[spark]'." in err, command
        assert err.startswith("spark-sb-sink: ")
        assert err.count("\n") == 1


def test_json_of_a_syphon_takes_until_empty(file: str) -> None:
    assert "--json prints the outcome of --until-empty" in sentence(run("syphon", "--conf-file", file, "--json"))


def test_a_java_that_starts_no_spark_is_one_sentence_with_what_to_do(file: str, tmp_path: Path) -> None:
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        "#!/bin/sh\n"
        'case "$*" in *-version*) echo \'openjdk version "17.0.1"\' >&2; exit 0;; esac\n'
        "echo 'Error: no room for this heap' >&2; exit 1\n"
    )
    java.chmod(0o755)
    commands = [["syphon", "--conf-file", file], ["quarantine", "list", "--conf-file", file]]
    syphon, listed = outcomes("as it is", *commands, JAVA_HOME=str(java.parents[1]))
    for code, out, err in (syphon, listed):
        assert (code, out) == (2, "")
        assert "spark-sb-sink: Spark did not start: " in err
        assert "`spark-sb-sink doctor --no-spark`" in err
        assert "Traceback" not in err
    assert "Error: no room for this heap" in listed[2], "Java's own words are told"
