"""A look at the Delta tables of `state`: entity states, the last micro-batch, overflow, quarantine, the syphon's rate.

Reads only. How much of the overflow is drained is told by the checkpoint of the syphon's stream beside the table.
"""

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as F

from spark_sb_sink.delta_reading import reading
from spark_sb_sink.delta_state import LEDGER, LEFT, TRANSFERS, DeltaState
from spark_sb_sink.entity_look import Belief, EntityLook, Traffic, entity_looks
from spark_sb_sink.lanes import Table
from spark_sb_sink.quarantine import Quarantine
from spark_sb_sink.syphon.overflow_drain import CHECKPOINT

RATE_OVER = 300.0
"""Seconds of transfers that the present rate is taken from."""
TURN = 5.0
"""Seconds that a syphon's receipt speaks of: what it tells of was moved before it was written."""


@dataclass(frozen=True, slots=True)
class LastBatch:
    """The newest entry of the ledger."""

    at: datetime
    rows: int
    finished: bool
    error: str | None


@dataclass(frozen=True, slots=True)
class StateLook:
    """What Delta knows."""

    entities: tuple[EntityLook, ...] = ()
    last_batch: LastBatch | None = None
    overflow: int = 0
    """Rows that wait in the overflow."""
    overflow_exact: bool = True
    """False: at most so many wait; some of them may have been drained."""
    quarantine: int = 0
    moved: int = 0
    """Messages that syphons moved out of backlog queues in the time of the rate."""
    rate: float | None = None
    """Of those, messages a second; None where nothing was moved lately."""


def look(spark: SparkSession, state: str, now: datetime | None = None) -> StateLook:
    """Everything that there is; tables that were never made count as empty. A `StateError` for one that is damaged."""
    now = now or datetime.now(UTC)
    tables = DeltaState(spark, state)
    tables.check()
    with reading(state):
        overflow, exact = overflow_waiting(spark, tables)
        overflow += int(tables.read(LEFT).count()) if tables.exists(LEFT) else 0
        moved, rate = _rate(tables, now)
        return StateLook(
            entities=_entities(tables, now),
            last_batch=_last_batch(tables),
            overflow=overflow,
            overflow_exact=exact,
            quarantine=Quarantine(spark, state).count(),
            moved=moved,
            rate=rate,
        )


def _entities(tables: DeltaState, now: datetime) -> tuple[EntityLook, ...]:
    if not tables.exists(LEDGER):
        return ()
    ledger = tables.read(LEDGER)
    changes = ledger.select(F.col("at").alias("told_at"), F.explode("changes").alias("c")).select("told_at", "c.*")
    newest = F.row_number().over(Window.partitionBy("entity", "board").orderBy(F.desc("at"), F.desc("told_at")))
    beliefs = [
        Belief(row["entity"], row["board"], row["after"], _utc(row["at"]), row["reason"], _utc(row["told_at"]))
        for row in changes.withColumn("_nth", newest).where("_nth = 1").collect()
    ]
    if not beliefs:
        return ()
    begun = F.expr("timestamp_micros(unix_micros(at) - bigint(seconds * 1000000))")
    counts = ledger.select("at", begun.alias("begun"), F.explode("entities").alias("e")).select("at", "begun", "e.*")
    direct, diverted = F.col("primary") > 0, F.col("backlog") + F.col("overflow") > 0
    traffic = counts.groupBy("entity").agg(
        F.max(F.when(diverted, F.col("at"))).alias("diverted_at"),
        F.max(F.when(direct, F.col("at"))).alias("direct_at"),
        F.max(F.when(direct, F.col("begun"))).alias("direct_begun"),
    )
    found = {row["entity"]: Traffic(*(at and _utc(at) for at in row[1:])) for row in traffic.collect()}
    return entity_looks(beliefs, found, now)


def _utc(at: datetime) -> datetime:
    return at.astimezone(UTC)


def _last_batch(tables: DeltaState) -> LastBatch | None:
    if not tables.exists(LEDGER):
        return None
    row = tables.read(LEDGER).orderBy(F.desc("at")).first()
    return None if row is None else LastBatch(row["at"], row["rows"], row["finished"], row["error"])


def _rate(tables: DeltaState, now: datetime) -> tuple[int, float | None]:
    if not tables.exists(TRANSFERS):
        return 0, None
    recent = tables.read(TRANSFERS).where(
        (F.col("queue") != Table.OVERFLOW.value) & (F.col("at") >= F.lit(now - timedelta(seconds=RATE_OVER)))
    )
    row = recent.agg(F.sum("moved").alias("moved"), F.min("at").alias("first")).first()
    moved = int(row["moved"] or 0)
    if not moved:
        return 0, None
    return moved, moved / ((now - row["first"].astimezone(UTC)).total_seconds() + TURN)


# The overflow


@dataclass(frozen=True, slots=True)
class Offset:
    """How far the stream that drains the overflow has committed. `whole`: all of the table before `version`."""

    version: int
    whole: bool


def overflow_waiting(spark: SparkSession, tables: DeltaState) -> tuple[int, bool]:
    """Rows of the overflow that no syphon has read, and whether that is exact or the most that there can be."""
    if not tables.exists(Table.OVERFLOW.value):
        return 0, True
    total = int(tables.read(Table.OVERFLOW.value).count())
    location = str(tables.delta_table(Table.OVERFLOW.value).detail().first().location)
    try:
        found = _committed(spark, f"{location}/{CHECKPOINT}")
    except PySparkException as error:
        return total, error.getCondition() == "PATH_NOT_FOUND"  # then no syphon was ever here
    if found is None:
        return total, True
    if found.version <= 0:
        return total, found.whole
    try:
        # Nobody takes rows out of this table, so what was there before that version is what was drained.
        before = spark.read.format("delta").option("versionAsOf", found.version - 1).load(location)
        return total - int(before.count()), found.whole
    except PySparkException:  # Delta has cleaned that version away
        return total, False


def _committed(spark: SparkSession, checkpoint: str) -> Offset | None:
    """The offset of the last micro-batch that the stream has committed; None where it has committed none."""
    commits = spark.read.format("text").load(f"{checkpoint}/commits").select("_metadata.file_name").distinct()
    done = [int(row[0]) for row in commits.collect() if row[0].isdecimal()]
    if not done:
        return None
    text = spark.read.format("text").option("wholetext", True).load(f"{checkpoint}/offsets/{max(done)}").first()
    return None if text is None else parse_offset(text[0])


def parse_offset(text: str) -> Offset | None:
    """Of a file in the offset log: a version, a line about the batch, and one line for each source."""
    for line in reversed(text.splitlines()):
        try:
            found: Any = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict) and "reservoirVersion" in found:
            # An index below 0 is the place before the first file of that version.
            begun = int(found.get("index", -1)) >= 0 or bool(found.get("isStartingVersion"))
            return Offset(int(found["reservoirVersion"]), whole=not begun)
    return None
