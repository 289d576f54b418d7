"""The pipeline of the demo: a folder of JSON files that grows, read as a stream, sent by the sink.

It knows each message that it made. What is broken meanwhile it does not know.
"""

import json
import threading
import time
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from spark_sb_sink.demo.scene import Scene, Target
from spark_sb_sink.errors import SparkSbSinkError
from spark_sb_sink.options import Options
from spark_sb_sink.sink import ServiceBusSink

COLUMNS = "entity string, message_id string, session_id string, subject string, body string"
FILE_EVERY = 0.25
SESSIONS = 20


class Source:
    """Writes so many messages a second, a file at a time, in a thread of its own."""

    def __init__(self, folder: Path, targets: tuple[Target, ...], rate: int) -> None:
        self.made: dict[str, str] = {}
        """The entity of each message id."""
        self._folder = folder
        self._targets = targets
        self._rate = rate
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo-source", daemon=True)
        self.error: OSError | None = None

    def start(self) -> None:
        self._folder.mkdir()
        self._thread.start()

    def stop(self) -> None:
        """No file comes after this."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        began, files = time.monotonic(), 0
        while not self._stop.is_set():
            due = int((time.monotonic() - began) * self._rate)
            try:
                self._write(files, range(len(self.made), due))
            except OSError as error:
                self.error = error
                return
            files += 1
            self._stop.wait(max(0.0, began + files * FILE_EVERY - time.monotonic()))

    def _write(self, number: int, messages: range) -> None:
        rows = [self._message(at) for at in messages]
        hidden, shown = self._folder / f".{number:05}.json", self._folder / f"{number:05}.json"
        hidden.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        self.made.update({row["message_id"]: row["entity"] for row in rows})
        hidden.rename(shown)

    def _message(self, at: int) -> dict[str, str]:
        target = self._targets[at % len(self._targets)]
        customer = f"customer-{at % SESSIONS:02}"
        row = {"entity": target.name, "message_id": f"{target.name}-{at:06}", "subject": "demo"}
        if target.kind == "topic":
            row["session_id"] = customer
        return {
            **row,
            "body": json.dumps({"number": at, "customer": customer, "note": "from the demo of spark_sb_sink"}),
        }


class Pipeline:
    """The streaming query from the source to Service Bus."""

    def __init__(self, spark: SparkSession, folder: Path, options: Options, scene: Scene, rate: int) -> None:
        self.source = Source(folder / "in", scene.targets, rate)
        self._sink = ServiceBusSink(options, listeners=[scene.hear])
        self._error: SparkSbSinkError | None = None
        self.source.start()
        self._query: StreamingQuery = (
            spark.readStream.schema(COLUMNS)
            .json(str(folder / "in"))
            .repartition(2)
            .writeStream.foreachBatch(self._send)
            .option("checkpointLocation", str(folder / "checkpoint"))
            .queryName("demo")
            .trigger(processingTime="500 milliseconds")
            .start()
        )

    def _send(self, df: DataFrame, batch_id: int) -> None:
        try:
            self._sink(df, batch_id)
        except SparkSbSinkError as error:  # what Spark makes of it is a text with two stack traces
            self._error = error
            raise

    def check(self) -> None:
        """Raises what ended it, if it has ended."""
        if self.source.error is not None:
            raise self.source.error
        if self._query.isActive:
            return
        if self._error is not None:
            raise self._error
        raise self._query.exception() or RuntimeError("the streaming query ended, and nobody had told it to")

    def finish(self) -> dict[str, str]:
        """Send what is there, then stop; the entity of each message id that was sent."""
        self.source.stop()
        try:
            self._query.processAllAvailable()
        except StreamingQueryException:
            self.check()
            raise
        self._query.stop()
        self._sink.close()
        return self.source.made
