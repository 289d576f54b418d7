"""A pair of namespaces in memory, under a clock that moves only when somebody waits."""

import asyncio
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spark_sb_sink.amqp import decode_message, encode_message
from spark_sb_sink.board import Board
from spark_sb_sink.failover import FailoverSettings
from spark_sb_sink.links import Links
from spark_sb_sink.options import Ping
from spark_sb_sink.pings import Pinger
from spark_sb_sink.reports import EntityReport
from spark_sb_sink.sender import Pair, PairedSender
from spark_sb_sink.transport import MemoryTransport, Side, Transport

BACKLOG = "p/x-servicebus-transfer/"


class FakeClock:
    """Waiting takes no time; it only moves the clock. `waited` tells what was asked for."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.waited: list[float] = []
        self.on_sleep: Callable[[float], None] = lambda seconds: None

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.time += seconds
        self.on_sleep(seconds)
        await asyncio.sleep(0)


class Rig:
    """Everything that a sender needs, made small."""

    def __init__(
        self,
        folder: Path,
        transport: Transport | None = None,
        *,
        interval: float = 60.0,
        ping_interval: float = 60.0,
        queues: int = 3,
        links: int = 8,
        ping: Ping = Ping.MESSAGE,
        clock: Any = None,
        backlog_path: str = BACKLOG,
        seed: int = 1,
    ) -> None:
        self.clock = clock or FakeClock()
        self.memory = MemoryTransport()
        self.transport: Transport = transport or self.memory
        self.board = Board(
            Path(tempfile.mkdtemp(dir=folder)) / "board",
            FailoverSettings(interval, ping_interval, 10.0),
            backlog_queue_count=queues,
            backlog_cooldown=60.0,
            clock=self.clock.now,
            rng=random.Random(seed),
        )
        self.links = Links(self.transport, links, self.clock.now)
        self.pinger = Pinger(self.links, self.transport, self.board, ping, self.clock)
        self.pair = Pair(
            self.links,
            self.board,
            self.pinger,
            self.clock,
            random.Random(seed),
            interval,
            backlog_path,
            "primary.example",
            "secondary.example",
        )

    def sender(self, entity: str = "orders", **options: Any) -> PairedSender:
        return PairedSender(entity, self.pair, **options)

    async def send(self, messages: list[bytes], entity: str = "orders", **options: Any) -> EntityReport:
        sender = self.sender(entity, **options)
        await sender.send(messages)
        return sender.report()

    def fail_primary(self, error: Callable[[], BaseException]) -> None:
        def fail(what: str, side: Side, path: str) -> None:
            if side is Side.PRIMARY:
                raise error()

        self.memory.fail = fail

    def heal(self) -> None:
        self.memory.fail = lambda what, side, path: None

    def primary(self, entity: str = "orders") -> list[bytes]:
        return self.memory.sent[Side.PRIMARY, entity]

    def backlogged(self) -> list[bytes]:
        return [m for (side, _), sent in self.memory.sent.items() if side is Side.SECONDARY for m in sent]


def messages(count: int, size: int = 20, start: int = 0) -> list[bytes]:
    return [encode_message(b"x" * size, message_id=f"m{number}") for number in range(start, start + count)]


def ids(encoded: list[bytes]) -> list[object]:
    return [decode_message(message).message_id for message in encoded]
