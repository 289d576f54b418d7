"""The processes below this one (broker, JVM, Python workers): finds them and ends them, and nobody else's.

By /proc where there is one, else by `ps`. A process is known by its number and its start, as numbers are used again.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    parent: int
    started: str


class Offspring:
    """All processes that came from this one, also those whose parents are gone, as long as they were seen once."""

    def __init__(self) -> None:
        self._seen: dict[int, Process] = {}
        self._told: set[Process] = set()

    def living(self) -> list[Process]:
        """Those that run now; ended ones that nobody has waited for are not among them."""
        now = _processes()
        known = {pid for pid, process in self._seen.items() if pid in now and now[pid].started == process.started}
        while True:
            more = {pid for pid, each in now.items() if pid not in known and (each.parent in known | {os.getpid()})}
            if not more:
                break
            known |= more
        # The parent of an orphan changes; what counts is where it was seen first.
        self._seen = {pid: self._seen[pid] if _same(self._seen.get(pid), now[pid]) else now[pid] for pid in known}
        return list(self._seen.values())

    def end(self, gently: float) -> bool:
        """Tell those that were not told yet to end, kill them all when so many seconds are over; whether none is left.

        To be called until it says so: who was just about to start a process may still have done it.
        """
        deadline = time.monotonic() + gently
        while True:
            living = self.living()
            if not living:
                return True
            late = time.monotonic() >= deadline
            for process in living:
                if late or process not in self._told:
                    self._told.add(process)
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(process.pid, signal.SIGKILL if late else signal.SIGTERM)
            if late and time.monotonic() >= deadline + 5:
                return False
            time.sleep(0.05)


def _same(one: Process | None, other: Process) -> bool:
    return one is not None and one.started == other.started


def _processes() -> dict[int, Process]:
    if Path("/proc/self/stat").exists():
        return _by_proc()
    return _by_ps()


def _by_proc() -> dict[int, Process]:
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            with contextlib.suppress(OSError):
                text = Path("/proc", entry, "stat").read_text(encoding="utf-8", errors="replace")
                # The name stands in parentheses and may have any; after it state, parent, …, and 22nd the start.
                fields = text.rpartition(")")[2].split()
                if fields[0] not in "ZX":
                    found[int(entry)] = Process(int(entry), int(fields[1]), fields[19])
    return found


def _by_ps() -> dict[int, Process]:
    ps = shutil.which("ps")
    if ps is None:
        return {}
    with subprocess.Popen(  # noqa: S603
        [ps, "-A", "-o", "pid=,ppid=,stat=,lstart="], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as asked:
        told, _ = asked.communicate()
    found = {}
    for line in told.splitlines():
        fields = line.split(None, 3)
        if len(fields) == 4 and not fields[2].startswith("Z") and int(fields[0]) != asked.pid:
            found[int(fields[0])] = Process(int(fields[0]), int(fields[1]), fields[3].strip())
    return found
