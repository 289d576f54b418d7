"""How options reach the executors: as a broadcast, made once; not in a plan, nor in what py4j logs at debug level."""

import contextlib
from collections.abc import Callable

from pyspark import Broadcast, SparkContext
from pyspark.sql import SparkSession

from spark_sb_sink.options import Options


class Shipping:
    """The options of one sink or syphon, for the Spark that it is used with."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._shipped: tuple[SparkContext, Broadcast[Options]] | None = None

    def to(self, spark: SparkSession) -> Callable[[], Options]:
        """What brings the options when it is called on an executor."""
        context = spark.sparkContext
        if self._shipped is None or self._shipped[0] is not context:
            self._shipped = context, context.broadcast(self._options)
        broadcast = self._shipped[1]
        return lambda: broadcast.value

    def close(self) -> None:
        if self._shipped is not None:
            with contextlib.suppress(Exception):  # the context may be stopped by now
                self._shipped[1].destroy()
            self._shipped = None
