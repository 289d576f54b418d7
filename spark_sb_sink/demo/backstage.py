"""Where the demo happens: one folder for all that it writes, one log for all that Spark says, and a clean end.

Everything below this process is told to write there, so that removing the folder removes all. What stands on the screen
goes through `out` and `err`; the usual two streams lead to the log meanwhile, also those of processes that are started.
"""

import contextlib
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from threading import Thread
from typing import Self, TextIO

from spark_sb_sink.demo.offspring import Offspring

GENTLY = 3.0
"""Seconds for processes to end by themselves."""
IN_ALL = 20.0


class Backstage:
    """A context manager: on its way out it ends all processes, then removes the folder."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="spark-sb-sink-demo-"))
        self.temporary = self._made("tmp")
        self.log = self.folder / "demo.log"
        self._environment = dict(os.environ)
        self._temporary_before = tempfile.tempdir
        self._offspring = Offspring()

    def __enter__(self) -> Self:
        sys.stdout.flush()
        sys.stderr.flush()
        self._usual = [os.dup(number) for number in (1, 2)]
        self.out, self.err = (_stream(os.dup(number), like) for number, like in ((1, sys.stdout), (2, sys.stderr)))
        with self.log.open("ab") as log:
            for number in (1, 2):
                os.dup2(log.fileno(), number)
        tempfile.tempdir = os.environ["TMPDIR"] = str(self.temporary)
        # Spark takes this one before its own setting.
        os.environ["SPARK_LOCAL_DIRS"] = str(self.temporary)
        # Also for the small JVM that finds the command line of the large one. Without the second setting a JVM that is
        # killed leaves a file in /tmp.
        java = f"-Djava.io.tmpdir={self.temporary} -XX:-UsePerfData"
        os.environ["JAVA_TOOL_OPTIONS"] = f"{os.environ.get('JAVA_TOOL_OPTIONS', '')} {java}".strip()
        return self

    def _made(self, name: str) -> Path:
        folder = self.folder / name
        folder.mkdir()
        return folder

    def said(self) -> str:
        """What the log has."""
        sys.stdout.flush()
        sys.stderr.flush()
        with contextlib.suppress(OSError):
            return self.log.read_text(encoding="utf-8", errors="replace")
        return ""

    def end(self, story: Thread) -> bool:
        """End all processes; the story, which cannot go on without them, ends too. Whether all of it did."""
        deadline = time.monotonic() + IN_ALL
        while time.monotonic() < deadline:
            ended = self._offspring.end(GENTLY)
            story.join(0.1)
            if ended and not story.is_alive() and not self._offspring.living():
                return True
        return False

    def left(self) -> list[int]:
        """The numbers of processes that did not end."""
        return [process.pid for process in self._offspring.living()]

    def remove(self) -> bool:
        """Remove the folder; whether it is gone."""
        shutil.rmtree(self.folder, ignore_errors=True)
        return not self.folder.exists()

    def __exit__(self, *ended: object) -> None:
        self._offspring.end(GENTLY)
        for stream in (self.out, self.err):
            with contextlib.suppress(OSError):  # the reader of a pipe may be gone
                stream.close()
        sys.stdout.flush()
        sys.stderr.flush()
        for number, usual in zip((1, 2), self._usual, strict=True):
            os.dup2(usual, number)
            os.close(usual)
        tempfile.tempdir = self._temporary_before
        os.environ.clear()
        os.environ.update(self._environment)
        self.remove()


def _stream(number: int, like: TextIO) -> TextIO:
    """A text stream that cannot fail for a letter that the terminal does not have."""
    return os.fdopen(number, "w", encoding=like.encoding or "utf-8", errors="replace", buffering=1)
