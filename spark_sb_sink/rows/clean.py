"""Batches without anything unusual, encoded column by column: no call and no object for a field that is not there.

This is what most streams are made of. It gives up on a batch as soon as it sees what it does not know, with nothing
changed; `encoding` then goes row by row, and finds the reasons. The bytes are the same either way.
"""

from collections.abc import Iterable
from itertools import repeat
from operator import add
from typing import TYPE_CHECKING

from spark_sb_sink.amqp.encode import STRING8, SYMBOL8
from spark_sb_sink.amqp.layout import NULL
from spark_sb_sink.amqp.message import DATA_HEADS, FEW, MAX_ID_LENGTH, PROPERTIES8, data_head, properties_head
from spark_sb_sink.entity_names import is_entity_name
from spark_sb_sink.rows.columns import Problems, is_utf8, raw_bytes
from spark_sb_sink.rows.contract import RowPlan
from spark_sb_sink.rows.encoded import EntityMessages
from spark_sb_sink.rows.ids import IdMaker
from spark_sb_sink.rows.kinds import FieldType, Kind
from spark_sb_sink.rows.properties import property_sections

if TYPE_CHECKING:
    import pyarrow as pa

Columns = dict[str, tuple["pa.Array", FieldType]]

# The fields of the properties section after the message id, in order; None is one that the sink never sets.
_FIELDS = (
    None, "to", "subject", "reply_to", "correlation_id", "content_type", None, None, None, "session_id", None,
    "reply_to_session_id",
)  # fmt: skip
_NO_FIELDS = NULL * len(_FIELDS)
_IDS = frozenset({"message_id", "session_id", "reply_to_session_id"})
_NEVER_NULL = ("entity", "body", "message_id")
_KNOWN = frozenset({"entity", "body", "message_id", "application_properties", *filter(None, _FIELDS)})


class _UnusualError(Exception):
    """Something that has to be looked at row by row."""


def encode_clean(batch: "pa.RecordBatch", plan: RowPlan, ids: IdMaker) -> dict[str, EntityMessages] | None:
    """The messages of each entity; None where the batch has to be looked at row by row."""
    columns: Columns = {name: (batch.column(name), of) for name, of in plan.columns if of.kind is not Kind.NULL}
    if not batch.num_rows or not columns.keys() <= _KNOWN:
        return None
    if any(columns[name][0].null_count for name in _NEVER_NULL if name in columns):
        return None
    try:
        return _messages(columns, plan.entity, batch.num_rows, ids)
    except _UnusualError:
        return None


def _messages(columns: Columns, entity: str | None, size: int, ids: IdMaker) -> dict[str, EntityMessages]:
    entities = _entities(columns) if entity is None else [entity]
    bodies = [body for body in raw_bytes(columns["body"][0], columns["body"][1].kind) if body is not None]
    rests = _fields(columns)
    heads = [DATA_HEADS[count] if count < FEW else data_head(count) for count in map(len, bodies)]
    tails: tuple[Iterable[bytes], ...] = heads, bodies
    if "application_properties" in columns:
        tails = _applications(columns), heads, bodies
    if "message_id" in columns:
        names = _encoded(columns, "message_id")
    else:
        whole = list(map(b"".join, zip(*tails, strict=True)))
        names = _derived(entities, size, ids, rests, whole)
        tails = (whole,)
    sizes = map(add, map(len, names), map(len, rests))
    starts = [PROPERTIES8[count] if count < 255 else properties_head(count) for count in sizes]
    messages = list(map(b"".join, zip(starts, names, rests, *tails, strict=False)))
    if len(entities) == 1:
        return {entities[0]: EntityMessages(messages, list(range(size)))}
    found = {name: EntityMessages() for name in dict.fromkeys(entities)}
    for row, (name, message) in enumerate(zip(entities, messages, strict=True)):
        lane = found[name]
        lane.messages.append(message)
        lane.rows.append(row)
    return found


def _entities(columns: Columns) -> list[str]:
    """The entity of each row; one for all rows where there is but one."""
    column = columns["entity"][0]
    if not is_utf8(column):
        raise _UnusualError
    several: list[str] = column.unique().to_pylist()
    if not all(map(is_entity_name, several)):
        raise _UnusualError
    found: list[str] = several if len(several) == 1 else column.to_pylist()
    return found


def _encoded(columns: Columns, name: str) -> list[bytes]:
    """A column of short texts as AMQP strings; content types are symbols."""
    column = columns[name][0]
    if not is_utf8(column):
        raise _UnusualError
    raws = raw_bytes(column, Kind.STRING)
    longest = max(map(len, filter(None, raws)), default=0)
    # By bytes, which are never fewer than characters.
    if longest > (MAX_ID_LENGTH if name in _IDS else 255):
        raise _UnusualError
    if name == "message_id" and not all(raws):
        raise _UnusualError
    if name == "content_type" and not all(map(bytes.isascii, filter(None, raws))):
        raise _UnusualError
    short = SYMBOL8 if name == "content_type" else STRING8
    return [NULL if raw is None else short[len(raw)] + raw for raw in raws]


def _fields(columns: Columns) -> Iterable[bytes]:
    """What comes after the message id in each row's properties."""
    if columns.keys().isdisjoint(_FIELDS):
        return repeat(_NO_FIELDS)
    pieces = [_encoded(columns, name) if name in columns else repeat(NULL) for name in _FIELDS]
    return list(map(b"".join, zip(*pieces, strict=False)))


def _applications(columns: Columns) -> Iterable[bytes]:
    problems: Problems = {}
    found = property_sections(*columns["application_properties"], problems)
    if problems:
        raise _UnusualError
    return found


def _derived(
    entities: list[str], size: int, ids: IdMaker, rests: Iterable[bytes], tails: Iterable[bytes]
) -> list[bytes]:
    """Ids from the bytes that each message would have without one."""
    makers = {name: ids.for_entity(name) for name in dict.fromkeys(entities)}
    derive = map(makers.__getitem__, entities) if len(entities) > 1 else repeat(makers[entities[0]], size)
    found = []
    for make, rest, tail in zip(derive, rests, tails, strict=False):
        # As with the SDK, properties that say nothing are left out.
        unnamed = b"" if rest == _NO_FIELDS else properties_head(1 + len(rest)) + NULL + rest
        raw = make(unnamed + tail).encode()
        found.append(STRING8[len(raw)] + raw)
    return found
