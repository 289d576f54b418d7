"""The Delta tables of the option `state`: overflow, quarantine, ledger and the rest, made on first use.

A replay adds what is missing and nothing twice: rows of one call in a micro-batch are compared by digest and by how
many there are, so that also identical messages keep their number. Knows nothing of sending.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Observation, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_sb_sink import stored
from spark_sb_sink.board_records import NotedChange
from spark_sb_sink.errors import StateError, told
from spark_sb_sink.events import RouteCounts
from spark_sb_sink.lanes import Table

LEDGER = "ledger"
TRANSFERS = "transfers"
LEASE = "lease"
REPLAYS = "replays"
LEFT = "overflow_left"

_SPARKS_OWN = "spark_catalog"
_CATALOG = f"spark.sql.catalog.{_SPARKS_OWN}"
_NO_CATALOG = (
    f"Delta's jar is there, but the session's catalog makes no Delta tables: {_CATALOG} is not set, and takes "
    "org.apache.spark.sql.delta.catalog.DeltaCatalog."
)

_BATCH = {
    "query_id": ("string", "the streaming query, or the run of a batch write"),
    "batch_id": ("bigint", "the micro-batch"),
    "call": ("int", "which call of a sink it was within the micro-batch: 0, 1, …"),
    "partition_id": ("int", "the task of the micro-batch"),
    "stored_at": ("timestamp", "when it was written here"),
}
_UNSENT_COLUMNS = {**_BATCH, **{name: (spark, about) for name, (spark, _, about) in stored.COLUMNS.items()}}
_COUNTS = (
    "array<struct<entity:string,primary:bigint,backlog:bigint,overflow:bigint,quarantine:bigint,abandoned:bigint>>"
)
_CHANGES = "array<struct<entity:string,before:string,after:string,reason:string,at:timestamp,board:string>>"
_LEDGER_COLUMNS = {
    "query_id": _BATCH["query_id"],
    "batch_id": _BATCH["batch_id"],
    "call": _BATCH["call"],
    "at": ("timestamp", "when the micro-batch ended"),
    "finished": ("boolean", "whether every row was acknowledged; a batch that failed is told too"),
    "rows": ("bigint", "rows as Spark counted them"),
    "seconds": ("double", "how long it took"),
    "entities": (_COUNTS, "where the rows of each entity went"),
    "changes": (_CHANGES, "what executors learned of entities"),
    "error": ("string", "why it failed"),
    "quiet_batches": ("bigint", "batches since the last entry that went to the primary as a whole, and are not told"),
    "quiet_rows": ("bigint", "their rows"),
}
_TRANSFERS_COLUMNS = {
    "at": ("timestamp", "when the syphon's turn ended"),
    "syphon": ("string", "which syphon: they may be many"),
    "batch_id": ("bigint", "its micro-batch"),
    "queue": ("string", "the backlog queue; overflow for the overflow table"),
    "entity": ("string", "the queue or topic that the messages were for"),
    "moved": ("bigint", "accepted there, and gone from the backlog"),
    "deferred": (
        "bigint",
        "put aside in the backlog queue, to let others pass; from overflow: passed on to a backlog queue",
    ),
    "dead_lettered": ("bigint", "in the backlog queue; for overflow: put into quarantine"),
    "lost_locks": ("bigint", "taken over by another syphon meanwhile"),
    "unconfirmed": ("bigint", "sent, but the settlement was not answered: they may come again, with the same id"),
    "oldest": ("timestamp", "when the oldest of them came to the backlog"),
    "bytes": ("bigint", "of those that were moved"),
}
_LEASE_COLUMNS = {
    "name": ("string", "what is leased"),
    "holder": ("string", "which syphon has it"),
    "until": ("timestamp", "when others may take it"),
}
_REPLAYS_COLUMNS = {
    "at": ("timestamp", "when they were sent again"),
    "query_id": _BATCH["query_id"],
    "batch_id": _BATCH["batch_id"],
    "digest": ("string", "which rows of the quarantine"),
    "count": ("bigint", "how many of them, where several are the same"),
}
_LEFT_COLUMNS = {
    "part": ("string", "written at once; a part never grows"),
    "entity": ("string", "the queue or topic that it is for"),
    "message": ("binary", "as it stands in the overflow"),
    "stored_at": ("timestamp", "when it came to the overflow"),
    "bytes": ("bigint", "of the message"),
    "reason": ("string", "why it was not sent"),
    "left_at": ("timestamp", "when it was written here"),
}
_COLUMNS = {
    LEFT: _LEFT_COLUMNS,
    REPLAYS: _REPLAYS_COLUMNS,
    TRANSFERS: _TRANSFERS_COLUMNS,
    LEASE: _LEASE_COLUMNS,
    Table.OVERFLOW.value: _UNSENT_COLUMNS,
    Table.QUARANTINE.value: _UNSENT_COLUMNS,
    LEDGER: _LEDGER_COLUMNS,
}


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One micro-batch, as the ledger tells of it."""

    query_id: str
    batch_id: int
    at: float
    finished: bool
    rows: int
    seconds: float
    entities: tuple[RouteCounts, ...]
    changes: tuple[NotedChange, ...] = ()
    error: str | None = None
    quiet_batches: int = 0
    quiet_rows: int = 0
    call: int = 0


