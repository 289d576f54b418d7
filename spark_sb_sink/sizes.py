"""Sizes as people write them, "32MiB", "500KB", and as the program counts them: bytes."""

import re

from spark_sb_sink.errors import OptionError

TAKES = 'a size such as "512KiB", "32MiB", "1GiB", or a number of bytes'

_UNITS = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
}
_TEXT = re.compile(r"(\d{1,18}(?:\.\d{1,6})?)\s*([a-z]*)", re.ASCII)


def parse_size(value: object) -> int:
    """Bytes of "32MiB", "1.5 GB", "1024" or 1024; never negative, never a fraction of a byte."""
    size = _bytes(value)
    if size is None:
        raise OptionError(f"{value!r} is no size; it takes {TAKES}.")
    return size


def _bytes(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value if value >= 0 else None
    if not isinstance(value, str):
        return None
    match = _TEXT.fullmatch(value.strip().lower())
    factor = _UNITS.get(match[2] or "b") if match else None
    if match is None or factor is None:
        return None
    whole, _, fraction = match[1].partition(".")
    scale = 10 ** len(fraction)
    size, rest = divmod((int(whole) * scale + int(fraction or 0)) * factor, scale)
    return None if rest else size


def format_size(size: int) -> str:
    """The shortest exact way to write it that `parse_size` reads back."""
    for unit in ("GiB", "MiB", "KiB"):
        factor = _UNITS[unit.lower()]
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return f"{size}B"
