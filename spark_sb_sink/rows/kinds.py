"""The types of columns, as far as the row contract tells them apart; read off an Arrow schema or Spark's JSON.

Imports neither: an Arrow type says in its text what it is, and Spark's schema comes as `StructType.jsonValue()`.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


class Kind(Enum):
    """What a column holds. The widths of whole numbers that become one AMQP type are one kind."""

    NULL = "null"
    BOOLEAN = "boolean"
    INT = "int"
    LONG = "long"
    FLOAT = "float"
    DOUBLE = "double"
    DECIMAL = "decimal"
    STRING = "string"
    BINARY = "binary"
    TIMESTAMP = "timestamp"
    DURATION = "duration"
    DATE = "date"
    MAP = "map"
    STRUCT = "struct"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class FieldType:
    """A type: its kind, its name as the user knows it, and for maps (key, value) and structs the types inside."""

    kind: Kind
    text: str
    inner: tuple[tuple[str, "FieldType"], ...] = ()


Fields = Iterable[tuple[str, FieldType]]

_ARROW = {
    "null": Kind.NULL,
    "bool": Kind.BOOLEAN,
    "int8": Kind.INT,
    "int16": Kind.INT,
    "int32": Kind.INT,
    "int64": Kind.LONG,
    "float": Kind.FLOAT,
    "double": Kind.DOUBLE,
    "decimal128": Kind.DECIMAL,
    "string": Kind.STRING,
    "large_string": Kind.STRING,
    "binary": Kind.BINARY,
    "large_binary": Kind.BINARY,
    "timestamp": Kind.TIMESTAMP,
    "duration": Kind.DURATION,
    "date32": Kind.DATE,
    "date64": Kind.DATE,
    "map": Kind.MAP,
    "struct": Kind.STRUCT,
}

_SPARK = {
    "void": Kind.NULL,
    "boolean": Kind.BOOLEAN,
    "byte": Kind.INT,
    "short": Kind.INT,
    "integer": Kind.INT,
    "long": Kind.LONG,
    "float": Kind.FLOAT,
    "double": Kind.DOUBLE,
    "decimal": Kind.DECIMAL,
    "string": Kind.STRING,
    "char": Kind.STRING,
    "varchar": Kind.STRING,
    "binary": Kind.BINARY,
    "timestamp": Kind.TIMESTAMP,
    "timestamp_ntz": Kind.TIMESTAMP,
    "date": Kind.DATE,
    "map": Kind.MAP,
    "struct": Kind.STRUCT,
}
# "interval", "interval year to month" and the like are none: a month has no fixed length.
_DAY_TIME = re.compile(r"interval (day|hour|minute|second)\b")


def fields_of_arrow(schema: "pa.Schema") -> list[tuple[str, FieldType]]:
    """The columns of an Arrow schema."""
    return [(field.name, _of_arrow(field.type)) for field in schema]


def fields_of_spark(schema: Mapping[str, Any]) -> list[tuple[str, FieldType]]:
    """The columns of a Spark schema, from its `jsonValue()`."""
    return [(str(field["name"]), _of_spark(field["type"])) for field in schema["fields"]]


def _of_arrow(arrow: "pa.DataType") -> FieldType:
    text = str(arrow)
    kind = _ARROW.get(re.split(r"[\[(<]", text, maxsplit=1)[0], Kind.OTHER)
    if kind is Kind.MAP:
        return FieldType(kind, text, (("key", _of_arrow(arrow.key_type)), ("value", _of_arrow(arrow.item_type))))
    if kind is Kind.STRUCT:
        fields = [arrow.field(at) for at in range(arrow.num_fields)]
        return FieldType(kind, text, tuple((field.name, _of_arrow(field.type)) for field in fields))
    return FieldType(kind, text)


def _of_spark(spark: object) -> FieldType:
    if not isinstance(spark, Mapping):
        text = str(spark)
        name = re.split(r"[( ]", text, maxsplit=1)[0]
        return FieldType(Kind.DURATION if _DAY_TIME.match(text) else _SPARK.get(name, Kind.OTHER), text)
    name = str(spark["type"])
    if name == "map":
        key, value = _of_spark(spark["keyType"]), _of_spark(spark["valueType"])
        return FieldType(Kind.MAP, f"map<{key.text}, {value.text}>", (("key", key), ("value", value)))
    if name == "struct":
        inner = tuple(fields_of_spark(spark))
        listed = ", ".join(f"{field}: {of.text}" for field, of in inner)
        return FieldType(Kind.STRUCT, f"struct<{listed}>", inner)
    return FieldType(Kind.OTHER, name)
