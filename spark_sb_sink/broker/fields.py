"""Checks what came as JSON against the annotations of a dataclass, before one is made of it; knows none by name."""

import math
import types
import typing
from dataclasses import fields
from typing import Any, Literal

_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", type(None): "null"}


def wrong_field(cls: type, given: dict[str, Any]) -> str | None:
    """One sentence on the first field that is unknown or of another type, or None."""
    hints = typing.get_type_hints(cls)
    known = {field.name: hints[field.name] for field in fields(cls)}
    for name, value in given.items():
        if name not in known:
            return f"there is no {name!r}; there {'are ' + ', '.join(sorted(known)) if known else 'is none to give'}"
        if not _fits(value, known[name]):
            return f"{name} is {value!r}; it takes {_takes(known[name])}"
    return None


def is_number(value: object) -> bool:
    """Whether JSON's value is a number that one can reckon with: no truth value, no NaN, no infinity."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def _fits(value: object, hint: Any) -> bool:
    if typing.get_origin(hint) is Literal:
        return value in typing.get_args(hint)
    if isinstance(hint, types.UnionType):
        return any(_fits(value, one) for one in typing.get_args(hint))
    if hint is float:
        return is_number(value)
    if hint is int:
        return isinstance(value, int) and is_number(value)
    return isinstance(value, hint)


def _takes(hint: Any) -> str:
    if typing.get_origin(hint) is Literal:
        return " or ".join(map(str, typing.get_args(hint)))
    if isinstance(hint, types.UnionType):
        return " or ".join(map(_takes, typing.get_args(hint)))
    return _WORDS.get(hint, str(hint))
