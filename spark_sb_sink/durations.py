"""Durations as people write them, "1m", "15m", "0s", "1.5s", "250ms", and as the program counts them: seconds.

Knows no option and no limit.
"""

import math
import re
from datetime import timedelta
from decimal import Decimal

from spark_sb_sink.errors import OptionError

TAKES = 'a duration such as "250ms", "10s", "1m", "2h", "1d", or a number of seconds'

_NUMBER = r"\d+(?:\.\d+)?"
# Written largest unit first, each at most once: "1h30m".
_TEXT = re.compile(
    rf"(?:({_NUMBER})d)?\s*(?:({_NUMBER})h)?\s*(?:({_NUMBER})m)?\s*(?:({_NUMBER})s)?\s*(?:({_NUMBER})ms)?", re.ASCII
)
_PLAIN = re.compile(_NUMBER, re.ASCII)
_SECONDS = (86_400.0, 3_600.0, 60.0, 1.0)


def parse_duration(value: object) -> float:
    """Seconds of "1m", "1h30m", "250ms", "60", 60, 1.5 or a timedelta; never negative, never infinite."""
    seconds = _seconds(value)
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        raise OptionError(f"{value!r} is no duration; it takes {TAKES}.")
    return seconds


def _seconds(value: object) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, int | float):
        try:
            return float(value)
        except OverflowError:
            return None
    if not isinstance(value, str):
        return None
    text = value.strip()
    if _PLAIN.fullmatch(text):
        return float(text)
    match = _TEXT.fullmatch(text.lower())
    if match is None or not any(match.groups()):
        return None
    *parts, milliseconds = match.groups()
    total = sum(float(part) * unit for part, unit in zip(parts, _SECONDS, strict=True) if part)
    # Divided, not multiplied: 3 / 1000 is 0.003, 3 * 0.001 need not be.
    return total + float(milliseconds or 0) / 1000


def format_duration(seconds: float) -> str:
    """The shortest way to write it that `parse_duration` reads back as the same number."""
    if not math.isfinite(seconds) or seconds < 0:
        raise OptionError(f"{seconds!r} is no duration; it takes a number of seconds from 0 up.")
    if seconds == 0:
        return "0s"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")):
        if seconds % size == 0:
            return f"{int(seconds // size)}{unit}"
    milliseconds = round(seconds * 1000)
    if seconds < 1 and milliseconds / 1000 == seconds:
        return f"{milliseconds}ms"
    return f"{Decimal(repr(seconds)):f}s"


def spoken_duration(seconds: float) -> str:
    """For people, in its two largest units: 42s, 5m 10s, 3h 20m, 2d 4h."""
    whole = round(max(0.0, seconds))
    parts = ((whole // 86_400, "d"), (whole // 3_600 % 24, "h"), (whole // 60 % 60, "m"), (whole % 60, "s"))
    shown = [f"{count}{unit}" for count, unit in parts if count][:2]
    return " ".join(shown) or "0s"
