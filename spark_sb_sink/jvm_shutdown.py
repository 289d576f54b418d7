"""Hears of a SIGTERM that the JVM gets, as under spark-submit, before Spark stops everything for it."""

import contextlib
import threading
from collections.abc import Iterator

from pyspark.sql import SparkSession

_BEFORE_SPARK = 100
"""Hadoop runs shutdown hooks by priority, one after the other; Spark's own has 40."""


class _Hook:
    def __init__(self, stop: threading.Event, ended: threading.Event, within: float) -> None:
        self._stop, self._ended, self._within = stop, ended, within

    def run(self) -> None:
        """Called by the JVM."""
        self._stop.set()
        self._ended.wait(self._within)

    class Java:
        implements = ("java.lang.Runnable",)


@contextlib.contextmanager
def held_back(spark: SparkSession, stop: threading.Event, within: float) -> Iterator[None]:
    """The JVM's shutdown sets `stop`, and waits so many seconds for the end of the block."""
    from pyspark.java_gateway import ensure_callback_server_started

    context = spark.sparkContext
    ensure_callback_server_started(context._gateway)
    ended = threading.Event()
    jvm = context._jvm
    # A thread of Java's own stands for the hook: it is kept in a set, and asked for its hash.
    hook = jvm.java.lang.Thread(_Hook(stop, ended, within))
    manager = jvm.org.apache.hadoop.util.ShutdownHookManager.get()
    manager.addShutdownHook(hook, _BEFORE_SPARK, int(within) + 5, jvm.java.util.concurrent.TimeUnit.SECONDS)
    try:
        yield
    finally:
        ended.set()
        with contextlib.suppress(Exception):  # the JVM may be on its way out, or gone
            if not manager.isShutdownInProgress():
                manager.removeShutdownHook(hook)
