"""Processor time and memory of other processes, read from /proc: the same way for everything that is compared."""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
# Fields of /proc/PID/stat after the command: the parent, and the user time, which the system time follows.
_PARENT, _USER = 1, 11


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()


def cpu_seconds(pid: int) -> float:
    """User and system time so far."""
    return sum(int(field) for field in _stat(pid)[_USER : _USER + 2]) / _TICKS


def memory(pid: int) -> int:
    """Bytes resident now."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE


def peak_memory(pid: int) -> int:
    """Bytes resident at most, since the start or `forget_peak`."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def forget_peak(pid: int) -> None:
    """Begin anew with the peak."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                children.setdefault(int(_stat(int(entry.name))[_PARENT]), []).append(int(entry.name))
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended meanwhile
    found, todo = [], [pid]
    while todo:
        more = children.get(todo.pop(), [])
        found += more
        todo += more
    return found


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


@dataclass(frozen=True)
class SparkProcesses:
    """The JVM of this process, and its Python workers: all that `pyspark.daemon` forked, and itself."""

    driver: int

    @staticmethod
    def find() -> "SparkProcesses":
        [jvm] = [pid for pid in descendants(os.getpid()) if "org.apache.spark.deploy.SparkSubmit" in _command(pid)]
        return SparkProcesses(jvm)

    def workers(self) -> list[int]:
        return [pid for pid in descendants(self.driver) if "pyspark" in _command(pid)]

    def worker_times(self) -> dict[int, float]:
        """Processor time of each worker so far."""
        times = {}
        for pid in self.workers():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                times[pid] = cpu_seconds(pid)
        return times

    def worker_seconds_since(self, before: dict[int, float]) -> float:
        """What the workers have used since. Spark ends one that is idle for a minute, so none that worked is missed."""
        return sum(now - before.get(pid, 0.0) for pid, now in self.worker_times().items())

    def forget_peaks(self) -> None:
        for pid in (self.driver, *self.workers()):
            forget_peak(pid)

    def worker_peak(self) -> int:
        """The most that one worker had."""
        return max((peak_memory(pid) for pid in self.workers()), default=0)
