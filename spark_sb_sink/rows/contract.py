"""The row contract: the columns that a row may have, and the types that they take.

What is wrong with a schema is told at once, before the first send. What can be wrong with one row of a right schema is
found by `encoding`. Nulls: a null `body` or `entity` makes a bad row; null anywhere else means not set, and a property
that is null is left out. `docs/rows.md` says the same at length.
"""

import difflib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from spark_sb_sink.entity_names import AN_ENTITY, is_entity_name
from spark_sb_sink.envelope.aliases import ALIAS_KEYS
from spark_sb_sink.errors import SchemaError
from spark_sb_sink.rows.kinds import Fields, FieldType, Kind

ALIAS_NAMES = frozenset(ALIAS_KEYS.values())
"""What the envelope stores under; a message that has one of these already could not go to the backlog."""

TEXT_COLUMNS = (
    "message_id",
    "session_id",
    "partition_key",
    "correlation_id",
    "subject",
    "content_type",
    "reply_to",
    "reply_to_session_id",
    "to",
)

_STRING = (frozenset({Kind.STRING, Kind.NULL}), "string")
TAKES: dict[str, tuple[frozenset[Kind], str]] = {
    "body": (frozenset({Kind.BINARY, Kind.STRING}), "binary or string"),
    "entity": (frozenset({Kind.STRING}), "string"),
    **dict.fromkeys(TEXT_COLUMNS, _STRING),
    "time_to_live": (
        frozenset({Kind.DURATION, Kind.INT, Kind.LONG, Kind.FLOAT, Kind.DOUBLE, Kind.DECIMAL, Kind.NULL}),
        "a day-time interval, or a number of seconds",
    ),
    "scheduled_enqueue_time": (frozenset({Kind.TIMESTAMP, Kind.NULL}), "timestamp or timestamp_ntz (taken as UTC)"),
    "application_properties": (
        frozenset({Kind.MAP, Kind.STRUCT, Kind.NULL}),
        "map (with string keys) or struct, of strings, whole and floating-point numbers, booleans, timestamps, binary",
    ),
}
"""Each column, the kinds it takes, and the same in words."""

PROPERTY_KINDS = frozenset(
    {
        Kind.STRING,
        Kind.INT,
        Kind.LONG,
        Kind.FLOAT,
        Kind.DOUBLE,
        Kind.BOOLEAN,
        Kind.TIMESTAMP,
        Kind.BINARY,
        Kind.NULL,
    }
)
_PROPERTY_TAKES = "string, byte, short, int, long, float, double, boolean, timestamp or binary"
# What no AMQP type holds in full is for the user to cast: whatever we chose would change a value or its meaning.
_ADVICE = {
    Kind.DECIMAL: "cast it to string (exact) or to double (a number, also for filters)",
    Kind.DATE: "cast it to timestamp or to string",
    Kind.DURATION: "turn it into a number or a string",
    Kind.MAP: "properties are flat: pull its values up, or use to_json",
    Kind.STRUCT: "properties are flat: pull its fields up, or use to_json",
    Kind.OTHER: "properties are flat and simple: use to_json or a cast",
}


@dataclass(frozen=True, slots=True)
class RowPlan:
    """A schema that fits: the columns that are there, in the contract's order, and the entity of all rows, if one."""

    columns: tuple[tuple[str, FieldType], ...]
    entity: str | None = None

    def type_of(self, name: str) -> FieldType | None:
        """The type of a column, None where it is not there."""
        return dict(self.columns).get(name)

    def brings(self, name: str) -> bool:
        """Whether rows can have a value there: a column of type void has none."""
        of = self.type_of(name)
        return of is not None and of.kind is not Kind.NULL


def check_schema(fields: Fields, entity_option: str | None = None) -> RowPlan:
    """The plan for rows of these columns, or one `SchemaError` that lists everything that is wrong with them.

    `entity_option` is the entity of all rows where there is no column `entity`; a column goes before it.
    """
    given = list(fields)
    types = dict(given)
    problems = [
        f"{name} is there {times} times; a column can be there once."
        for name, times in Counter(name for name, _ in given).items()
        if times > 1
    ]
    for name, of in types.items():
        problems += _column_problems(name, of, types)
    if "body" not in types:
        problems.append(f"body is missing; it takes {TAKES['body'][1]}.")
    if "entity" not in types and entity_option is None:
        problems.append("entity is missing; give each row one in a column of type string, or all by the option entity.")
    if "entity" not in types and entity_option is not None and not is_entity_name(entity_option):
        problems.append(f"the option entity got {entity_option!r}, but takes {AN_ENTITY}.")
    if problems:
        raise SchemaError(*problems)
    return RowPlan(
        columns=tuple((name, types[name]) for name in TAKES if name in types),
        entity=None if "entity" in types else entity_option,
    )


def _column_problems(name: str, of: FieldType, there: dict[str, FieldType]) -> Iterator[str]:
    if name not in TAKES:
        yield _unknown(name, there)
        return
    kinds, words = TAKES[name]
    if of.kind not in kinds:
        yield f"{name} is {of.text}, but takes {words}."
    elif of.kind is Kind.MAP:
        yield from _map_problems(name, of)
    elif of.kind is Kind.STRUCT:
        yield from _struct_problems(name, of)


def _unknown(name: str, there: dict[str, FieldType]) -> str:
    near = difflib.get_close_matches(name.lower(), [known for known in TAKES if known not in there], n=1, cutoff=0.6)
    if near:
        return f"{name} is no column of a message; did you mean {near[0]} ({TAKES[near[0]][1]})?"
    return f"{name} is no column of a message; drop it, or put it into application_properties."


def _map_problems(name: str, of: FieldType) -> Iterator[str]:
    (_, key), (_, value) = of.inner
    if key.kind is not Kind.STRING:
        yield f"{name} has keys of type {key.text}, but takes string."
    if value.kind not in PROPERTY_KINDS:
        yield f"{name} has values of type {value.text}, but takes {_PROPERTY_TAKES}; {_ADVICE[value.kind]}."


def _struct_problems(name: str, of: FieldType) -> Iterator[str]:
    for field, times in Counter(field for field, _ in of.inner).items():
        if times > 1:
            yield f"{name}.{field} is there {times} times; a property can be there once."
        if field in ALIAS_NAMES:
            yield f"{name}.{field} has a name that the envelope keeps for itself; give it another."
    for field, inner in of.inner:
        if inner.kind not in PROPERTY_KINDS:
            yield f"{name}.{field} is {inner.text}, but takes {_PROPERTY_TAKES}; {_ADVICE[inner.kind]}."
