"""A pair of namespaces with backlogs that tests fill by hand, and drains of them."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from azure.servicebus.aio import ServiceBusClient

from spark_sb_sink.amqp import encode_message
from spark_sb_sink.amqp.batch import batch_payload, batch_prefix
from spark_sb_sink.envelope import wrap
from spark_sb_sink.syphon import Drain, Report
from spark_sb_sink.wire import COMPLETE, DEFER, Outcome, RawReceiver, RawSender
from tests.paired.ground import Ground, MovableClock

SHORT: dict[str, Any] = {"long_poll": "5s", "settle_time": "0s", "send_timeout": "10s", "backlog_queue_count": 1}


def message(number: int | str, size: int = 20, **fields: Any) -> bytes:
    return encode_message(b"x" * size, message_id=f"m{number}", **fields)


class Field(Ground):
    """As the paired factory's ground, with a drain."""

    def drain(self, queues: Sequence[int] | None = None, *, clock: MovableClock | None = None, **changed: Any) -> Drain:
        factory = self.factory(clock=clock, **{**SHORT, **changed})
        numbers = range(factory.options.backlog_queue_count) if queues is None else queues
        made = Drain(factory, [self.queue(number) for number in numbers])
        self._stack.callback(made.close)
        return made

    def fill(self, messages: Sequence[bytes], queue: int = 0) -> None:
        """Put messages into a backlog queue as they are."""
        run(self._send(self.secondary.connection_string, self.queue(queue), messages))

    def primary_send(self, entity: str, messages: Sequence[bytes]) -> None:
        run(self._send(self.primary.connection_string, entity, messages))

    def backlog_for(self, entity: str, count: int, *, queue: int = 0, tag: str = "", size: int = 20) -> list[str]:
        """Fill it with messages for an entity; their ids."""
        ids = [f"{entity}-{tag}{number}" for number in range(count)]
        self.fill([wrap(encode_message(b"x" * size, message_id=i), entity) for i in ids], queue)
        return ids

    def defer(self, messages: Sequence[bytes], queue: int = 0) -> None:
        """Put messages into a backlog queue and defer them there, as a syphon that is gone did. It must be empty."""
        self.fill(messages, queue)
        receive_raw(self.secondary.connection_string, self.queue(queue), len(messages), DEFER)

    async def _send(self, connection: str, queue: str, messages: Sequence[bytes]) -> None:
        async with ServiceBusClient.from_connection_string(connection, retry_total=0) as client:
            sender = RawSender(client, queue, send_timeout=60)
            await sender.open()
            room, batch = 200_000, list[bytes]()
            for each in [*messages, None]:
                if batch and (each is None or len(batch) == 500 or sum(map(len, batch)) + len(each) > room):
                    payload = batch[0] if len(batch) == 1 else batch_payload(batch_prefix(batch[0]), batch)
                    await sender.send(payload, batch=len(batch) > 1)
                    batch = []
                if each is not None:
                    batch.append(each)
            await sender.close()

    def arrived(self, entity: str) -> list[bytes]:
        """Take all that the entity has, as it is, in order."""
        return receive_raw(self.primary.connection_string, entity, self.primary.counts(entity)["active"])

    def dead_letters(self, queue: int = 0) -> list[bytes]:
        path = f"{self.queue(queue)}/$DeadLetterQueue"
        count = self.secondary.counts(path)["active"]
        return receive_raw(self.secondary.connection_string, path, count)

    def taken(self, entity: str) -> dict[str, int]:
        """How often the entity has accepted each message id."""
        return {i: what["accepted"] for i, what in self.primary.tally(entity).items() if what.get("accepted")}

    def in_backlog(self, queue: int = 0) -> dict[str, int]:
        return self.secondary.counts(self.queue(queue))

    def until_empty(self, drain: Drain, queue: int = 0, within: float = 60.0) -> Report:
        report = drain.run(within, until=self.empty(queue))
        assert self.empty(queue)(), self.in_backlog(queue)
        return report

    def empty(self, *queues: int) -> Callable[[], bool]:
        return lambda: not any(any(self.in_backlog(queue).values()) for queue in queues or (0,))


def receive_raw(connection: str, queue: str, count: int, outcome: Outcome = COMPLETE) -> list[bytes]:
    """Take so many messages as they are, in order."""
    return run(_receive(connection, queue, count, outcome))


async def _receive(connection: str, queue: str, count: int, outcome: Outcome) -> list[bytes]:
    found: list[bytes] = []
    async with ServiceBusClient.from_connection_string(connection, retry_total=0) as client:
        receiver = RawReceiver(client, queue)
        await receiver.open()
        while len(found) < count:
            deliveries = await receiver.receive(count - len(found), 10)
            assert deliveries, f"{len(found)} of {count}"
            found += [delivery.payload for delivery in deliveries]
            await receiver.settle(deliveries, outcome)
        await receiver.close()
    return found


def run(work: Any) -> Any:
    return asyncio.run(work)
