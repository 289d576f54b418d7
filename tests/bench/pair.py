"""Where benchmarks without Spark stand: a broker, paired factories, and backlogs that are filled by hand."""

import asyncio
import contextlib
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from azure.servicebus.aio import ServiceBusClient

from spark_sb_sink.amqp import encode_message
from spark_sb_sink.amqp.batch import batch_payload, batch_prefix
from spark_sb_sink.board import Board
from spark_sb_sink.broker import BrokerProcess, NamespaceHandle
from spark_sb_sink.envelope import wrap
from spark_sb_sink.factory import PairedFactory
from spark_sb_sink.options import Options
from spark_sb_sink.wire import RawSender

PER_BATCH = 500


@dataclass
class PairGround:
    """One run of a benchmark."""

    broker: BrokerProcess
    folder: Path

    @property
    def primary(self) -> NamespaceHandle:
        return self.broker["primary"]

    @property
    def secondary(self) -> NamespaceHandle:
        return self.broker["secondary"]

    def entity(self, **settings: Any) -> str:
        name = f"e-{uuid.uuid4().hex[:8]}"
        self.primary.create_queue(name, **settings)
        return name

    @contextlib.contextmanager
    def factory(self, *, backlog_discards: bool = False, **changed: Any) -> Iterator[PairedFactory]:
        """A factory with backlog queues and a board of its own."""
        name = f"p-{uuid.uuid4().hex[:8]}"
        given = {"primary": self.primary.connection_string, "secondary": self.secondary.connection_string}
        options = Options.from_dict({**given, "primary_name": name, "backlog_queue_count": 1, **changed})
        paths = [f"{options.backlog_path}{number}" for number in range(options.backlog_queue_count)]
        for path in paths:
            self.secondary.create_queue(path, max_size_mb=5120, lock_duration=300, discard=backlog_discards)
        folder = self.folder / name
        folder.mkdir()
        made = PairedFactory(options, Board.for_executor(folder, options))
        try:
            yield made
        finally:
            made.close()
            made.board.close()
            for path in paths:
                self.secondary.delete(path)

    def fill(self, queue: str, payloads: Sequence[bytes]) -> None:
        """Put batches into a queue of the secondary as they are."""
        fill(self.secondary.connection_string, queue, payloads)


def wrapped_batches(entity: str, count: int, size: int) -> list[bytes]:
    """Messages for an entity with the envelope on, as the payloads of batches."""
    messages = [wrap(encode_message(b"y" * size, message_id=f"{at:032x}"), entity) for at in range(count)]
    parts = (messages[start : start + PER_BATCH] for start in range(0, count, PER_BATCH))
    return [batch_payload(batch_prefix(part[0]), part) for part in parts]


def fill(connection: str, queue: str, payloads: Sequence[bytes]) -> None:
    """Put batches into a queue as they are."""
    asyncio.run(_send(connection, queue, payloads))


async def _send(connection: str, queue: str, payloads: Sequence[bytes]) -> None:
    async with ServiceBusClient.from_connection_string(connection, retry_total=0) as client:
        sender = RawSender(client, queue, send_timeout=60)
        await sender.open()
        for payload in payloads:
            await sender.send(payload, batch=True)
        await sender.close()


@contextlib.contextmanager
def pair_ground() -> Iterator[PairGround]:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, BrokerProcess("primary", "secondary") as broker:
        for side in broker.namespaces.values():
            side.configure_journal(enabled=False)
        yield PairGround(broker, Path(folder))
