"""Delta tables of a `state`, written directly, for commands that read them."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from spark_sb_sink import stored
from spark_sb_sink.amqp import encode_message
from spark_sb_sink.delta_state import DeltaState, address_of
from spark_sb_sink.lanes import Table


class Tables:
    """What a sink and a syphon would have left under `state`."""

    def __init__(self, spark: SparkSession, state: str) -> None:
        self.spark = spark
        self.path = state
        self.state = DeltaState(spark, state)
        self._batch = 0

    def unsent(self, table: Table, rows: Sequence[dict[str, Any]]) -> None:
        """One micro-batch of rows as `stored` makes them, in one write."""
        columns = pa.table(dict(zip(stored.COLUMNS, stored.to_arrow(rows), strict=True)))
        df = self.spark.createDataFrame(columns).selectExpr(
            "'query-1' AS query_id",
            f"CAST({self._batch} AS bigint) AS batch_id",
            "0 AS call",
            "0 AS partition_id",
            "current_timestamp() AS stored_at",
            "*",
        )
        df.coalesce(1).write.format("delta").mode("append").save(address_of(self.path, table.value))
        self._batch += 1

    def quarantine(self, entity: str, *ids: str, **how: Any) -> None:
        self.unsent(Table.QUARANTINE, [message(entity, i, **how) for i in ids])

    def overflow(self, entity: str, *ids: str) -> None:
        self.unsent(Table.OVERFLOW, [message(entity, i, reason="all backlog queues are out") for i in ids])

    def transfer(self, queue: str, entity: str, moved: int, at: datetime | None = None) -> None:
        self.state.note_transfers(
            [(at or datetime.now(UTC), "syphon-1", 1, queue, entity, moved, 0, 0, 0, 0, None, 10)]
        )


def message(
    entity: str, message_id: str, reason: str = "rejected: not like this", body: bytes = b"x"
) -> dict[str, Any]:
    """A message that could have been sent."""
    encoded = encode_message(body, message_id=message_id, application_properties={"color": "red"})
    return stored.of_message(entity, encoded, reason)


def never_a_message(entity: str, reason: str = "entity is no name of a queue or topic") -> dict[str, Any]:
    row = json.dumps({"entity": entity})
    return {"digest": "bad" + "0" * 29, "entity": entity, "row": row, "reason": reason}
