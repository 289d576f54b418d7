"""Rows as Arrow batches, through the contract and the encoder and back."""

from typing import Any

import pyarrow as pa

from spark_sb_sink.amqp import Message, decode_message
from spark_sb_sink.rows import EncodedBatch, IdMaker, check_schema, encode_batch, fields_of_arrow

NOW_MS = 1_700_000_000_000


def ids(query: str = "query", batch: int = 7, partition: int = 0) -> IdMaker:
    return IdMaker(query, batch, partition)


def encode(columns: dict[str, Any], entity: str | None = "orders", maker: IdMaker | None = None) -> EncodedBatch:
    """Columns as Arrow arrays or lists; a body for each row where none is given."""
    size = len(next(iter(columns.values())))
    batch = pa.record_batch({"body": [b"body"] * size} | columns)
    plan = check_schema(fields_of_arrow(batch.schema), None if "entity" in columns else entity)
    return encode_batch(batch, plan, maker or ids(), NOW_MS)


def message_of(**cells: Any) -> Message:
    """The one message of a row that is right; a cell is a value, or an Arrow array of one."""
    encoded = encode({name: cell if isinstance(cell, pa.Array) else [cell] for name, cell in cells.items()})
    assert encoded.bad == []
    (found,) = encoded.entities.values()
    assert found.rows == [0]
    return decode_message(found.messages[0])


def reason_of(**cells: Any) -> str:
    """Why the one row is bad."""
    encoded = encode({name: cell if isinstance(cell, pa.Array) else [cell] for name, cell in cells.items()})
    assert encoded.entities == {}
    (bad,) = encoded.bad
    assert bad.row == 0
    return bad.reason


def one(value: Any, of: pa.DataType) -> pa.Array:
    return pa.array([value], of)


def not_utf8() -> pa.Array:
    """A string column with bytes that are no UTF-8, as a cast of binary makes one in Spark."""
    return pa.StringArray.from_buffers(1, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"a\xff"))
