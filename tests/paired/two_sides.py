"""A sender over the real SDK, with both namespaces of the embedded broker below it and a clock of the test's choice."""

import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from azure.servicebus.aio import ServiceBusClient

from spark_sb_sink.amqp_transport import AmqpTransport
from spark_sb_sink.broker import BrokerProcess, NamespaceHandle
from spark_sb_sink.options import Options
from spark_sb_sink.wire import COMPLETE, RawReceiver
from tests.paired.support import FakeClock, Rig

QUEUES = 3
STORED = ("accepted", "scheduled")


@dataclass
class TwoSides:
    """An entity in the primary, three backlog queues in the secondary, and the rig that sends to them."""

    primary: NamespaceHandle
    secondary: NamespaceHandle
    entity: str
    backlog_path: str
    rig: Rig

    @property
    def backlog_queues(self) -> list[str]:
        return [f"{self.backlog_path}{number}" for number in range(QUEUES)]

    def at_primary(self, entity: str | None = None) -> Counter[str]:
        """How often the entity has stored each message id; pings are not stored."""
        return _stored(self.primary, entity or self.entity)

    def in_backlog(self) -> Counter[str]:
        """How often the backlog queues have stored each message id."""
        return sum((_stored(self.secondary, queue) for queue in self.backlog_queues), Counter())

    def kept_queue(self) -> str:
        """The backlog queue that the entity keeps."""
        [kept] = [keep.queue for keep in self.rig.board.snapshot().kept if keep.entity == self.entity]
        return f"{self.backlog_path}{kept}"

    def queues_out(self) -> list[str]:
        now = self.rig.clock.now()
        return [f"{self.backlog_path}{q.queue}" for q in self.rig.board.snapshot().queues if q.is_out(now)]

    async def receive_backlog(self) -> list[bytes]:
        """The payloads in the backlog, queue by queue, as the broker delivers them."""
        return await _received(self.secondary, self.backlog_queues)

    async def receive_primary(self) -> list[bytes]:
        """The payloads in the entity, as the broker delivers them."""
        return await _received(self.primary, [self.entity])


async def _received(namespace: NamespaceHandle, queues: list[str]) -> list[bytes]:
    found: list[bytes] = []
    async with ServiceBusClient.from_connection_string(namespace.connection_string, retry_total=0) as client:
        for queue in queues:
            receiver = RawReceiver(client, queue)
            await receiver.open()
            for _ in range(namespace.counts(queue)["active"]):
                deliveries = await receiver.receive(1, 10)
                found += [delivery.payload for delivery in deliveries]
                await receiver.settle(deliveries, COMPLETE)
            await receiver.close()
    return found


def _stored(namespace: NamespaceHandle, entity: str) -> Counter[str]:
    counts = {i: sum(what.get(word, 0) for word in STORED) for i, what in namespace.tally(entity).items()}
    return Counter({i: count for i, count in counts.items() if count})


@contextlib.asynccontextmanager
async def two_sides(
    broker: BrokerProcess,
    folder: Path,
    *,
    interval: float,
    timeout: float = 10.0,
    primary: str | None = None,
    clock: Any = None,
    queue: dict[str, Any] | None = None,
    **rig: Any,
) -> AsyncIterator[TwoSides]:
    """`timeout` is real time, whatever the clock; `primary` another connection string for that side."""
    sides = broker["primary"], broker["secondary"]
    name = f"e-{random.Random().getrandbits(48):012x}"
    clock = clock or FakeClock()
    options = Options.from_dict(
        {
            "primary": primary or sides[0].connection_string,
            "secondary": sides[1].connection_string,
            "primary_name": name,
            "send_timeout": timeout,
        }
    )
    for side in sides:
        side.undo()
    sides[0].create_queue(name, **(queue or {}))
    for number in range(QUEUES):
        sides[1].create_queue(f"{options.backlog_path}{number}")
    transport = AmqpTransport(options, clock.now)
    made = Rig(
        folder, transport, interval=interval, queues=QUEUES, clock=clock, backlog_path=options.backlog_path, **rig
    )
    try:
        yield TwoSides(*sides, name, options.backlog_path, made)
    finally:
        for side in sides:
            side.undo()
            side.start()
        await made.links.close()
        await transport.close()
        made.board.close()
