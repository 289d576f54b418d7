"""Remembers, between the processes that Spark makes a data source's writers in, that a driver has paired.

Spark makes a stream writer twice for each micro-batch, in two Python processes: once to send, once to commit. Pairing
is for the first of all; a secondary that is out later must not fail a query that runs, least of all after its send.
"""

import contextlib
import logging
import os
import tempfile
import time
from pathlib import Path

from spark_sb_sink.options import Options, Pairing
from spark_sb_sink.pairing import pair
from spark_sb_sink.pairing_keeper import MAY_PASS, TRY_AGAIN

LOOK_AGAIN = 3600.0
"""Seconds after which it is looked whether the backlog queues are still there."""
_PAIRED, _UNPAIRED = "paired", "unpaired"
_LOG = logging.getLogger(__name__)


def pair_once(options: Options, folder: Path | None = None, driver: str | None = None) -> None:
    """Pair, unless this driver has done so lately. Raises as `pair` does, but not once it has worked."""
    if options.pairing is Pairing.ASSUME:
        return
    mark = (folder or _folder()) / f"{driver or driver_process()}-{options.digest()[:32]}"
    known, age = _read(mark)
    if age < (LOOK_AGAIN if known == _PAIRED else TRY_AGAIN):
        return
    try:
        pair(options)
    except MAY_PASS as error:
        if known != _PAIRED and options.pairing is not Pairing.BEST_EFFORT:
            raise
        _LOG.warning("NO BACKLOG: the query goes on, and what fails over may have nowhere to go. %s", error)
        _write(mark, known or _UNPAIRED)
    else:
        _write(mark, _PAIRED)


def driver_process() -> str:
    """The JVM above this Python process, which may have a daemon between; with its start, as numbers come again."""
    above = os.getppid()
    with contextlib.suppress(OSError, IndexError, ValueError):
        if b"pyspark.daemon" in Path(f"/proc/{above}/cmdline").read_bytes():
            above = int(_stat(above)[1])
        return f"{above}-{_stat(above)[19]}"
    return str(above)


def _stat(process: int) -> list[str]:
    """The fields of Linux's /proc/…/stat from the third on: the name before them may hold anything."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()


def _folder() -> Path:
    made = Path(tempfile.gettempdir()) / f"spark-sb-sink-{os.getuid() if hasattr(os, 'getuid') else 'user'}"
    made.mkdir(mode=0o700, exist_ok=True)
    return made


def _read(mark: Path) -> tuple[str | None, float]:
    try:
        return mark.read_text(), time.time() - mark.stat().st_mtime
    except OSError:
        return None, float("inf")


def _write(mark: Path, known: str) -> None:
    for other in mark.parent.iterdir():
        process = other.name.partition("-")[0]
        if Path("/proc/self").exists() and process.isdigit() and not Path(f"/proc/{process}").exists():
            other.unlink(missing_ok=True)
    mark.write_text(known)
