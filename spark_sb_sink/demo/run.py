"""Runs the demo: the story in a thread, the display and the signals in this one, and a clean end whatever happens."""

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TextIO

from spark_sb_sink.demo.backstage import Backstage
from spark_sb_sink.demo.display import Display, display_for
from spark_sb_sink.demo.ending import failure_lines, next_lines, reckoning_lines
from spark_sb_sink.demo.scene import Scene
from spark_sb_sink.demo.story import TARGETS, Performance

LOOK_EVERY = 0.1
FAILED = 3
NAME = "spark-sb-sink"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Caught:
    """The number of the first signal that came. A plain field: the handler may interrupt anything."""

    number: int | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.number = self.number or number


@contextlib.contextmanager
def _signals() -> Iterator[_Caught]:
    caught = _Caught()
    before = {number: signal.signal(number, caught) for number in _SIGNALS}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run(*, as_json: bool, keep: Path | None) -> int:
    """The exit code: 0 nothing was lost, 1 something was, 3 it could not be played to its end, 128 + n for a signal."""
    began = time.monotonic()
    with _signals() as caught, Backstage() as stage:
        scene = Scene(TARGETS)
        story = Performance(stage.folder, keep or stage.folder / "state", scene)
        words = stage.err if as_json else stage.out
        try:
            with display_for(words, scene) as display:
                story.start()
                _watch(story, display, caught)
                if caught.number is not None:
                    display.say([f"Stopping ({signal.Signals(caught.number).name}) ..."])
            code = _end(story, stage, caught)
            if code is not None:
                _say(words, _stopped(stage, keep) if code != FAILED else _failure(story, stage))
                return code
            assert story.reckoning is not None  # noqa: S101 - or there was an error
            _say(words, ["", *reckoning_lines(story.reckoning, time.monotonic() - began)])
            _say(words, next_lines(keep, _program()))
            if as_json:
                _say(stage.out, [json.dumps(story.reckoning.as_json())])
            return story.reckoning.exit_code
        except OSError:  # the terminal is closed, or whoever read the pipe has seen enough
            return 128 + (caught.number or signal.SIGPIPE)
        finally:
            if story.is_alive():
                _end(story, stage, caught)


def _watch(story: Performance, display: Display, caught: _Caught) -> None:
    while story.is_alive() and caught.number is None:
        display.update()
        time.sleep(LOOK_EVERY)
    display.update()


def _end(story: Performance, stage: Backstage, caught: _Caught) -> int | None:
    """End all that runs; the exit code, or none where the story came to its own end."""
    # A terminal sends Ctrl-C to the broker as well, and the story may learn of that before we learn of the signal.
    if story.error is not None:
        time.sleep(LOOK_EVERY)
    story.interrupt()
    clean = stage.end(story)
    if not clean:
        story.error = RuntimeError(f"some of its processes did not end: {', '.join(map(str, stage.left()))}")
        return FAILED
    if caught.number is not None:
        return 128 + caught.number
    return FAILED if story.error is not None else None


def _stopped(stage: Backstage, keep: Path | None) -> list[str]:
    left = [] if stage.remove() else [str(stage.folder)]
    left += [] if keep is None else [str(keep)]
    return [f"Stopped; nothing is left behind{' but ' if left else ''}{' and '.join(left)}."]


def _failure(story: Performance, stage: Backstage) -> list[str]:
    first, *rest = failure_lines(story.error or RuntimeError("for no reason that it knows"), stage.said())
    return ["", f"spark-sb-sink: the demo failed: {first}", *rest]


def _program() -> str:
    """As it was called, where its name alone would not be found."""
    return NAME if shutil.which(NAME) else os.path.relpath(sys.argv[0])


def _say(stream: TextIO, lines: list[str]) -> None:
    for line in lines:
        stream.write(f"{line}\n")
    stream.flush()
