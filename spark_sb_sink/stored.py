"""A message or a row that was not sent, as a row of the Delta tables `overflow` and `quarantine`.

The columns are for people; `message` is what would have gone out, byte for byte, and `row` is what never became a
message. Knows Arrow, neither Spark nor Delta.
"""

import base64
import io
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from hashlib import blake2b
from typing import Any

import pyarrow as pa

from spark_sb_sink.amqp import (
    CodecError,
    Decimal32,
    Decimal64,
    Decimal128,
    Map,
    Message,
    Timestamp,
    Value,
    decode_message,
)
from spark_sb_sink.amqp.message import MAX_EXPIRY_MS
from spark_sb_sink.rows.contract import TEXT_COLUMNS

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CREATED, _EXPIRES = 9, 8
"""Properties that differ when the same row is encoded again later."""

COLUMNS: dict[str, tuple[str, pa.DataType, str]] = {
    "digest": ("string", pa.string(), "the same for the same message of the same entity: a replay adds none twice"),
    "entity": ("string", pa.string(), "the queue or topic that it was for"),
    **{name: ("string", pa.string(), "") for name in TEXT_COLUMNS},
    "body": ("binary", pa.binary(), "as it would have been sent"),
    "time_to_live_ms": ("bigint", pa.int64(), ""),
    "scheduled_enqueue_time": ("timestamp", pa.timestamp("us", "UTC"), ""),
    "application_properties": ("map<string,string>", pa.map_(pa.string(), pa.string()), "as texts, for reading"),
    "message": ("binary", pa.binary(), "the encoded message, with every type; null for a row that never became one"),
    "row": ("string", pa.string(), "the row as JSON, where it never became a message"),
    "reason": ("string", pa.string(), "why it was not sent"),
}
"""Each column: its Spark type, its Arrow type, and its comment."""


def of_message(entity: str, message: bytes, reason: str) -> dict[str, Any]:
    """The columns of an encoded message."""
    try:
        read = decode_message(message)
    except CodecError:  # our own encoder wrote it, so never; but then nothing is lost either
        digest = _digest(entity, message)
        return {"digest": digest, "entity": entity, "message": message, "reason": reason}
    properties = tuple(None if at in (_CREATED, _EXPIRES) else value for at, value in enumerate(read.properties))
    ttl = _ttl_of(read)
    # Cut off at the end of the calendar, it is shorter each time that the row is encoded.
    lasting = None if read.absolute_expiry_time == Timestamp(MAX_EXPIRY_MS) else ttl
    rest = repr((replace(read, properties=properties, body=()), lasting))
    return {
        "digest": _digest(entity, rest, _body_of(read)),
        "entity": entity,
        **{name: _text(getattr(read, name)) for name in TEXT_COLUMNS},
        "body": read.data,
        "time_to_live_ms": ttl,
        "scheduled_enqueue_time": _moment(read.scheduled_ms),
        "application_properties": _pairs(read.application_properties),
        "message": message,
        "reason": reason,
    }


def of_row(batch: pa.RecordBatch, number: int, reason: str, entity: str | None) -> dict[str, Any]:
    """The columns of a row that could be no message; `entity` is that of all rows, where there is no such column."""
    cells = {name: _cell(batch.column(at).slice(number, 1)) for at, name in enumerate(batch.schema.names)}
    row = json.dumps(_plain(cells), allow_nan=False, ensure_ascii=False, sort_keys=True)
    # A text that is none stands in `row` as its bytes.
    texts = {name: cells.get(name) for name in TEXT_COLUMNS} | {"entity": cells.get("entity", entity)}
    return {
        **{name: value if isinstance(value, str) else None for name, value in texts.items()},
        "digest": _digest(str(entity), row.encode()),
        "body": _bytes(batch.column("body").slice(number, 1)),
        "row": row,
        "reason": reason,
    }


def to_arrow(rows: Iterable[Mapping[str, Any]]) -> list[pa.Array]:
    """The columns of these rows, in the order of `COLUMNS`."""
    listed = list(rows)
    return [pa.array([row.get(name) for row in listed], arrow) for name, (_, arrow, _) in COLUMNS.items()]


def _bytes(column: pa.Array) -> bytes | None:
    """A body of bytes or text as its bytes, also where the text is no UTF-8."""
    found: bytes | None = column.cast(pa.large_binary()).to_pylist()[0]
    return found


def _cell(column: pa.Array) -> Any:
    """The value, or where Python has none for it (no UTF-8, a time beyond the calendar) the cell as Arrow's bytes."""
    try:
        return column.to_pylist()[0]
    except (ValueError, OverflowError):  # UnicodeDecodeError is one
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            return _bytes(column)
        sink = io.BytesIO()
        table = pa.table({"cell": column})
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        return {"arrow": _base64(sink.getvalue())}


def _plain(value: Any) -> Any:
    """The value in what JSON has."""
    match value:
        case dict():
            return {str(key): _plain(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_plain(inner) for inner in value]
        case bytes():
            return {"base64": _base64(value)}
        case datetime():
            return value.isoformat()
        case timedelta():
            return f"{Decimal(value // timedelta(microseconds=1)).scaleb(-6):f} s"
        case float() if not math.isfinite(value):
            return str(value)
        case None | bool() | int() | float() | str():
            return value
        case _:
            return str(value)


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _text(value: Value) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return _base64(value)
    if isinstance(value, Timestamp):
        moment = _moment(value.value)
        return f"{value.value} ms" if moment is None else moment.isoformat()
    if isinstance(value, Decimal32 | Decimal64 | Decimal128):
        return value.raw.hex()
    if hasattr(value, "value"):  # Long, Symbol and the like; what is described, without its descriptor
        return _text(value.value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _moment(milliseconds: int | None) -> datetime | None:
    """None also for what the calendar does not have."""
    try:
        return None if milliseconds is None else _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None


def _pairs(properties: Map) -> list[tuple[str, str | None]]:
    return [(_text(key) or "", _text(value)) for key, value in properties.pairs]


def _ttl_of(read: Message) -> int | None:
    """Times to live over 49 days do not fit the header, and are told by creation and expiry time."""
    created, expires = read.creation_time, read.absolute_expiry_time
    if isinstance(created, Timestamp) and isinstance(expires, Timestamp):
        return expires.value - created.value
    return read.ttl_ms


def _body_of(read: Message) -> bytes:
    return read.data if read.data is not None else repr(read.body).encode()


def _digest(*parts: str | bytes) -> str:
    state = blake2b(digest_size=16)
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        state.update(len(raw).to_bytes(8, "big"))
        state.update(raw)
    return state.hexdigest()
