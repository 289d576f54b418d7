"""The moving core as a plain process that dies, as by kill -9, at a moment of its own choosing.

python -m tests.syphon.mover OPTIONS_FILE PHASE

For each line with a folder and a seed as JSON, one process that works and dies; its exit code is a line of the answer.
Forked, before anything runs here, as Spark forks its workers: a new Python would take longer to start than to die.
"""

import asyncio
import json
import os
import random
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from spark_sb_sink.options import Options
from spark_sb_sink.syphon import drain_for
from spark_sb_sink.syphon.send import Lane
from spark_sb_sink.syphon.settle import Settler
from spark_sb_sink.wire import COMPLETE, DEFER, RawReceiver

PHASES = ("between receive and send", "between send and settle", "while deferring", "while draining deferred")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def doom(phase: str, rng: random.Random) -> None:
    """Make the process die at one of the first moments of that phase, or a little into it."""
    # Messages are put aside and fetched again many at a time, so those phases have few moments, and each lasts longer.
    rare = phase in PHASES[2:]
    left = 1 if rare else rng.randint(1, 3)
    delay = rng.choice((0.0, rng.uniform(0, 0.03 if rare else 0.01)))

    def wrap(owner: Any, name: str, counts: Callable[..., bool], *, after: bool = False) -> None:
        plain: Callable[..., Awaitable[Any]] = getattr(owner, name)

        async def dying(*args: Any, **named: Any) -> Any:
            nonlocal left
            result = await plain(*args, **named) if after else None
            if counts(*args):
                left -= 1
                if left == 0:
                    asyncio.get_running_loop().call_later(delay, die) if delay else die()
            return result if after else await plain(*args, **named)

        setattr(owner, name, dying)

    if phase == PHASES[0]:
        wrap(Lane, "_attempt", lambda *_: True)
    elif phase == PHASES[1]:
        wrap(Settler, "settle", lambda _, items, outcome, *__: outcome == COMPLETE)
    elif phase == PHASES[2]:
        wrap(Settler, "settle", lambda _, items, outcome, *__: outcome == DEFER and not all(i.deferred for i in items))
    elif phase == PHASES[3]:
        wrap(RawReceiver, "receive_deferred", lambda *_: True, after=True)


def move(file: str, folder: str, phase: str, seed: int) -> None:
    doom(phase, random.Random(seed))
    options = Options.from_dict(json.loads(Path(file).read_text()))
    drain_for(options, folder, range(options.backlog_queue_count)).run(60)


def main(file: str, phase: str) -> None:
    for line in sys.stdin:
        folder, seed = json.loads(line)
        child = os.fork()
        if child == 0:
            try:
                move(file, folder, phase, seed)
            except Exception:  # noqa: BLE001 - the parent tells that it did not die
                traceback.print_exc()
            os._exit(1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
