"""A local Spark for commands that read Delta, and nothing of its chatter on the terminal."""

import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from spark_sb_sink.commands import fail
from spark_sb_sink.errors import UnsupportedSparkError, redact
from spark_sb_sink.java import JavaMissingError
from spark_sb_sink.options import Options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def require_state(options: Options, command: str) -> str:
    """The option, or exit code 2."""
    if options.state is None:
        fail(f"{command} reads Delta tables, and takes the option state in the file to know where they are.")
    return options.state


@contextmanager
def session(command: str) -> Iterator["SparkSession"]:
    """A session with Delta, stopped afterwards; one that this process has is used and left as it is."""
    try:
        from pyspark.sql import SparkSession

        from spark_sb_sink.sessions import local_session
    except ImportError as error:
        told = f"{command} needs {error.name}; install it with: pip install 'spark-sb-sink[spark]'."
        raise UnsupportedSparkError(told) from None
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):  # what they say is in the error as well
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    there = SparkSession.getActiveSession()
    if there is not None:
        yield there
        return
    spark = _start(lambda: local_session(f"spark_sb_sink {command}", delta=True, cores=2))
    try:
        yield spark
    finally:
        spark.stop()


def _start(make: "Callable[[], SparkSession]") -> "SparkSession":
    """What Java writes to standard error, now and later, goes to a file; its end is told where Spark does not start."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            return make()
        except JavaMissingError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever keeps a JVM from starting, a person reads one sentence
            file.seek(0)
            lines = [line for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
            why = redact(" ".join(lines[-3:]) or str(error))[-1000:]
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
    raise UnsupportedSparkError(f"Spark did not start: {why}")
