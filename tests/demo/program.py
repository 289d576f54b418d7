"""The demo as a program: in a folder, a temporary folder and a session of its own, with all its processes marked."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

from tests.test_cli import gone

MARK = "SPARK_SB_SINK_TEST_MARK"


class Demo:
    """Started at once. Lines of both streams are collected; `await_line` waits for one of them."""

    def __init__(self, folder: Path, *arguments: str, stdout: int = subprocess.PIPE) -> None:
        self.folder, self.temporary = folder / "cwd", folder / "tmp"
        self.folder.mkdir()
        self.temporary.mkdir()
        self._mark = uuid.uuid4().hex
        self._root = Path(__file__).resolve().parents[2]
        environment = {
            **os.environ,
            MARK: self._mark,
            "TMPDIR": str(self.temporary),
            "PYTHONPATH": str(self._root),
            "FORCE_COLOR": "1",  # must not bring control characters into a pipe
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "spark_sb_sink.cli", "demo", *arguments],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.out: list[str] = []
        self.err: list[str] = []
        self._readers = [
            threading.Thread(target=lines.extend, args=[stream], daemon=True)
            for lines, stream in ((self.out, self.process.stdout), (self.err, self.process.stderr))
            if stream is not None
        ]
        for reader in self._readers:
            reader.start()

    def processes(self) -> list[int]:
        """All that carry the mark, whoever started them, this program included."""
        found = []
        wanted = f"{MARK}={self._mark}".encode()
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with contextlib.suppress(OSError):
                    if wanted in (entry / "environ").read_bytes().split(b"\0") and not gone(int(entry.name)):
                        found.append(int(entry.name))
        return found

    def java(self) -> list[int]:
        """The JVMs among them."""
        found = []
        for pid in self.processes():
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/exe").endswith("java"):
                    found.append(pid)
        return found

    def said(self, text: str) -> bool:
        return any(text in line for line in [*self.out, *self.err])

    def wait(self, within: float) -> int:
        code = self.process.wait(within)
        for reader in self._readers:
            reader.join(10)
        return code

    def ctrl_c(self) -> None:
        """As a terminal does it: to every process of the group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def left_behind(self) -> list[str]:
        """Processes and files; the ports are those of processes."""
        files = [str(path) for folder in (self.folder, self.temporary) for path in folder.rglob("*")]
        return [*files, *(Path(f"/proc/{pid}/cmdline").read_text() for pid in self.processes())]


@contextlib.contextmanager
def demo(folder: Path, *arguments: str, stdout: int = subprocess.PIPE) -> Iterator[Demo]:
    running = Demo(folder, *arguments, stdout=stdout)
    try:
        yield running
    finally:
        for pid in running.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        running.wait(20)
