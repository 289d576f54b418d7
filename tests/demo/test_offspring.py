"""Processes below one's own, found and ended. In a process apart: that of the tests has children that must live."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.test_cli import gone

PROGRAM = """
import json, subprocess, sys, time
from spark_sb_sink.demo import offspring
from spark_sb_sink.demo.offspring import Offspring

{look}
started = subprocess.Popen({command!r}, stdout=subprocess.PIPE, text=True)
told = [int(started.stdout.readline()) for _ in range({count})]
below = Offspring()
seen = sorted(process.pid for process in below.living())
{between}
ended = below.end({gently})
print(json.dumps({{"self": started.pid, "told": told, "seen": seen, "ended": ended, "again": below.end(0)}}))
"""
STUBBORN = "trap '' TERM; echo $$; while true; do sleep 0.1; done"
PARENT = "sleep 100 & echo $!; echo $$; wait"
LOOKS = {"by proc": "", "by ps": "offspring._processes = offspring._by_ps"}


def play(script: str, count: int, *, look: str = "", between: str = "", gently: float = 5.0) -> dict[str, Any]:
    code = PROGRAM.format(look=look, command=["sh", "-c", script], count=count, between=between, gently=gently)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("look", LOOKS)
def test_children_and_their_children_are_found_and_ended(look: str) -> None:
    if look == "by ps" and not Path("/bin/ps").exists():
        pytest.skip("there is no ps")
    found = play(PARENT, 2, look=LOOKS[look])
    assert set(found["told"]) <= set(found["seen"])
    assert found["ended"] is found["again"] is True
    assert all(gone(pid) for pid in found["told"])


def test_one_whose_parent_is_gone_is_ended_too() -> None:
    found = play(PARENT, 2, between="started.kill(); started.wait()")
    assert found["ended"]
    assert all(gone(pid) for pid in found["told"])


def test_one_that_does_not_listen_is_killed() -> None:
    found = play(STUBBORN, 1, gently=0.3)
    assert found["ended"]
    assert all(gone(pid) for pid in found["told"])


def test_other_processes_are_let_be() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        assert other.pid not in play(PARENT, 2)["seen"]
        assert other.poll() is None
        other.communicate(b"\n")
