"""The syphon inside the sink's own application (`enable_syphon`): started with it, looked after, stopped with it.

A syphon that came to its end by a fault stops no healthy pipeline: it is told, and started again a minute later.
"""

import time
from collections.abc import Callable, Sequence

from pyspark.sql import SparkSession

from spark_sb_sink.errors import told
from spark_sb_sink.events import Listener, Warned, tell
from spark_sb_sink.options import Options
from spark_sb_sink.syphon.query import RunningSyphon, Syphon

AGAIN_AFTER = 60.0
SINK_SLOTS = 1
"""Task slots that have to be left for the sink."""


class SyphonBeside:
    """For one thread at a time."""

    def __init__(
        self, options: Options, listeners: Sequence[Listener], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._syphon = Syphon(options, listeners=listeners, slots_taken=SINK_SLOTS)
        self._listeners = listeners
        self._clock = clock
        self._running: RunningSyphon | None = None
        self._again_at = 0.0

    def start(self, spark: SparkSession) -> None:
        """Raises where it cannot be started, for want of a slot say."""
        # A session of its own: that of a micro-batch ends with the sink's query.
        self._running = self._syphon.start(spark.newSession())

    def look_after(self, spark: SparkSession) -> None:
        """Now and then, between micro-batches."""
        try:
            if self._running is not None:
                if self._running.active:
                    return
                ended, self._running = self._running, None
                self._again_at = self._clock() + AGAIN_AFTER
                try:
                    ended.await_end(0.1)
                finally:
                    ended.stop()
            elif self._clock() >= self._again_at:
                self._again_at = self._clock() + AGAIN_AFTER
                self.start(spark)
        except Exception as error:  # noqa: BLE001 - whatever it is, the pipeline goes on
            text = f"the syphon of this application is out, and is started again in {AGAIN_AFTER:g} s: {told(error)}"
            tell(self._listeners, Warned(text))

    @property
    def active(self) -> bool:
        return self._running is not None and self._running.active

    def stop(self) -> None:
        if self._running is not None:
            self._running.stop()
            self._running = None
