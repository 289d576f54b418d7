"""The tables of the board's file, and whether those found in a file can be used."""

import subprocess
import sys
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from spark_sb_sink.failover import COLUMNS

Rows = Callable[..., list[tuple[Any, ...]]]
"""Runs one statement with its values, and gives all it answers."""

NEW = "new"

APPLICATION_ID = 0x53425342  # "SBSB", in the header of the file
FORMAT = 1  # count up whenever TABLES changes

ENTITY_COLUMNS = ", ".join(COLUMNS)

TABLES = (
    "CREATE TABLE board (id TEXT NOT NULL, boot_id TEXT NOT NULL, made_at REAL NOT NULL)",
    "CREATE TABLE entities (entity TEXT PRIMARY KEY, health TEXT NOT NULL, epoch INTEGER NOT NULL, since REAL, "
    "next_ping_at REAL, doubted INTEGER NOT NULL, seen_healthy INTEGER NOT NULL, reason TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE queues (queue INTEGER PRIMARY KEY, out_until REAL, last_error TEXT NOT NULL)",
    "CREATE TABLE kept (entity TEXT PRIMARY KEY, queue INTEGER NOT NULL) WITHOUT ROWID",
    # AUTOINCREMENT: the number of a change that was forgotten is never given to another.
    "CREATE TABLE changes (number INTEGER PRIMARY KEY AUTOINCREMENT, entity TEXT NOT NULL, before TEXT NOT NULL, "
    "after TEXT NOT NULL, reason TEXT NOT NULL, at REAL NOT NULL, wall_time REAL NOT NULL)",
)


class SpoiledError(Exception):
    """What stands in the file cannot have been written by us."""


def boot_id() -> str:
    """The same in all processes of this machine until it is started again."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    if sys.platform == "darwin":
        with suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"], capture_output=True, check=True)
            return done.stdout.decode().strip()
    return "unknown"  # `made_at` in the future still gives most files from before a reboot away


def why_not(rows: Rows, boot: str, now: float) -> str:
    """Why the tables in a file are not to be used; empty if they are."""
    ((application,),), ((version,),) = rows("PRAGMA application_id"), rows("PRAGMA user_version")
    if (application, version) == (0, 0) and not rows("SELECT 1 FROM sqlite_master"):
        return NEW
    if (application, version) != (APPLICATION_ID, FORMAT):
        return "it has another format"
    found = rows("SELECT boot_id, made_at FROM board")
    if len(found) != 1 or not isinstance(found[0][1], float):
        raise SpoiledError("it does not say when it was made")
    ((made_under, made_at),) = found
    if made_under != boot or made_at > now:
        return "it is from before the machine was last started, and its times mean nothing now"
    return ""


def fill(rows: Rows, boot: str, now: float) -> None:
    """Empty tables instead of whatever there was. To be called within a transaction."""
    for (name,) in rows("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"):
        quoted = name.replace('"', '""')
        rows(f'DROP TABLE "{quoted}"')
    for table in TABLES:
        rows(table)
    rows("INSERT INTO board VALUES (?, ?, ?)", uuid.uuid4().hex, boot, now)
    rows(f"PRAGMA application_id = {APPLICATION_ID}")
    rows(f"PRAGMA user_version = {FORMAT}")
