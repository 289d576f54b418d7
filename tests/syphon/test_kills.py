"""A syphon that is killed anywhere loses nothing; what it sends twice has the message id that it had.

Each run takes other moments, by a seed that is printed; SYPHON_SEED takes those of that run again. Twenty times in each
phase by hand: SYPHON_KILLS=20 pytest tests/syphon/test_kills.py
"""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from spark_sb_sink.amqp import decode_message
from spark_sb_sink.broker.faults import Refuse
from tests.syphon.field import SHORT, Field
from tests.syphon.mover import PHASES

KILLS = int(os.environ.get("SYPHON_KILLS", "5"))
SEED = int(os.environ.get("SYPHON_SEED", "0")) or random.randrange(1, 1_000_000)
DEFERRED = (PHASES[2], PHASES[3])


@pytest.mark.parametrize("phase", PHASES)
def test_killed_at_any_moment_nothing_is_lost(field: Field, tmp_path: Path, phase: str) -> None:
    print(f"SYPHON_SEED={SEED}")
    strict = {"requires_duplicate_detection": True}
    dead, well, once = field.entity(**strict), field.entity(), field.entity(**strict)
    times = {"failover_interval": "0s", "ping_interval": "1s"}
    field._queues = 1  # made here as pairing makes it: who is killed ten times has ten deliveries that count
    field.secondary.create_queue(field.queue(0), max_delivery_count=2**31 - 1)
    drain = field.drain(**times)
    options = {
        "primary": field.primary.connection_string,
        "secondary": field.secondary.connection_string,
        "primary_name": field.name,
        **SHORT,
        **times,
    }
    file = tmp_path / "options.json"
    file.write_text(json.dumps(options))
    ids: dict[str, list[str]] = {dead: [], well: [], once: []}

    def more(tag: str) -> None:
        for entity, known in ids.items():
            known += field.backlog_for(entity, 300, tag=tag)

    hung = field.primary.hang(Refuse(), dead) if phase in DEFERRED else None
    if phase == PHASES[3]:
        more("first-")
        drain.run(60, until=lambda: field.in_backlog()["deferred"] == 300)
        field.primary.undo(hung)
        hung = None
    command = [sys.executable, "-m", "tests.syphon.mover", str(file), phase]
    with (
        (tmp_path / "told").open("w") as told,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=told, text=True) as mover,
    ):
        assert mover.stdin is not None
        assert mover.stdout is not None
        for kill in range(KILLS):
            if phase != PHASES[3]:
                more(f"{kill}-")
            folder = tmp_path / str(kill)
            folder.mkdir()
            mover.stdin.write(json.dumps([str(folder), SEED + kill]) + "\n")
            mover.stdin.flush()
            assert mover.stdout.readline().strip() == str(-signal.SIGKILL), (tmp_path / "told").read_text()
            field.secondary.expire_locks(field.queue(0))
            if phase == PHASES[3] and not field.in_backlog()["deferred"]:
                # All came home between two deaths: put more aside.
                hung = field.primary.hang(Refuse(), dead)
                more(f"again-{kill}-")
                drain.run(60, until=lambda: field.in_backlog()["deferred"] == 300)
                field.primary.undo(hung)
                hung = None
    if hung is not None:
        field.primary.undo(hung)
    field.until_empty(drain, within=90)
    assert not field.dead_letters()
    assert [field.primary.counts(entity)["active"] for entity in (dead, once)] == [len(ids[dead]), len(ids[once])]
    for entity, wanted in ids.items():
        assert {decode_message(message).message_id for message in field.arrived(entity)} == set(wanted)
