"""A Spark application that runs the Python and SQL of pages, as one who reads a page would: block after block.

`python -m tests.docs.app FOLDER < blocks.json` writes what went wrong to FOLDER/failures.json. What a page leaves open
is given here and nowhere else: `spark`, `rows`, `metrics`, a table `orders`, paths under /lake and /data.
"""

import json
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from spark_sb_sink import delta_state
from spark_sb_sink.sessions import local_session
from spark_sb_sink.sink import ServiceBusSink
from spark_sb_sink.syphon.query import RunningSyphon

STATE = "/lake/servicebus"
THRIFTY = {"spark.databricks.delta.snapshotPartitions": "1"}
"""Delta takes 50 tasks to read the log of a table with two rows."""
OUR_OWN = "spark-sb-sink-"
"""What the names of the syphon's queries start with: they have no end to wait for."""


def _stop(running: RunningSyphon) -> None:
    if running.active:
        running.stop()


_ENDS: dict[type, Callable[[Any], None]] = {RunningSyphon: _stop, ServiceBusSink: ServiceBusSink.close}


class Rows:
    """For pages that write `rows`, streaming in one line and not in the next."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def _of(self, orders: DataFrame) -> DataFrame:
        return orders.selectExpr("'orders' as entity", "order_id as message_id", "to_json(struct(*)) as body")

    @property
    def writeStream(self) -> Any:
        return self._of(self._spark.readStream.table("orders")).writeStream

    @property
    def write(self) -> Any:
        return self._of(self._spark.table("orders")).write


class Metrics:
    """For pages that count with what their readers have."""

    def gauge(self, name: str, value: float) -> None: ...

    def event(self, text: str) -> None: ...


class Reader:
    """Runs the blocks of pages, and remembers what went wrong."""

    def __init__(self, folder: Path, tables: Iterable[str]) -> None:
        """`tables`: those of the option state that SQL asks for."""
        self._folder = folder
        self._spark = local_session(
            "the pages", delta=True, cores=4, **THRIFTY, **{"spark.sql.warehouse.dir": str(folder / "warehouse")}
        )
        self._spark.sql("create table orders (order_id string, customer_id long, amount double) using delta")
        self._spark.sql("insert into orders values ('o-1', 7, 9.5), ('o-2', 8, 0.5)")
        state = delta_state.DeltaState(self._spark, self._placed(STATE, 0))
        for table in tables:
            state.make(table)

    def _placed(self, code: str, line: int) -> str:
        code = code.replace("/lake/checkpoints/", f"{self._folder}/checkpoints-{line}/")
        for top in ("lake", "data"):
            code = code.replace(f"/{top}/", f"{self._folder}/{top}/")
        return code

    def page(self, blocks: list[dict[str, Any]]) -> Iterator[str]:
        """What went wrong with the blocks of one page, which share their names."""
        names: dict[str, Any] = {"spark": self._spark, "rows": Rows(self._spark), "metrics": Metrics()}
        for block in blocks:
            print(f"{time.strftime('%X')} {block['page']}:{block['line']}", file=sys.stderr, flush=True)
            try:
                self._run(block, names)
            except Exception:  # noqa: BLE001 - told to the test
                yield f"{block['page']}:{block['line']}\n{traceback.format_exc()}"
        for value in names.values():
            end = _ENDS.get(type(value))
            if end is not None:
                end(value)
        for query in self._spark.streams.active:
            query.stop()

    def _run(self, block: dict[str, Any], names: dict[str, Any]) -> None:
        code = self._placed(block["code"], block["line"])
        if block["language"] == "sql":
            for statement in filter(str.strip, code.split(";")):
                self._spark.sql(statement).collect()
            return
        exec(compile(code, f"{block['page']}:{block['line']}", "exec"), names)
        for query in self._spark.streams.active:
            self._settle(query)

    def _settle(self, query: StreamingQuery) -> None:
        if not (query.name or "").startswith(OUR_OWN):
            query.processAllAvailable()


def main() -> None:
    folder = Path(sys.argv[1])
    print(time.strftime("%X"), "begun", file=sys.stderr)
    pages = json.load(sys.stdin)
    named = {name for page in pages for block in page for name in re.findall(rf"{STATE}/(\w+)`", block["code"])}
    reader = Reader(folder, sorted(named))
    failures = [failure for page in pages for failure in reader.page(page)]
    print(time.strftime("%X"), "done", file=sys.stderr)
    (folder / "failures.json").write_text(json.dumps(failures))


if __name__ == "__main__":
    main()
