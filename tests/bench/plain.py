"""What a user would write instead of the sink: foreachPartition with the plain SDK. Runs in Spark's workers."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusMessageBatch, ServiceBusSender
from pyspark.sql import Row


def send_in_batches(connection: str) -> Callable[[Iterable[Row]], None]:
    """A batch for each entity, sent when it is full; what is left at the end."""

    def send(rows: Iterable[Row]) -> None:
        with ServiceBusClient.from_connection_string(connection) as client, ExitStack() as stack:
            open_batches: dict[str, tuple[ServiceBusSender, ServiceBusMessageBatch]] = {}
            for row in rows:
                if row.entity not in open_batches:
                    sender = stack.enter_context(client.get_queue_sender(row.entity))
                    open_batches[row.entity] = sender, sender.create_message_batch()
                sender, batch = open_batches[row.entity]
                message = ServiceBusMessage(bytes(row.body), message_id=row.message_id)
                try:
                    batch.add_message(message)
                except ValueError:  # it is full
                    sender.send_messages(batch)
                    batch = sender.create_message_batch()
                    batch.add_message(message)
                    open_batches[row.entity] = sender, batch
            for sender, batch in open_batches.values():
                if len(batch):
                    sender.send_messages(batch)

    return send


def send_singly(connection: str) -> Callable[[Iterable[Row]], None]:
    """One message, one send."""

    def send(rows: Iterable[Row]) -> None:
        with ServiceBusClient.from_connection_string(connection) as client, ExitStack() as stack:
            senders: dict[str, ServiceBusSender] = {}
            for row in rows:
                if row.entity not in senders:
                    senders[row.entity] = stack.enter_context(client.get_queue_sender(row.entity))
                senders[row.entity].send_messages(ServiceBusMessage(bytes(row.body), message_id=row.message_id))

    return send


def count_rows(batches: Iterable[Any]) -> Iterable[Any]:
    """The same job with the send left out: all rows go to the worker, and their number comes back."""
    import pyarrow as pa

    total = sum(batch.num_rows for batch in batches)
    yield pa.RecordBatch.from_pydict({"rows": pa.array([total], pa.int64())})
