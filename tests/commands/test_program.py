"""Commands that read Delta as programs of their own, with a Spark that they start and stop themselves."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests import jvm
from tests.commands.conftest import ConfFile
from tests.commands.support import run
from tests.commands.tables import Tables

ROOT = Path(__file__).resolve().parents[2]
MARK = "---- the next one"
# One Java for all of them: it is the dear part. Each makes a session and stops it.
PROGRAM = f"""
import json, sys
from spark_sb_sink.cli import app
for arguments in json.loads(sys.argv[1]):
    try:
        app(arguments)
    except SystemExit as ended:
        print("{MARK}", ended.code, flush=True)
"""


def test_each_prints_one_document_and_nothing_else_also_when_it_starts_spark_itself(
    tables: Tables, conf_file: ConfFile
) -> None:
    tables.quarantine("orders", "o-1", "o-2")
    file = conf_file(state=tables.path)
    assert run("pair", "--conf-file", file).code == 0
    given = ["--conf-file", str(file), "--json"]
    commands = [
        ["status", *given],
        ["doctor", *given],
        ["quarantine", "list", *given],
        ["replay", *given, "--all", "--dry-run"],
    ]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(commands)],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "PYTHONPATH": str(ROOT), "SPARK_SUBMIT_OPTS": f"-XX:TieredStopAtLevel=1 {jvm.INTERPRETED}"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    *documents, rest = done.stdout.split(f"{MARK} 0\n")
    assert rest == ""
    status, doctor, listed, replay = map(json.loads, documents)
    assert status["state"]["quarantine"] == listed["total"] == replay["matched"] == 2
    assert doctor["ok"]
    assert {check["check"]: check["verdict"] for check in doctor["checks"]}["state"] == "ok"
