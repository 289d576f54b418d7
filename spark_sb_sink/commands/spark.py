"""A local Spark for commands that read Delta, and nothing of its chatter on the terminal."""

import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from spark_sb_sink.commands import fail
from spark_sb_sink.errors import UnsupportedSparkError, redact, told
from spark_sb_sink.java import JavaMissingError
from spark_sb_sink.options import Options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def require_state(options: Options, command: str) -> str:
    """The option, or exit code 2."""
    if options.state is None:
        fail(f"{command} reads Delta tables, and takes the option state in the file to know where they are.")
    return options.state


def require_spark(command: str) -> None:
    """`UnsupportedSparkError` where pyspark or what it needs is not installed."""
    try:
        import spark_sb_sink.sessions  # noqa: F401
    except ImportError as error:
        package = (error.name or "pyspark").partition(".")[0]
        raise UnsupportedSparkError(
            f"{command} needs {package}; install it from a clone of the project: pip install '.[spark]'."
        ) from None


@contextmanager
def session(command: str) -> Iterator["SparkSession"]:
    """A session with Delta, stopped afterwards; one that this process has is used and left as it is."""
    require_spark(command)
    from pyspark.sql import SparkSession

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):  # what they say is in the error as well
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    there = SparkSession.getActiveSession()
    if there is not None:
        yield there
        return
    with _java_is_quiet() as said:
        spark = start(command, delta=True, cores=2, said=said)
    try:
        yield spark
    finally:
        spark.stop()


def start(command: str, *, delta: bool, cores: int, said: Callable[[], Sequence[str]] = lambda: ()) -> "SparkSession":
    """A new local session. Where it does not start, a person reads one sentence; `said` are lines of Java's own."""
    require_spark(command)
    from spark_sb_sink.sessions import local_session

    try:
        return local_session(f"spark_sb_sink {command}", delta=delta, cores=cores)
    except JavaMissingError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever keeps a JVM from starting
        why = redact(" ".join(said()[-3:]) or told(error))[-1000:]
    raise UnsupportedSparkError(
        f"Spark did not start: {why.rstrip('. ')}. `spark-sb-sink doctor --no-spark` checks Java, Spark, Delta and "
        "its jars on this machine; see docs/troubleshooting.md."
    )


@contextmanager
def _java_is_quiet() -> Iterator[Callable[[], Sequence[str]]]:
    """A Java that is started meanwhile writes its errors, then and later, to a file. Gives the lines written so far."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:

        def said() -> list[str]:
            file.seek(0)
            return [line for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]

        os.dup2(file.fileno(), 2)
        try:
            yield said
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
