"""The quarantine table as an operator looks at it: what waits there, by a filter, less what was sent again.

Only reads. The table itself is never changed: what `replay` has sent stands in the table `replays`.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from spark_sb_sink.delta_reading import reading
from spark_sb_sink.delta_state import REPLAYS, DeltaState
from spark_sb_sink.errors import OptionError, told
from spark_sb_sink.lanes import Table

KEY = ("query_id", "batch_id", "digest")
"""Rows with the same key are the same message of the same micro-batch; replays count them."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Which rows are meant; all that is given has to hold."""

    where: str | None = None
    """A condition in Spark's SQL over the columns of the table."""
    entities: tuple[str, ...] = ()
    message_ids: tuple[str, ...] = ()
    reason: str | None = None
    """A part of the reason, in any case."""

    @property
    def given(self) -> bool:
        return bool(self.where or self.entities or self.message_ids or self.reason)

    def apply(self, rows: DataFrame) -> DataFrame:
        """The rows that are meant; an `OptionError` for a condition that Spark does not take."""
        for condition in self._conditions():
            rows = rows.where(condition)
        if self.where is None:
            return rows
        try:
            return rows.where(self.where)
        except PySparkException as error:
            why = f"--where got {self.where!r}, which Spark does not take as a condition: {told(error)}."
            raise OptionError(why) from None

    def _conditions(self) -> list[Column]:
        found = []
        if self.entities:
            found.append(F.col("entity").isin(*self.entities))
        if self.message_ids:
            found.append(F.col("message_id").isin(*self.message_ids))
        if self.reason:
            found.append(F.contains(F.lower("reason"), F.lit(self.reason.lower())))
        return found


@dataclass(frozen=True, slots=True)
class Quarantined:
    """One row for people; `replayable` is false for one that never became a message."""

    digest: str
    entity: str | None
    message_id: str | None
    reason: str
    stored_at: datetime
    query_id: str
    batch_id: int
    replayable: bool


class Quarantine:
    """The table under one `state`, through one Spark session."""

    def __init__(self, spark: SparkSession, state: str) -> None:
        self._name = state
        self.state = DeltaState(spark, state)

    def reading(self, wanted: Filter | None = None) -> AbstractContextManager[None]:
        """Around what runs a job over the table: what goes wrong there is a sentence."""
        return reading(self._name, None if wanted is None else wanted.where)

    def waiting(self, wanted: Filter | None = None) -> DataFrame | None:
        """The rows that were not sent again; None where nothing ever came into quarantine."""
        self.state.check()
        if not self.state.exists(Table.QUARANTINE.value):
            return None
        rows = self.state.read(Table.QUARANTINE.value)
        if self.state.exists(REPLAYS):
            done = self.state.read(REPLAYS).groupBy(*KEY).agg(F.sum("count").alias("_done"))
            nth = F.row_number().over(Window.partitionBy(*KEY).orderBy("stored_at", "partition_id"))
            rows = (
                rows.withColumn("_nth", nth)
                .join(done, list(KEY), "left")
                .where(F.col("_nth") > F.coalesce("_done", F.lit(0)))
                .drop("_nth", "_done")
            )
        return rows if wanted is None else wanted.apply(rows)

    def count(self, wanted: Filter | None = None) -> int:
        """How many wait."""
        with self.reading(wanted):
            rows = self.waiting(wanted)
            return 0 if rows is None else int(rows.count())

    def newest(self, wanted: Filter | None = None, limit: int = 50) -> list[Quarantined]:
        """The newest first, without their bodies."""
        with self.reading(wanted):
            rows = self.waiting(wanted)
            if rows is None:
                return []
            ordered = rows.orderBy(F.desc("stored_at"), "message_id", "digest").limit(limit)
            return [brief(row) for row in in_brief(ordered).collect()]

    def find(self, name: str, limit: int = 20) -> list[dict[str, Any]]:
        """Whole rows, by message id or by the beginning of a digest, also those that were sent again."""
        with self.reading():
            waiting = self.waiting()
            if waiting is None:
                return []
            meant = F.col("message_id") == name
            if len(name) >= _SHORTEST_DIGEST:
                meant |= F.col("digest").startswith(name)
            keys = {tuple(row) for row in waiting.where(meant).select(*KEY).collect()}
            rows = self.state.read(Table.QUARANTINE.value)
            found = rows.where(meant).orderBy("stored_at").limit(limit).collect()
        return [{**row.asDict(), "replayed": tuple(row[key] for key in KEY) not in keys} for row in found]


_SHORTEST_DIGEST = 6


def in_brief(rows: DataFrame) -> DataFrame:
    """The columns of `Quarantined`."""
    replayable = F.col("message").isNotNull().alias("replayable")
    return rows.select(*(replayable if name == "replayable" else name for name in Quarantined.__slots__))


def brief(row: Any) -> Quarantined:
    """A row of `in_brief`."""
    return Quarantined(*(row[name] for name in Quarantined.__slots__))
