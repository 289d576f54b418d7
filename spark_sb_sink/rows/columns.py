"""Arrow columns to lists of Python values, each walked once. What no message can carry is noted, and never raises.

Needs pyarrow's arrays at hand, not its import: they know their own methods.
"""

import math
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

from spark_sb_sink.amqp.message import FOR_EVER_MS
from spark_sb_sink.rows.kinds import Kind

if TYPE_CHECKING:
    import pyarrow as pa

Problems = dict[int, str]
"""By the number of the cell: why no message can carry it. The first reason stays."""

# What datetime and .NET's DateTime can hold, and so what a receiver can read: the years 1 to 9999.
EARLIEST_MS, LATEST_MS = -62_135_596_800_000, 253_402_300_799_999

_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def raw_bytes(column: "pa.Array", kind: Kind) -> list[bytes | None]:
    """The bytes of binaries, and of strings as Spark has them, which is UTF-8; also where they are none, unchanged."""
    if kind is Kind.STRING:
        column = column.cast("large_binary" if str(column.type).startswith("large") else "binary")
    values: list[bytes | None] = column.to_pylist()
    return values


def is_utf8(column: "pa.Array") -> bool:
    """Whether all texts of a string column are such; Arrow looks at them faster than Python."""
    try:
        column.validate(full=True)
    except ValueError:  # pyarrow's ArrowInvalid
        return False
    return True


def texts(column: "pa.Array", name: str, problems: Problems) -> list[str | None]:
    """The texts of a string column. Spark can hold bytes in one that are no UTF-8 (a cast of binary does not look)."""
    try:
        values: list[str | None] = column.to_pylist()
        return values
    except UnicodeDecodeError:
        pass
    found: list[str | None] = []
    for at, raw in enumerate(raw_bytes(column, Kind.STRING)):
        text = None
        try:
            text = None if raw is None else raw.decode()
        except UnicodeDecodeError as error:
            problems.setdefault(at, f"{name} is no UTF-8 text: {error.reason} at byte {error.start}")
        found.append(text)
    return found


def symbols(column: "pa.Array", name: str, problems: Problems) -> list[str | None]:
    """Texts that go out as AMQP symbols, which are ASCII."""
    found = texts(column, name, problems)
    for at, text in enumerate(found):
        if text is not None and not text.isascii():
            problems.setdefault(at, f"{name} takes ASCII text, not {text[:100]!r}")
    return found


def timestamps(column: "pa.Array", name: str, problems: Problems) -> list[int | None]:
    """Milliseconds since 1970, rounded down as the SDK does; a time without a zone is taken as UTC."""
    per_second = _PER_SECOND[column.type.unit]
    found: list[int | None] = column.cast("int64").to_pylist()
    for at, ticks in enumerate(found):
        if ticks is not None:
            moment = found[at] = ticks * 1000 // per_second
            if not EARLIEST_MS <= moment <= LATEST_MS:
                found[at] = None
                problems.setdefault(at, f"{name} takes times of the years 1 to 9999, not {moment} ms from 1970")
    return found


def times_to_live(column: "pa.Array", kind: Kind, name: str, problems: Problems) -> list[int | None]:
    """Milliseconds, rounded, but never down to none. From TimeSpan.MaxValue on it is for ever, so none is set."""
    to_ms: Callable[[Any], int | None] = _from_seconds
    unit = "s"
    if kind is Kind.DURATION:
        unit = column.type.unit
        to_ms = partial(_from_ticks, per_second=_PER_SECOND[unit])
        column = column.cast("int64")
    found: list[int | None] = []
    for at, value in enumerate(column.to_pylist()):
        ttl = None if value is None else to_ms(value)
        if value is not None and (ttl is None or ttl <= 0):
            problems.setdefault(at, f"{name} takes a time of more than zero, not {value} {unit}")
        found.append(ttl if ttl is not None and 0 < ttl < FOR_EVER_MS else None)
    return found


def _from_ticks(ticks: int, per_second: int) -> int:
    return _rounded(ticks * 1000, per_second)


def _from_seconds(seconds: int | float | Decimal) -> int | None:
    """None for what is no number of seconds."""
    if isinstance(seconds, int):
        return seconds * 1000
    if not math.isfinite(seconds):
        return None
    top, bottom = seconds.as_integer_ratio()  # exact, whatever the precision and however large
    return _rounded(top * 1000, bottom)


def _rounded(top: int, bottom: int) -> int:
    return max((2 * top + bottom) // (2 * bottom), 1) if top > 0 else min(top, 0)


def values(column: "pa.Array", kind: Kind, name: str, problems: Problems) -> list[Any]:
    """The values of a column of properties."""
    if kind is Kind.STRING:
        return texts(column, name, problems)
    if kind is Kind.TIMESTAMP:
        return timestamps(column, name, problems)
    plain: list[Any] = column.to_pylist()
    return plain
