"""The sink under test: real Spark, both namespaces of the embedded broker, and what arrived, read by the plain SDK."""

import shutil
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusReceivedMessage
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from spark_sb_sink.broker import BrokerProcess
from spark_sb_sink.events import Event
from spark_sb_sink.options import Options
from spark_sb_sink.sink import ServiceBusSink
from tests.paired.ground import SHORT, Ground

STORED = ("accepted", "scheduled")


class SinkGround(Ground):
    """Sinks with short intervals, and everything closed at the end."""

    def __init__(self, broker: BrokerProcess, folder: Path, spark: SparkSession) -> None:
        super().__init__(broker, folder)
        self.spark = spark
        self.events: list[Event] = []

    def options(self, **changed: Any) -> Options:
        """The backlog queues are made by the broker's own means, and found by pairing."""
        return super().options(**{"secondary": self._secondary(), **changed})

    def plain_options(self, **changed: Any) -> dict[str, Any]:
        """The same as a dictionary, for another application."""
        self.options(**changed)
        given = {"primary": self.primary.connection_string, "primary_name": self.name, **SHORT}
        return {**given, "secondary": self._secondary(), **changed}

    def _secondary(self) -> dict[str, str]:
        return {"connection_string": self.secondary.connection_string, "ca_file": str(self.secondary.ca_file)}

    def sink(self, **changed: Any) -> ServiceBusSink:
        made = ServiceBusSink(self.options(**changed), listeners=[self.events.append])
        self._stack.callback(made.close)
        return made

    def of(self, kind: type) -> list[Any]:
        """The events of one kind so far."""
        return [event for event in self.events if isinstance(event, kind)]

    def rows(self, entities: Iterable[str], per_entity: int, partitions: int = 2, tag: str = "") -> DataFrame:
        """Rows with ids of their own, spread over the entities."""
        names = list(entities)
        data = [(name, f"{tag}{name}-{at}", f"body {at}") for at in range(per_entity) for name in names]
        return self.spark.createDataFrame(data, "entity string, message_id string, body string").repartition(partitions)

    def stream(self, sink: ServiceBusSink, schema: str, **settings: Any) -> "FileStream":
        made = FileStream(self, sink, schema, **settings)
        self._stack.callback(made.stop)
        return made

    def arrived(self, entity: str) -> Counter[str]:
        """How often the entity has stored each message id."""
        return stored(self.primary.tally(entity))

    def in_backlog(self) -> Counter[str]:
        """How often the backlog queues have stored each message id."""
        queues = (self.secondary.tally(self.queue(number)) for number in range(self._queues))
        return sum((stored(tally) for tally in queues), Counter())

    def receive(self, entity: str, count: int, **how: Any) -> list[ServiceBusReceivedMessage]:
        """So many messages, by the plain SDK."""
        found: list[ServiceBusReceivedMessage] = []
        with (
            ServiceBusClient.from_connection_string(self.primary.connection_string) as client,
            (
                client.get_subscription_receiver(entity, **how)
                if "subscription_name" in how
                else client.get_queue_receiver(entity, **how)
            ) as receiver,
        ):
            while len(found) < count:
                some = receiver.receive_messages(max_message_count=count - len(found), max_wait_time=20)
                assert some, f"{len(found)} of {count} messages arrived"
                for message in some:
                    receiver.complete_message(message)
                found += some
        return found

    def peek(self, entity: str, count: int) -> list[ServiceBusReceivedMessage]:
        """What is there, those included that are not due yet."""
        with (
            ServiceBusClient.from_connection_string(self.primary.connection_string) as client,
            client.get_queue_receiver(entity) as receiver,
        ):
            return list(receiver.peek_messages(max_message_count=count))


def stored(tally: dict[str, dict[str, int]]) -> Counter[str]:
    counts = {found: sum(what.get(word, 0) for word in STORED) for found, what in tally.items()}
    return Counter({found: count for found, count in counts.items() if count})


class FileStream:
    """A streaming query over a folder of Parquet files: each file is one micro-batch, and a replay reads it again."""

    def __init__(
        self, ground: SinkGround, sink: ServiceBusSink, schema: str, wrap: Callable[..., Any] | None = None
    ) -> None:
        self.ground = ground
        self.folder = ground.folder / f"in-{uuid.uuid4().hex[:8]}"
        self.folder.mkdir()
        self.checkpoint = ground.folder / f"checkpoint-{uuid.uuid4().hex[:8]}"
        self.schema = schema
        self.sink = sink
        self.wrap = wrap
        self.query: StreamingQuery | None = None
        self._files = 0

    def start(self) -> StreamingQuery:
        df = self.ground.spark.readStream.schema(self.schema).option("maxFilesPerTrigger", 1).parquet(str(self.folder))
        function = self.sink if self.wrap is None else self.wrap
        self.query = df.writeStream.foreachBatch(function).option("checkpointLocation", str(self.checkpoint)).start()
        return self.query

    def put(self, df: DataFrame) -> None:
        """One more micro-batch."""
        made = self.ground.folder / f"made-{uuid.uuid4().hex[:8]}"
        df.coalesce(1).write.parquet(str(made))
        [part] = made.glob("*.parquet")
        self._files += 1
        part.rename(self.folder / f"{self._files:05}.parquet")
        shutil.rmtree(made)

    def send(self, df: DataFrame) -> None:
        """One more micro-batch, and wait until it is done."""
        self.put(df)
        self.settle()

    def settle(self) -> None:
        assert self.query is not None
        self.query.processAllAvailable()

    def stop(self) -> None:
        if self.query is not None:
            self.query.stop()


class Gate:
    """Holds a micro-batch at a place that the test chooses."""

    def __init__(self) -> None:
        self.reached, self.open = threading.Event(), threading.Event()

    def wait(self) -> None:
        self.reached.set()
        assert self.open.wait(60)
