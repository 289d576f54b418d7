"""Who of many syphons drains the overflow: one row of a Delta table, taken by whoever finds it free."""

import time
from collections.abc import Callable
from datetime import UTC, datetime

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_sb_sink.delta_state import LEASE, DeltaState

FOR_SECONDS = 120.0
"""A syphon that died keeps others waiting for so long. Much more than clocks of machines differ."""
RENEW_AFTER = 40.0
NAME = "overflow"


class Lease:
    """The right to drain the overflow, for one holder."""

    def __init__(
        self, spark: SparkSession, state: DeltaState, holder: str, clock: Callable[[], float] = time.time
    ) -> None:
        self._spark = spark
        self._state = state
        self._holder = holder
        self._clock = clock
        self._until = 0.0

    def take(self) -> bool:
        """Whether it is ours now, for some time; asks Delta only when what we have runs out."""
        now = self._clock()
        if now < self._until - FOR_SECONDS + RENEW_AFTER:
            return True
        table = self._state.delta_table(LEASE)
        until = now + FOR_SECONDS
        wanted = self._spark.createDataFrame(
            [(NAME, self._holder, datetime.fromtimestamp(until, UTC))], "name string, holder string, until timestamp"
        )
        free = (F.col("t.until") < F.lit(datetime.fromtimestamp(now, UTC))) | (F.col("t.holder") == self._holder)
        try:
            (
                table.alias("t")
                .merge(wanted.alias("s"), "t.name = s.name")
                .whenMatchedUpdateAll(condition=free)
                .whenNotMatchedInsertAll()
                .execute()
            )
        except PySparkException as error:
            if "Concurrent" not in type(error).__name__ + str(error):
                raise
            return self._lost()
        held = table.toDF().where(F.col("name") == NAME).orderBy(F.desc("until")).first()
        if held is None or held.holder != self._holder:
            return self._lost()
        self._until = until
        return True

    def give_back(self) -> None:
        """So that another need not wait."""
        if self._until:
            mine = (F.col("name") == NAME) & (F.col("holder") == self._holder)
            self._state.delta_table(LEASE).update(mine, {"until": F.lit(datetime.fromtimestamp(0, UTC))})
            self._until = 0.0

    def _lost(self) -> bool:
        self._until = 0.0
        return False
