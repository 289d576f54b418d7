"""What Spark throws while it reads the tables of `state`, as errors for people: a bad condition, or a bad table.

Knows no table.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from spark_sb_sink.errors import OptionError, SparkSbSinkError, StateError, told

_OF_THE_CONDITION = ("22", "21", "P0")
"""Classes of SQLSTATE: a value that a cast or a function does not take, too many rows, an error of one's own."""


@contextmanager
def reading(state: str, where: str | None = None) -> Iterator[None]:
    """Around everything that runs a job: conditions fail on rows, and files are missed, only then."""
    found: SparkSbSinkError
    try:
        yield
        return
    except PySparkException as error:
        if where is not None and (error.getSqlState() or "").startswith(_OF_THE_CONDITION):
            found = OptionError(f"--where got {where!r}, which fails on a row of the table: {told(error)}.")
        else:
            found = StateError(state=state, detail=told(error)[:500])
    except Py4JJavaError as error:  # those of Java that PySpark has no class of its own for
        found = StateError(state=state, detail=told(error)[:500])
    raise found
