"""The syphon as a job: what `jobs/syphon.py` and `spark-sb-sink syphon` run.

Exit codes: 0 stopped by SIGTERM or SIGINT, or the backlog is empty; 1 it came to its end by a fault; 2 the options are
wrong or the pair cannot be made; 3 with --until-empty: the time limit passed, or a signal came, and something is left.
Where spark-submit's JVM got the SIGTERM, the code is its own, 143.
"""

import argparse
import json
import signal
import sys
import threading
from collections.abc import Callable, Sequence

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from spark_sb_sink.durations import parse_duration
from spark_sb_sink.errors import OptionError, PairingError, SparkSbSinkError, StateError, UnsupportedSparkError, told
from spark_sb_sink.jvm_shutdown import held_back
from spark_sb_sink.options import Options
from spark_sb_sink.sessions import job_session
from spark_sb_sink.stopping import caught
from spark_sb_sink.syphon.query import STOP_WITHIN, Drained, RunningSyphon, Syphon

FAILED, WRONG, LEFT = 1, 2, 3
LOOK_EVERY = 0.2
AND_END = 10.0
"""Seconds for the query to end after its last turn."""
_UNSEEN = " The overflow was not looked at: set the option state as the sink has it, if it has one."


def main(argv: Sequence[str] | None = None) -> int:
    """Under spark-submit; the exit code."""
    parser = argparse.ArgumentParser(
        prog="syphon.py",
        description="Bring what waits in the backlog queues and in the overflow home to its entities.",
        epilog="Example: spark-submit jobs/syphon.py --conf-file conf/connection-strings.toml",
    )
    parser.add_argument("--conf-file", required=True, help="a TOML file with the options")
    parser.add_argument("--until-empty", action="store_true", help="end once nothing is left")
    parser.add_argument("--within", help='with --until-empty: a time limit such as "10m"; exit code 3 when it passes')
    parser.add_argument("--json", action="store_true", help="print the outcome of --until-empty as JSON")
    given = parser.parse_args(argv)
    return run(
        given.conf_file,
        until_empty=given.until_empty,
        within=given.within,
        as_json=given.json,
        session=lambda options: job_session("spark_sb_sink syphon"),
        program="syphon.py",
    )


def run(
    conf_file: str,
    *,
    until_empty: bool,
    within: str | None,
    as_json: bool,
    session: Callable[[Options], SparkSession],
    program: str,
) -> int:
    """Run it, tell how it ended, and give the exit code."""
    try:
        options = Options.from_toml(conf_file)
        limit = _limit(within, until_empty)
        if as_json and not until_empty:
            raise OptionError("--json prints the outcome of --until-empty, and was given without it.")
        stop = threading.Event()
        with caught(stop, signal.SIGTERM):
            spark = session(options)
            try:
                # A new session takes SIGINT for itself, and where the JVM came first, SIGTERM goes to the JVM.
                with caught(stop, signal.SIGINT), held_back(spark, stop, STOP_WITHIN + AND_END):
                    if until_empty:
                        return _tell(Syphon(options).drain_until_empty(spark, limit, stop), as_json, stop.is_set())
                    _run_until(stop, Syphon(options).start(spark))
                    return 0
            finally:
                spark.stop()
    except (OptionError, PairingError, StateError, UnsupportedSparkError) as error:
        print(f"{program}: {error}", file=sys.stderr)
        return WRONG
    except SparkSbSinkError as error:
        print(f"{program}: the syphon ended: {error}", file=sys.stderr)
        return FAILED
    except StreamingQueryException as error:
        print(f"{program}: the syphon ended by an error of Spark's: {told(error)}", file=sys.stderr)
        return FAILED


def _run_until(stop: threading.Event, running: RunningSyphon) -> None:
    with running:
        while not stop.is_set() and not running.await_end(LOOK_EVERY):
            pass


def _limit(within: str | None, until_empty: bool) -> float | None:
    if within is None:
        return None
    if not until_empty:
        raise OptionError("--within is a time limit for --until-empty, and was given without it.")
    try:
        return parse_duration(within)
    except ValueError:
        raise OptionError(f'--within got {within!r}, but takes a duration such as "10m".') from None


def _tell(drained: Drained, as_json: bool, stopped: bool) -> int:
    unseen = _UNSEEN if drained.overflow_empty is None else ""
    if as_json:
        outcome = {
            "empty": drained.empty,
            "moved": drained.moved,
            "left": dict(drained.left),
            "overflow_empty": drained.overflow_empty,
        }
        print(json.dumps(outcome))
    elif drained.empty:
        print(f"The backlog is empty; {drained.moved} messages were moved.{unseen}")
    else:
        left = ", ".join(_told(queue, count) for queue, count in drained.left.items()) or "nothing in the queues"
        overflow = "; the overflow is not drained" if drained.overflow_empty is False else ""
        why = "Stopped" if stopped else "The time is up"
        print(f"{why}; {drained.moved} messages were moved, and there are left: {left}{overflow}.{unseen}")
    return 0 if drained.empty else LEFT


def _told(queue: str, count: int | None) -> str:
    return f"{queue}, which cannot be looked at" if count is None else f"{count} in {queue}"
