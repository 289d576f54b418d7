"""A Spark application of its own: streams Parquet files to the sink, tells what happens, and can be killed.

As a program (`python -m tests.sink.app`) it is the application; `SinkApp` is its handle in a test.
"""

import contextlib
import json
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import uuid
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from spark_sb_sink.testing import await_that
from tests import jvm

OPTIONS = "SINK_OPTIONS"
THRIFTY_DELTA = {"spark.databricks.delta.snapshotPartitions": "2"}


class SinkApp:
    """The application as a child process. Start it again after a kill: folder and checkpoint are kept."""

    def __init__(self, folder: Path, options: dict[str, Any], schema: str, master: str, **conf: str) -> None:
        self.folder = folder / f"app-{uuid.uuid4().hex[:8]}"
        self.files = self.folder / "in"
        self.files.mkdir(parents=True)
        self._options, self._schema, self._master, self._conf = options, schema, master, conf
        self._count = 0
        self._log = self.folder / "log"
        self.told: list[dict[str, Any]] = []
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> Self:
        quick = {"spark.executor.extraJavaOptions": jvm.of_executors()}
        conf = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", **quick, **THRIFTY_DELTA, **self._conf}
        arguments = [str(self.files), str(self.folder / "checkpoint"), self._schema, self._master, json.dumps(conf)]
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.sink.app", *arguments],
                env={
                    **os.environ,
                    OPTIONS: json.dumps(self._options),
                    "PYSPARK_PYTHON": sys.executable,
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "SPARK_WORKER_DIR": str(self.folder / "work"),
                },
                cwd=Path(__file__).resolve().parents[2],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()
        self.await_told("started", within=120)
        return self

    def _listen(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                self.told.append(json.loads(line))

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [each for each in list(self.told) if each["event"] == kind]

    def await_told(self, kind: str, count: int = 1, within: float = 90.0) -> list[dict[str, Any]]:
        """Wait until so many events of a kind were told."""
        assert self._process is not None
        process = self._process

        def enough() -> bool:
            if len(self.of(kind)) >= count:
                return True
            assert process.poll() is None, f"the application ended:\n{self.log()[-6000:]}"
            return False

        try:
            await_that(enough, within)
        except AssertionError as error:
            raise AssertionError(f"{kind} × {count}: {error}; told {self.told[-10:]}\n{self.log()[-3000:]}") from None
        return self.of(kind)

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def put(self, table: pa.Table) -> None:
        """One more micro-batch."""
        self._count += 1
        made = self.folder / f"{self._count:05}.parquet"
        pq.write_table(table, made)
        made.rename(self.files / made.name)

    def send(self, table: pa.Table, within: float = 90.0) -> None:
        """One more micro-batch, and wait until all are sent."""
        self.put(table)
        self.await_told("BatchSent", len(self.of("BatchSent")) + 1, within)

    # Its processes

    def processes(self, word: str) -> list[int]:
        """The processes below it whose command line has that word."""
        assert self._process is not None
        return [pid for pid in processes_below(self._process.pid) if word in _command(pid)]

    def python_workers(self) -> list[int]:
        """Workers are forked by a daemon, one for each executor."""
        daemons = self.processes("pyspark.daemon")
        return [pid for pid in daemons if _parent(pid) in daemons]

    def executors(self) -> list[int]:
        return self.processes("CoarseGrainedExecutorBackend")

    def kill(self) -> None:
        """kill -9 of the driver and everything below it."""
        assert self._process is not None
        for pid in [*processes_below(self._process.pid), self._process.pid]:
            _kill(pid)
        self._process.wait(20)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def processes_below(pid: int) -> list[int]:
    parents = {int(path.name): _parent(int(path.name)) for path in Path("/proc").iterdir() if path.name.isdigit()}
    found, look = [], [pid]
    while look:
        above = look.pop()
        below = [child for child, parent in parents.items() if parent == above]
        found += below
        look += below
    return found


# The application


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else str(value)


def main() -> None:
    folder, checkpoint, schema, master, conf = sys.argv[1:]
    from delta import configure_spark_with_delta_pip
    from pyspark.sql import SparkSession

    from spark_sb_sink.sink import ServiceBusSink

    builder = SparkSession.builder.master(master).config("spark.sql.shuffle.partitions", "2")
    for key, value in json.loads(conf).items():
        builder = builder.config(key, value)
    options = json.loads(os.environ[OPTIONS])
    if "state" in options:
        builder = configure_spark_with_delta_pip(
            builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension").config(
                "spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog"
            )
        )
    spark = builder.getOrCreate()
    if "spark.test.debug" in conf:
        logging.basicConfig(level=logging.DEBUG)
        spark.sparkContext.setLogLevel("DEBUG")
    lines: queue.Queue[str] = queue.Queue()

    def tell(event: Any, **more: Any) -> None:
        name, content = (event, more) if isinstance(event, str) else (type(event).__name__, asdict(event))
        print(json.dumps({"event": name, **content}, default=_plain), flush=True)

    sink = ServiceBusSink(options, listeners=[tell])
    rows = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(folder)
    partitions = int(json.loads(conf).get("spark.test.partitions", "2"))
    rows = rows.repartition(partitions, "body") if partitions else rows
    query = rows.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint).start()
    tell("started")
    threading.Thread(target=lambda: (sys.stdin.read(), lines.put("end")), daemon=True).start()
    try:
        while lines.empty():
            if query.awaitTermination(0.1):
                break
    except Exception as error:
        tell("failed", text=str(error))
        raise
    query.stop()


if __name__ == "__main__":
    main()
