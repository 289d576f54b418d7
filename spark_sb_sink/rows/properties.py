"""The column `application_properties`, a map or a struct, to one encoded section for each row.

Which AMQP type a value gets depends on the type of its column alone, never on the value: a filter or a receiver sees
one type for all rows. Byte, short and int become int, and float becomes double, as with the SDK; long stays long.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from spark_sb_sink.amqp.encode import (
    SIMPLE,
    encode_boolean,
    encode_double,
    encode_int,
    encode_long,
    encode_string,
    encode_timestamp,
)
from spark_sb_sink.amqp.layout import join_map
from spark_sb_sink.amqp.message import APPLICATION_PREFIX
from spark_sb_sink.rows.columns import Problems, texts, values
from spark_sb_sink.rows.contract import ALIAS_NAMES
from spark_sb_sink.rows.kinds import FieldType, Kind

if TYPE_CHECKING:
    import pyarrow as pa

_NAME = "application_properties"
_NONE = b""

_ENCODERS: dict[Kind, Callable[[Any], bytes]] = {
    Kind.STRING: encode_string,
    Kind.INT: encode_int,
    Kind.LONG: encode_long,
    Kind.FLOAT: encode_double,
    Kind.DOUBLE: encode_double,
    Kind.BOOLEAN: encode_boolean,
    Kind.TIMESTAMP: encode_timestamp,
    Kind.BINARY: SIMPLE[bytes],
}


def property_sections(column: "pa.Array", of: FieldType, problems: Problems) -> Sequence[bytes]:
    """For each row the section, empty where there are no properties: no map or struct, or nothing but nulls in it."""
    if of.kind is Kind.MAP:
        return _of_maps(column, of.inner[1][1].kind, problems)
    if of.kind is Kind.STRUCT:
        return _of_structs(column, of, problems)
    return [_NONE] * len(column)


def _section(content: bytes, count: int) -> bytes:
    return APPLICATION_PREFIX + join_map(content, count)


def _of_structs(column: "pa.Array", of: FieldType, problems: Problems) -> list[bytes]:
    # Column by column: the name goes in front of each value once and for all.
    entries: list[list[bytes]] = []
    for (name, inner), child in zip(of.inner, column.flatten(), strict=True):
        if inner.kind is not Kind.NULL:
            found = values(child, inner.kind, f"{_NAME}.{name}", problems)
            key, encode = encode_string(name), _ENCODERS[inner.kind]
            entries.append([_NONE if value is None else key + encode(value) for value in found])
    if not entries:
        return [_NONE] * len(column)
    whole = 2 * len(entries)
    return [
        _section(b"".join(row), whole if _NONE not in row else 2 * sum(map(bool, row))) if any(row) else _NONE
        for row in zip(*entries, strict=True)
    ]


def _of_maps(column: "pa.Array", kind: Kind, problems: Problems) -> list[bytes]:
    if not len(column) or kind is Kind.NULL:
        return [_NONE] * len(column)
    # Keys and values of all rows stand in one array each; a slice of the column still has those of the whole.
    offsets: list[int] = column.offsets.to_pylist()
    first, count = offsets[0], offsets[-1] - offsets[0]
    bad_cells: Problems = {}
    names = texts(column.keys.slice(first, count), "a name in application_properties", bad_cells)
    items = values(column.items.slice(first, count), kind, f"a value in {_NAME}", bad_cells)
    keys = {name: _NONE if name is None else encode_string(name) for name in set(names)}
    encode = _ENCODERS[kind]
    entries = [_NONE if item is None else keys[name] + encode(item) for name, item in zip(names, items, strict=True)]
    reserved = bool(ALIAS_NAMES & keys.keys())
    sections: list[bytes] = []
    for row, absent in enumerate(column.is_null().to_pylist()):
        start, end = (0, 0) if absent else (offsets[row] - first, offsets[row + 1] - first)
        size = end - start
        if size > 1 and len(set(names[start:end])) != size:
            problems.setdefault(row, f"{_NAME} has a name twice")
        if reserved and not ALIAS_NAMES.isdisjoint(names[start:end]):
            (name, *_) = sorted(ALIAS_NAMES.intersection(names[start:end]))
            problems.setdefault(row, f"{_NAME} has {name}, a name that the envelope keeps for itself")
        for cell in range(start, end) if bad_cells else ():
            if cell in bad_cells:
                problems.setdefault(row, bad_cells[cell])
        mine = entries[start:end]
        given = size - mine.count(_NONE)
        sections.append(_section(b"".join(mine), 2 * given) if given else _NONE)
    return sections
