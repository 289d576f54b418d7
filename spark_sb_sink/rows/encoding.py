"""One Arrow batch of rows to the encoded messages of each entity, in the order of the rows; and the rows that are none.

A row that breaks the contract never raises: it is told with its reason, and the others go on. Knows neither Spark nor
links, and reads no clock.
"""

from collections.abc import Callable, Iterable
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

from spark_sb_sink.amqp.errors import UnencodableValueError
from spark_sb_sink.amqp.message import encode_message
from spark_sb_sink.entity_names import AN_ENTITY, is_entity_name
from spark_sb_sink.rows.clean import encode_clean
from spark_sb_sink.rows.columns import Problems, raw_bytes, symbols, texts, times_to_live, timestamps
from spark_sb_sink.rows.contract import TEXT_COLUMNS, RowPlan
from spark_sb_sink.rows.encoded import BadRow, EncodedBatch, EntityMessages
from spark_sb_sink.rows.ids import IdMaker
from spark_sb_sink.rows.kinds import Kind
from spark_sb_sink.rows.properties import property_sections

if TYPE_CHECKING:
    import pyarrow as pa

MAX_REASON = 500
"""A reason shows what it is about, which may be a text of any length; it travels with the receipt, so it is cut."""


class _Lane(NamedTuple):
    found: EntityMessages
    derive_id: Callable[[bytes], str]


def encode_batch(batch: "pa.RecordBatch", plan: RowPlan, ids: IdMaker, now_ms: int) -> EncodedBatch:
    """The batch's rows as messages. `plan` is that of the batch's schema; `now_ms` is when the messages are created."""
    clean = encode_clean(batch, plan, ids)
    return EncodedBatch(clean, []) if clean is not None else encode_row_by_row(batch, plan, ids, now_ms)


def encode_row_by_row(batch: "pa.RecordBatch", plan: RowPlan, ids: IdMaker, now_ms: int) -> EncodedBatch:
    """The same for any batch, and with the reason for each row that is no message."""
    problems: Problems = {}
    columns = _Columns(batch, plan, problems)
    lanes: dict[str, _Lane | None] = {}
    rows = zip(
        columns.entities(),
        columns.bodies(),
        *map(columns.texts, TEXT_COLUMNS),
        columns.times_to_live(),
        columns.scheduled(),
        columns.properties(),
        strict=False,  # what is not there repeats without end
    )
    for row, (
        entity, body, message_id, session_id, partition_key, correlation_id, subject, content_type, reply_to,
        reply_to_session_id, to, ttl_ms, scheduled_ms, properties,
    ) in enumerate(rows):  # fmt: skip
        if problems and row in problems:
            continue
        if entity is None or body is None:
            problems[row] = f"{'entity' if entity is None else 'body'} is null"
            continue
        try:
            lane = lanes[entity]
        except KeyError:
            known = is_entity_name(entity)
            lane = lanes[entity] = _Lane(EntityMessages(), ids.for_entity(entity)) if known else None
        if lane is None:
            problems[row] = f"entity takes {AN_ENTITY}, not {entity[:100]!r}"
            continue
        if message_id == "":
            problems[row] = "message_id is empty: duplicate detection would take all such messages for one"
            continue
        try:
            message = encode_message(
                body,
                message_id=message_id,
                session_id=session_id,
                partition_key=partition_key,
                correlation_id=correlation_id,
                subject=subject,
                content_type=content_type,
                reply_to=reply_to,
                reply_to_session_id=reply_to_session_id,
                to=to,
                ttl_ms=ttl_ms,
                created_ms=now_ms,
                scheduled_ms=scheduled_ms,
                encoded_properties=properties,
                derive_id=lane.derive_id,
            )
        except UnencodableValueError as error:
            problems[row] = str(error)
        else:
            lane.found.messages.append(message)
            lane.found.rows.append(row)
    return EncodedBatch(
        entities={entity: lane.found for entity, lane in lanes.items() if lane is not None and lane.found.rows},
        bad=[BadRow(row, problems[row][:MAX_REASON]) for row in sorted(problems)],
    )


class _Columns:
    """The columns of the contract as one value for each row; for a column that is not there, None without end."""

    def __init__(self, batch: "pa.RecordBatch", plan: RowPlan, problems: Problems) -> None:
        self._problems = problems
        self._entity = plan.entity
        self._size: int = batch.num_rows
        self._there = {
            name: (batch.column(name), of)
            for name, of in plan.columns
            if of.kind is not Kind.NULL  # all its values are null, and null is not set
        }

    def entities(self) -> Iterable[str | None]:
        # Ends with the last row, also where all other columns repeat.
        return self.texts("entity") if "entity" in self._there else repeat(self._entity, self._size)

    def bodies(self) -> Iterable[bytes | None]:
        column, of = self._there["body"]
        return raw_bytes(column, of.kind)

    def texts(self, name: str) -> Iterable[str | None]:
        if name not in self._there:
            return repeat(None)
        walk = symbols if name == "content_type" else texts
        return walk(self._there[name][0], name, self._problems)

    def times_to_live(self) -> Iterable[int | None]:
        if "time_to_live" not in self._there:
            return repeat(None)
        column, of = self._there["time_to_live"]
        return times_to_live(column, of.kind, "time_to_live", self._problems)

    def scheduled(self) -> Iterable[int | None]:
        if "scheduled_enqueue_time" not in self._there:
            return repeat(None)
        return timestamps(self._there["scheduled_enqueue_time"][0], "scheduled_enqueue_time", self._problems)

    def properties(self) -> Iterable[bytes]:
        if "application_properties" not in self._there:
            return repeat(b"")
        column, of = self._there["application_properties"]
        return property_sections(column, of, self._problems)
