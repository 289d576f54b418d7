"""`spark-sb-sink demo` as a program: the whole story, an end before its time, and what keeps it from starting."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import await_that
from tests.demo.program import demo
from tests.test_cli import run

KEYS = [
    "sent",
    "primary",
    "backlog",
    "overflow",
    "quarantine",
    "drained",
    "delivered",
    "lost",
    "duplicates",
    "failover_s",
    "failback_s",
]
ROOT = Path(__file__).resolve().parents[2]
SLOW = 280
"""Seconds, on a machine that does much else."""


@pytest.mark.timeout(2 * SLOW)
def test_the_whole_story_loses_nothing_and_leaves_nothing_but_what_it_was_asked_to_keep(tmp_path: Path) -> None:
    kept = tmp_path / "kept" / "state"
    with demo(tmp_path, "--json", "--keep", str(kept)) as playing:
        await_that(lambda: playing.said("orders is disabled") or playing.process.poll() is not None, SLOW)
        [*_, jvm] = playing.java() or [0]
        mapped = Path(f"/proc/{jvm}/maps").read_text() if jvm else ""
        code = playing.wait(SLOW)
        told = "".join(playing.err)
        assert code == 0, told
        found = json.loads(playing.out[-1])
        assert playing.left_behind() == []
    assert len(playing.out) == 1
    assert list(found)[: len(KEYS)] == KEYS
    assert found["lost"] == found["duplicates"] == 0
    assert found["sent"] == found["delivered"] == sum(found[name] for name in KEYS[1:5]) > 0
    assert found["drained"] == found["backlog"] > 0
    assert found["primary"] > 0
    # At least the shortened interval; every message that went through the secondary is billed there, in and out.
    assert found["failover_s"] >= 3
    assert found["failback_s"] > 0
    assert [outage["what"] for outage in found["outages"]] == ["orders", "the whole primary"]
    assert found["operations_secondary"] >= 2 * found["backlog"]
    assert found["disagreements"] == []
    # A person reads it too, in a pipe: no control characters, and all of the story.
    assert not {letter for letter in told if letter < " "} - {"\n"}
    for text in (
        "shortened",
        "failover_interval 3s instead of 1m",
        "orders failed over after",
        "Reckoning",
        "What to type",
    ):
        assert text in told
    assert sorted(path.name for path in kept.iterdir()) == ["ledger", "transfers"]
    # All that the JVM had in a temporary folder it had in ours. The project itself may stand below one.
    usual = [line.split()[5] for line in mapped.splitlines() if " /tmp/" in line]
    assert jvm
    assert [path for path in usual if not path.startswith((str(playing.temporary), f"{ROOT}/"))] == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_spark_starts_leaves_nothing_behind(number: signal.Signals, tmp_path: Path) -> None:
    with demo(tmp_path) as playing:
        # Not the one that is only asked for its version before.
        await_that(lambda: playing.said("two namespaces") and playing.java(), 60)
        playing.process.send_signal(number)
        assert playing.wait(60) == 128 + number
        assert playing.left_behind() == []
        assert playing.out[-1] == "Stopped; nothing is left behind.\n"
        assert playing.err == []


def test_ctrl_c_in_the_middle_of_an_outage_leaves_nothing_behind(tmp_path: Path) -> None:
    with demo(tmp_path) as playing:
        await_that(lambda: playing.said("orders is disabled") or playing.process.poll() is not None, SLOW)
        assert len(playing.processes()) > 3, "broker, JVM, Python workers"
        playing.ctrl_c()
        assert playing.wait(60) == 130, playing.out
        assert playing.left_behind() == []
        assert playing.err == []


def test_a_reader_that_has_seen_enough_ends_it(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    with demo(tmp_path, stdout=writer) as playing:
        os.close(writer)
        assert os.read(reader, 4096).startswith(b"0:0")
        os.close(reader)
        assert playing.wait(SLOW) == 128 + signal.SIGPIPE
        assert playing.left_behind() == []
        assert playing.err == []


def test_a_jvm_that_does_not_start_is_told_with_its_reason(tmp_path: Path) -> None:
    """Spark's own words are hidden, but not when they are needed."""
    java = tmp_path / "home" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        '#!/bin/sh\ncase "$*" in *-version*) echo \'openjdk version "17.0.1"\' >&2; exit 0;; esac\n'
        "echo 'Error: could not create the Java Virtual Machine: no room' >&2\nexit 1\n"
    )
    java.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "spark_sb_sink.cli", "demo"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "JAVA_HOME": str(tmp_path / "home")},
    )
    assert done.returncode == 3
    assert "spark-sb-sink: the demo failed: " in done.stdout
    assert "could not create the Java Virtual Machine: no room" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_without_java_it_says_so_in_one_sentence(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "spark_sb_sink.cli", "demo"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "JAVA_HOME": str(tmp_path)},
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("spark-sb-sink: Spark needs Java 17 or newer, but JAVA_HOME is ")
    assert done.stderr.count("\n") == 1


class TestKeep:
    def test_takes_no_folder_with_something_in_it(self, tmp_path: Path) -> None:
        (tmp_path / "x").touch()
        self.is_refused(tmp_path, "which is not empty; it takes a folder that is new or empty.")

    def test_takes_no_file(self, tmp_path: Path) -> None:
        (tmp_path / "x").touch()
        self.is_refused(tmp_path / "x", "which cannot be used (File exists); it takes a folder, new or empty.")

    def test_takes_nothing_below_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "x").touch()
        self.is_refused(tmp_path / "x" / "y", "which cannot be used (Not a directory)")

    def test_takes_nothing_that_cannot_be_made(self) -> None:
        self.is_refused(Path("/proc/nothing"), "which cannot be used (")

    def is_refused(self, folder: Path, text: str) -> None:
        done = run("demo", "--keep", str(folder))
        assert done.returncode == 2
        assert done.stdout == ""
        assert done.stderr.startswith(f"spark-sb-sink: --keep got {str(folder)!r}, ")
        assert text in done.stderr
        assert done.stderr.count("\n") == 1
