"""Factories with the real SDK over both namespaces of the embedded broker, in this process and in others."""

import asyncio
import multiprocessing
import time
import uuid
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from spark_sb_sink.amqp import encode_message
from spark_sb_sink.board import Board
from spark_sb_sink.broker import BrokerProcess
from spark_sb_sink.broker.faults import Fault
from spark_sb_sink.factory import PairedFactory
from spark_sb_sink.failover import Health
from spark_sb_sink.options import Options
from spark_sb_sink.reports import EntityReport
from tests.conftest import await_that

SHORT: dict[str, Any] = {
    "failover_interval": "1s",
    "ping_interval": "1s",
    "send_timeout": "5s",
    "backlog_cooldown": "1s",
    "backlog_queue_count": 2,
}
CALM: dict[str, Any] = {"failover_interval": "60s", "send_timeout": "20s"}
"""For tests without a fault: a machine under load is not one."""


class MovableClock:
    """The machine's clock, which can be put forward; who sleeps wakes up for that."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def now(self) -> float:
        return time.monotonic() + self.ahead

    async def sleep(self, seconds: float) -> None:
        due = self.now() + seconds
        while self.now() < due:
            await asyncio.sleep(min(0.02, due - self.now()))


def some(count: int, size: int = 20) -> list[bytes]:
    """Encoded messages, each with an id of its own."""
    return [encode_message(b"x" * size, message_id=uuid.uuid4().hex) for _ in range(count)]


class Ground:
    """Two namespaces without faults, backlog queues of its own, and everything closed at the end."""

    def __init__(self, broker: BrokerProcess, folder: Path) -> None:
        self.primary, self.secondary = broker["primary"], broker["secondary"]
        self.folder = folder
        self.name = f"p-{uuid.uuid4().hex[:12]}"
        self._stack = ExitStack()
        self._queues = 0

    def __enter__(self) -> Self:
        self._heal()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._heal()
        self._stack.close()

    def _heal(self) -> None:
        for side in (self.primary, self.secondary):
            side.undo()
            side.start()
            side.deliver_pings(False)

    def entities(self, count: int, **settings: Any) -> list[str]:
        """New queues in the primary."""
        names = [f"e-{uuid.uuid4().hex[:12]}" for _ in range(count)]
        for name in names:
            self.primary.create_queue(name, **settings)
        return names

    def entity(self, **settings: Any) -> str:
        return self.entities(1, **settings)[0]

    def options(self, **changed: Any) -> Options:
        """Short intervals, with the backlog queues made."""
        options = Options.from_dict(
            {
                "primary": self.primary.connection_string,
                "secondary": self.secondary.connection_string,
                "primary_name": self.name,
                **SHORT,
                **changed,
            }
        )
        for number in range(self._queues, options.backlog_queue_count):
            self.secondary.create_queue(f"{options.backlog_path}{number}")
        self._queues = max(self._queues, options.backlog_queue_count)
        return options

    def factory(self, *, clock: MovableClock | None = None, **changed: Any) -> PairedFactory:
        options = self.options(**changed)
        clock = clock or MovableClock()
        made = PairedFactory(options, Board.for_executor(self.folder, options, clock=clock.now), clock=clock)
        self._stack.callback(made.board.close)
        self._stack.callback(made.close)
        return made

    def worker(self, **changed: Any) -> "Worker":
        """Another process of the same executor, so with the same options on the same board."""
        return self._stack.enter_context(Worker(self.options(**changed), self.folder))

    def backlog(self) -> list[str]:
        """The ids that the backlog queues have taken."""
        return [
            message
            for number in range(self._queues)
            for message, what in self.secondary.tally(self.queue(number)).items()
            if what.get("accepted")
        ]

    def queue(self, number: int) -> str:
        return f"{self.name}/x-servicebus-transfer/{number}"

    def accepted(self, entity: str) -> int:
        """How many messages the entity has taken so far. By its counters: a tally of the whole journal, asked for again
        and again, would hold up the broker that is being measured."""
        return int(self.primary.counters(entity)["events"].get("accepted", 0))

    def backlogged(self) -> int:
        """How many messages the backlog queues have taken so far, as cheaply."""
        counters = (self.secondary.counters(self.queue(number)) for number in range(self._queues))
        return sum(int(each["events"].get("accepted", 0)) for each in counters)

    def pings(self, entity: str) -> int:
        return int(self.primary.counters(entity)["pings"])

    def connections(self) -> int:
        """Connections open to either namespace."""
        return sum(int(side.overview()["connections"]) for side in (self.primary, self.secondary))

    def divert(self, factory: PairedFactory, entity: str, fault: Fault) -> int:
        """Hang a fault on the entity and send until it is failed over; the number undoes the fault."""
        hung = self.primary.hang(fault, entity)
        report = factory.send({entity: some(1)})[entity]
        assert (report.primary, report.backlog) == (0, 1)
        assert health(factory, entity) is Health.FAILED_OVER
        return hung


def health(factory: PairedFactory, entity: str) -> Health:
    return factory.board.view(entity).health


def await_health(factory: PairedFactory, entity: str, *wanted: Health, within: float = 20.0) -> None:
    await_that(lambda: health(factory, entity) in wanted, within)


class Worker:
    """A Python worker process that has a factory and sends what it is told."""

    def __init__(self, options: Options, folder: Path) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._line, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(theirs, options, str(folder)), daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> Self:
        assert self._line.poll(60)
        assert self._line.recv() == "ready"
        return self

    def begin(self, entity: str, count: int = 1) -> None:
        self._line.send((entity, count))

    def report(self) -> EntityReport:
        assert self._line.poll(60), "no report from the worker"
        report = self._line.recv()
        assert isinstance(report, EntityReport), report
        return report

    def send(self, entity: str, count: int = 1) -> EntityReport:
        self.begin(entity, count)
        return self.report()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._line.close()  # which the worker takes for the end
        self._process.join(20)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _serve(line: Connection, options: Options, folder: str) -> None:
    factory = PairedFactory(options, Board.for_executor(folder, options))
    line.send("ready")
    try:
        while True:
            entity, count = line.recv()
            line.send(factory.send({entity: some(count)})[entity])
    except EOFError:
        pass
    finally:
        factory.close()
        factory.board.close()
