"""Who of many does what only one may do at a time: one row of a Delta table, taken by whoever finds it free."""

import contextlib
import time
from collections.abc import Callable
from datetime import UTC, datetime

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_sb_sink.delta_state import LEASE, DeltaState

FOR_SECONDS = 120.0
"""A holder that died keeps others waiting for so long. Much more than clocks of machines differ."""
RENEW_AFTER = 40.0
MARGIN = 30.0
"""Seconds before its end at which a lease that could not be renewed is given up: time to stop what it was for."""
TRIES = 3
NAME = "overflow"


class ConflictError(Exception):
    """Others changed the table whenever we did."""


class Lease:
    """The right to drain the overflow, or to do what else is named, for one holder."""

    def __init__(
        self,
        spark: SparkSession,
        state: DeltaState,
        holder: str,
        clock: Callable[[], float] = time.time,
        name: str = NAME,
    ) -> None:
        self._spark = spark
        self._state = state
        self._holder = holder
        self._clock = clock
        self._name = name
        self._until = 0.0

    def take(self) -> bool:
        """Whether it is ours now, for some time; asks Delta only when what we have runs out."""
        now = self._clock()
        if now < self._until - FOR_SECONDS + RENEW_AFTER:
            return True
        until = now + FOR_SECONDS
        self._state.make(LEASE)
        # Asked and answered in one transaction: of two that find it free, one fails.
        free = f"(until < {_moment(now)} OR holder = {_text(self._holder)})"
        try:
            taken = self._update(until, free)
            if not taken and self._state.read(LEASE).where(f"name = {_text(self._name)}").isEmpty():
                self._state.note_lease(self._name, datetime.fromtimestamp(0, UTC))
                taken = self._update(until, free)
        except ConflictError:  # over another lease, say: nobody has ours before its time, and we ask again
            return now < self._until - MARGIN
        self._until = until if taken else 0.0
        return taken

    def give_back(self) -> None:
        """So that another need not wait."""
        if self._until:
            with contextlib.suppress(ConflictError):  # then others wait for its end
                self._update(0.0, f"holder = {_text(self._holder)}")
            self._until = 0.0

    def _update(self, until: float, condition: str) -> bool:
        """Whether the row was ours to change. Two rows, made at the same moment, are changed as one."""
        update = (
            f"UPDATE {self._state.sql_name(LEASE)} "  # noqa: S608 - Delta takes no parameters; texts are quoted
            f"SET holder = {_text(self._holder)}, until = {_moment(until)} "
            f"WHERE name = {_text(self._name)} AND {condition}"
        )
        for _ in range(TRIES):
            try:
                done = self._spark.sql(update).first()
            except PySparkException as error:
                if "Concurrent" not in type(error).__name__ + str(error):
                    raise
                continue
            return done is not None and int(done[0]) > 0
        raise ConflictError


def _moment(seconds: float) -> str:
    return f"timestamp_millis({int(seconds * 1000)})"


def _text(value: str) -> str:
    quoted = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{quoted}'"