def is_path(state: str) -> bool:
    """Whether the option names a path; else it is a prefix of table names."""
    return "/" in state or "\\" in state or bool(re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", state))


def address_of(state: str, table: str) -> str:
    """The path or name of one of the tables."""
    if is_path(state):
        return f"{state.rstrip('/')}/{table}"
    return f"{state}{table}" if state.endswith((".", "_")) else f"{state}_{table}"


class DeltaState:
    """The tables under one `state`, through one Spark session."""

    def __init__(self, spark: SparkSession, state: str) -> None:
        self._spark = spark
        self._state = state
        self._made: set[str] = set()

    def check(self) -> None:
        """Raises a `StateError` where Delta cannot be used there; makes nothing."""
        try:
            self.exists(LEDGER)
            if not self._has_delta_catalog():
                raise self._error(_NO_CATALOG)
        except StateError:
            raise
        except Exception as error:  # noqa: BLE001 - a missing jar shows as whatever the JVM makes of it
            raise self._error(error) from None

    def exists(self, table: str) -> bool:
        """Whether the table was made."""
        try:
            from delta.tables import DeltaTable
        except ImportError:
            raise StateError(state=self._state, detail="the Python package delta-spark is not installed") from None
        address = address_of(self._state, table)
        if is_path(self._state):
            return bool(DeltaTable.isDeltaTable(self._spark, address))
        return bool(self._spark.catalog.tableExists(address))

    def _has_delta_catalog(self) -> bool:
        """Whether tables can be made: with the jar alone they can be looked for, and written once they are there."""
        address = address_of(self._state, LEDGER)
        named = not is_path(self._state) and address.count(".") > 1
        catalog = address.partition(".")[0] if named else self._spark.catalog.currentCatalog()
        if catalog != _SPARKS_OWN or "DATABRICKS_RUNTIME_VERSION" in os.environ:
            return True
        return self._spark.conf.get(_CATALOG, "") not in ("", "builtin")

    def read(self, table: str) -> DataFrame:
        """The table, which has to exist."""
        address = address_of(self._state, table)
        return self._spark.read.format("delta").load(address) if is_path(self._state) else self._spark.table(address)

    def add(self, table: Table, rows: DataFrame, query_id: str, batch_id: int, call: int = 0) -> int:
        """Add the rows of one call in a micro-batch that are not there yet; how many there were, those included."""
        try:
            self.make(table.value)
            counted = Observation()
            wanted = rows.observe(counted, F.count(F.lit(1)).alias("rows"))
            there = (
                self.read(table.value)
                .where(_of(query_id, batch_id, call))
                .groupBy("digest")
                .agg(F.count(F.lit(1)).alias("_there"))
            )
            if not there.isEmpty():  # a replay
                nth = F.row_number().over(Window.partitionBy("digest").orderBy("partition_id"))
                wanted = (
                    wanted.withColumn("_nth", nth)
                    .join(there, "digest", "left")
                    .where(F.col("_nth") > F.coalesce("_there", F.lit(0)))
                )
            self._append(
                table.value,
                wanted.withColumns(
                    {
                        "query_id": F.lit(query_id),
                        "batch_id": F.lit(batch_id).cast("bigint"),
                        "call": F.lit(call),
                        "stored_at": F.current_timestamp(),
                    }
                ).select(*_UNSENT_COLUMNS),
            )
            return int(counted.get["rows"])
        except PySparkException as error:
            raise self._error(error) from error

    def finished(self, query_id: str, batch_id: int, call: int = 0) -> bool:
        """Whether the ledger shows this call in a micro-batch as finished."""
        try:
            if not self.exists(LEDGER):
                return False
            return not self.read(LEDGER).where(_of(query_id, batch_id, call) & F.col("finished")).isEmpty()
        except PySparkException as error:
            raise self._error(error) from error

    def note(self, entry: LedgerEntry) -> None:
        """Add an entry to the ledger."""
        self._note(LEDGER, [_ledger_row(entry)])

    def note_transfers(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Add what a syphon moved, as tuples in the order of the columns."""
        self._note(TRANSFERS, rows)

    def note_replays(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Add which rows of the quarantine were sent again, as tuples in the order of the columns."""
        self._note(REPLAYS, rows)

    def _note(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        try:
            self.make(table)
            schema = ", ".join(f"{name} {spark}" for name, (spark, _) in _COLUMNS[table].items())
            self._append(table, self._spark.createDataFrame(list(rows), StructType.fromDDL(schema)).coalesce(1))
        except PySparkException as error:
            raise self._error(error) from error

    def note_lease(self, name: str, until: datetime) -> None:
        """A lease that nobody holds."""
        self._note(LEASE, [(name, "", until)])

    def add_left(self, rows: DataFrame, part: str) -> int:
        """Add a part to what is left of the overflow; how many rows there were."""
        try:
            self.make(LEFT)
            counted = Observation()
            added = {
                "part": F.lit(part),
                "bytes": F.octet_length("message").cast("bigint"),
                "left_at": F.current_timestamp(),
            }
            wanted = rows.observe(counted, F.count(F.lit(1)).alias("rows")).withColumns(added)
            self._append(LEFT, wanted.select(*_LEFT_COLUMNS))
            return int(counted.get["rows"])
        except PySparkException as error:
            raise self._error(error) from error

    def sql_name(self, table: str) -> str:
        """The table as SQL names it."""
        address = address_of(self._state, table)
        return f"delta.`{address}`" if is_path(self._state) else address

    def delta_table(self, table: str) -> Any:
        """The table as Delta's own object, made if it is not there."""
        from delta.tables import DeltaTable

        self.make(table)
        address = address_of(self._state, table)
        if is_path(self._state):
            return DeltaTable.forPath(self._spark, address)
        return DeltaTable.forName(self._spark, address)

    def _append(self, table: str, rows: DataFrame) -> None:
        writer = rows.write.format("delta").mode("append")
        address = address_of(self._state, table)
        if is_path(self._state):
            writer.save(address)
        else:
            writer.saveAsTable(address)

    def make(self, table: str) -> None:
        """Make the table if it is not there."""
        if table in self._made:
            return
        if not self.exists(table):
            from delta.tables import DeltaTable

            address = address_of(self._state, table)
            builder = DeltaTable.createIfNotExists(self._spark)
            builder = builder.location(address) if is_path(self._state) else builder.tableName(address)
            for name, (spark, about) in _COLUMNS[table].items():
                builder = builder.addColumn(name, spark, comment=about or None)
            builder.execute()
        self._made.add(table)

    def _error(self, error: Exception | str) -> StateError:
        return StateError(state=self._state, detail=(error if isinstance(error, str) else told(error))[:500])


def _of(query_id: str, batch_id: int, call: int) -> Column:
    return (F.col("query_id") == query_id) & (F.col("batch_id") == batch_id) & (F.col("call") == call)


def _ledger_row(entry: LedgerEntry) -> tuple[Any, ...]:
    return (
        entry.query_id,
        entry.batch_id,
        entry.call,
        _moment(entry.at),
        entry.finished,
        entry.rows,
        entry.seconds,
        [(e.entity, e.primary, e.backlog, e.overflow, e.quarantine, e.abandoned) for e in entry.entities],
        _changes(entry.changes),
        entry.error,
        entry.quiet_batches,
        entry.quiet_rows,
    )


def _changes(changes: Sequence[NotedChange]) -> list[tuple[Any, ...]]:
    return [
        (
            noted.change.entity,
            noted.change.before.value,
            noted.change.after.value,
            noted.change.reason,
            _moment(noted.wall_time),
            noted.board,
        )
        for noted in changes
    ]


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
