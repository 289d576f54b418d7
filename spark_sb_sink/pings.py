"""Asks diverted entities whether they take messages again: one process of the executor for all, once an interval.

Whose turn it is stands on the board. A ping is a message that Service Bus does not deliver, or a link that is attached
and detached; which of the two is an option.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from spark_sb_sink.amqp import encode_message
from spark_sb_sink.board import Board
from spark_sb_sink.errors import NO_OUTCOME, redact
from spark_sb_sink.failover import StateChange
from spark_sb_sink.faults import Kind, Phase, sort, symptom_of
from spark_sb_sink.links import Links
from spark_sb_sink.options import Ping
from spark_sb_sink.timing import Clock
from spark_sb_sink.transport import Side, Transport
from spark_sb_sink.wire.deadline import Deadline

CONTENT_TYPE = "application/vnd.ms-servicebus-ping"
TTL_MS = 1000
LOOK_EVERY = 0.5
"""Seconds between looks at the board; a look that finds nothing due costs some microseconds."""
AT_ONCE = 16
"""Pings under way at the same time; when a whole namespace is out there may be a thousand entities to ask after."""

_LOG = logging.getLogger(__name__)


def ping_message(now_ms: int) -> bytes:
    """An empty message that lives one second, with a session id of its own for entities that require sessions."""
    return encode_message(
        b"",
        message_id=str(uuid.uuid4()),
        session_id=str(uuid.uuid4()),
        content_type=CONTENT_TYPE,
        ttl_ms=TTL_MS,
        created_ms=now_ms,
    )


@dataclass(frozen=True, slots=True)
class Pinger:
    """Pings the entities of the primary. `told` is called with each change of state that a ping brought."""

    links: Links
    transport: Transport
    board: Board
    kind: Ping
    clock: Clock
    told: Callable[[StateChange], None] = lambda change: None
    deadline: float = 10.0
    """Seconds for a whole ping, opening included: the turn on the board is given up after it."""

    async def ping(self, entity: str) -> bool:
        """Ping if it is due and this process gets the turn; whether it did. The outcome is on the board."""
        lease = self.board.take_ping(entity)
        if lease is None:
            return False
        try:
            async with Deadline(self.deadline):
                await self._once(entity)
        except NO_OUTCOME:
            raise  # says nothing of the entity
        except Exception as error:  # noqa: BLE001 - every failure is sorted, none is lost
            fault = sort(symptom_of(error, during=Phase.SEND))
            if fault.kind in (Kind.MISCONFIGURED, Kind.BAD_MESSAGE):
                # Not accepted, so one that is out stays out; no fault of the entity either, so a hint diverts nobody:
                # the next message meets what is wrong, and says so.
                change = self.board.record(entity, lease.busy(0.0))
                _LOG.warning("ping of %s: refused, so it cannot tell whether the entity is back: %s", entity, fault)
            else:
                throttled = fault.kind is Kind.THROTTLED
                outcome = lease.busy(fault.wait) if throttled else lease.failed(str(fault))
                change = self.board.record(entity, outcome)
                _LOG.info("ping of %s: %s", entity, fault)
        else:
            _LOG.info("ping of %s was accepted", entity)
            change = self.board.record(entity, lease.succeeded())
        if change is not None:
            self.told(change)
        return True

    async def _once(self, entity: str) -> None:
        if self.kind is Ping.LINK:
            await self.transport.ping_by_link(Side.PRIMARY, entity)
            return
        # Over a link of its own: one from before the outage may be dead without anybody being at fault, and a wait for
        # room among the links says nothing of the entity.
        link = await self.transport.open(Side.PRIMARY, entity)
        try:
            await link.send(ping_message(int(time.time() * 1000)), batch=False)
        finally:
            await link.close()

    async def run(self) -> None:
        """Until cancelled: ping what is due, each for itself, as one that does not answer must hold up no other."""
        turns = asyncio.Semaphore(AT_ONCE)
        under_way: set[str] = set()

        async def one(entity: str) -> None:
            try:
                async with turns:
                    await self.ping(entity)
            except Exception as error:  # noqa: BLE001 - pings go on while the process lives
                _LOG.warning("ping of %s: it has no outcome: %s", entity, redact(str(error)))
            finally:
                under_way.discard(entity)

        async with asyncio.TaskGroup() as pings:
            while True:
                for entity in self._due():
                    if entity not in under_way:
                        under_way.add(entity)
                        pings.create_task(one(entity))
                await self.clock.sleep(LOOK_EVERY)

    def _due(self) -> tuple[str, ...]:
        try:
            return self.board.due_pings()
        except Exception as error:  # noqa: BLE001 - as above
            _LOG.warning("no pings for now: %s", redact(str(error)))
            return ()
