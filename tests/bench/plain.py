"""What a user would write instead of the sink: foreachPartition with the plain SDK. Runs in Spark's workers."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusMessageBatch, ServiceBusSender
from pyspark.sql import Row

Senders = Callable[[str], ServiceBusSender]
_KEPT: dict[str, tuple[ServiceBusClient, dict[str, ServiceBusSender]]] = {}


def send_in_batches(connection: str) -> Callable[[Iterable[Row]], None]:
    """A batch for each entity, sent when it is full; what is left at the end. Links are opened and closed each time."""

    def send(rows: Iterable[Row]) -> None:
        with ServiceBusClient.from_connection_string(connection) as client, ExitStack() as stack:
            fill_and_send(rows, lambda entity: stack.enter_context(client.get_queue_sender(entity)))

    return send


def send_in_batches_kept(connection: str) -> Callable[[Iterable[Row]], None]:
    """The same over client and senders that the worker keeps from micro-batch to micro-batch."""

    def send(rows: Iterable[Row]) -> None:
        fill_and_send(rows, kept_senders(connection))

    return send


def send_singly(connection: str) -> Callable[[Iterable[Row]], None]:
    """One message, one send, over senders that the worker keeps."""

    def send(rows: Iterable[Row]) -> None:
        sender_of = kept_senders(connection)
        for row in rows:
            sender_of(row.entity).send_messages(ServiceBusMessage(bytes(row.body), message_id=row.message_id))

    return send


def kept_senders(connection: str) -> Senders:
    """Spark sends functions to workers by value, but this one by name: so they keep what stands in this module."""
    if connection not in _KEPT:
        _KEPT[connection] = ServiceBusClient.from_connection_string(connection), {}
    client, senders = _KEPT[connection]

    def sender_of(entity: str) -> ServiceBusSender:
        if entity not in senders:
            senders[entity] = client.get_queue_sender(entity)
        return senders[entity]

    return sender_of


def fill_and_send(rows: Iterable[Row], sender_of: Senders) -> None:
    open_batches: dict[str, tuple[ServiceBusSender, ServiceBusMessageBatch]] = {}
    for row in rows:
        if row.entity not in open_batches:
            sender = sender_of(row.entity)
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


def count_rows(batches: Iterable[Any]) -> Iterable[Any]:
    """The same job with the send left out: all rows go to the worker, and their number comes back."""
    import pyarrow as pa

    total = sum(batch.num_rows for batch in batches)
    yield pa.RecordBatch.from_pydict({"rows": pa.array([total], pa.int64())})
