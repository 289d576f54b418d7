"""The sentences about options that are wrong: the key, what it got, what it takes.

Knows how an option's field is declared (`option`), and no option in particular.
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pydantic import BaseModel, Field, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError

from spark_sb_sink.durations import format_duration
from spark_sb_sink.errors import redact
from spark_sb_sink.sizes import format_size

_LONGEST_VALUE = 80
# Somebody will put a key where a name belongs.
_LIKE_A_KEY = re.compile(r"\s*[A-Za-z0-9+/=_-]{32,}\s*")


class FromEnvironment(str):
    """A text with values from the environment in it. Errors name the variables and do not show the text."""

    variables: tuple[str, ...]

    def __new__(cls, text: str, variables: tuple[str, ...]) -> "FromEnvironment":
        made = super().__new__(cls, text)
        made.variables = variables
        return made


def option(default: Any = ..., *, takes: str, about: str, **limits: Any) -> Any:
    """A field of an options model: its limits, what it takes in words, and what it is for."""
    return Field(default, description=about, json_schema_extra={"takes": takes}, **limits)


def takes_of(field: FieldInfo) -> str:
    """What an option takes, in words."""
    extra = field.json_schema_extra
    return str(extra["takes"]) if isinstance(extra, dict) else "another value"


@dataclass(frozen=True, slots=True)
class OptionDoc:
    """One option, as its documentation tells of it."""

    key: str
    takes: str
    default: str
    """As one would write it; empty where there is none."""
    about: str


def option_docs(model: type[BaseModel], prefix: str = "") -> Iterator[OptionDoc]:
    """All options of a model, those of its tables after the table's own."""
    for name, field in model.model_fields.items():
        takes = takes_of(field)
        yield OptionDoc(prefix + name, takes, _default(field, takes), field.description or "")
        inner = _model_at(model, [name])
        if inner is not model:
            yield from option_docs(inner, f"{prefix}{name}.")


def _default(field: FieldInfo, takes: str) -> str:
    value = field.default
    if field.is_required() or value is None or value == ():
        return ""
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, bool):
        return str(value).lower()
    if takes.startswith("a duration"):
        return format_duration(value)
    return format_size(value) if takes.startswith("a size") else str(value)


def wrong(why: str) -> PydanticCustomError:
    """A value is wrong for a reason of its own; `why` goes on after the key: "has no Endpoint; it takes …"."""
    # Given as context, not as template, as the text may have braces.
    return PydanticCustomError("option", "{why}", {"why": why})


def contradiction(sentence: str) -> PydanticCustomError:
    """Options that are right each for itself do not go together; a whole sentence."""
    return PydanticCustomError("contradiction", "{why}", {"why": sentence})


def sentences(model: type[BaseModel], error: ValidationError, data: Mapping[str, Any]) -> list[str]:
    """One sentence for each thing that is wrong."""
    told: dict[str, None] = {}
    for detail in error.errors(include_url=False):
        told[_sentence(model, detail, data)] = None
    return list(told)


def _sentence(model: type[BaseModel], detail: ErrorDetails, data: Mapping[str, Any]) -> str:
    # A place in a list is told by the list's key.
    path = [str(part) for part in detail["loc"] if isinstance(part, str)]
    key, why = ".".join(path), str(detail.get("ctx", {}).get("why", ""))
    if detail["type"] == "contradiction":
        return f"{why if not key else f'{key} {why}'}."
    if detail["type"] == "extra_forbidden":
        return _unknown(_model_at(model, path[:-1]), path)
    field = _field_at(model, path)
    if detail["type"] == "missing":
        return f"{key} is missing; it takes {takes_of(field) if field else 'a value'}."
    if detail["type"] == "option":
        return f"{key} {why}."
    takes = takes_of(field) if field else "another value"
    return f"{key} got {_shown(field, _value_at(data, path))}, but takes {takes}."


def _unknown(model: type[BaseModel], path: list[str]) -> str:
    prefix = "".join(f"{part}." for part in path[:-1])
    near = difflib.get_close_matches(path[-1].lower(), model.model_fields, n=1, cutoff=0.6)
    if near:
        return f"{prefix}{path[-1]} is no option; did you mean {prefix}{near[0]}?"
    return (
        f"{prefix}{path[-1]} is no option; the options are {', '.join(prefix + name for name in model.model_fields)}."
    )


def _model_at(model: type[BaseModel], path: list[str]) -> type[BaseModel]:
    for part in path:
        field = model.model_fields.get(part)
        if field is None or not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
            break
        model = field.annotation
    return model


def _field_at(model: type[BaseModel], path: list[str]) -> FieldInfo | None:
    return _model_at(model, path[:-1]).model_fields.get(path[-1]) if path else None


def _value_at(data: Mapping[str, Any], path: list[str]) -> Any:
    value: Any = data
    for part in path:
        if not isinstance(value, Mapping) or part not in value:
            return value
        value = value[part]
    return value


def _shown(field: FieldInfo | None, value: Any) -> str:
    if isinstance(value, FromEnvironment):
        return "the value of " + ", ".join(f"${{{name}}}" for name in value.variables)
    secret = field is None or "SecretStr" in str(field.annotation) or "Namespace" in str(field.annotation)
    if secret or isinstance(value, SecretStr | Mapping):
        return f"a {type(value).__name__} that is not shown"
    if isinstance(value, str) and _LIKE_A_KEY.fullmatch(value):
        return "a text that is not shown, as it may be a secret"
    text = redact(repr(value))
    return text if len(text) <= _LONGEST_VALUE else text[:_LONGEST_VALUE] + "…"
