"""One list of tests for both transports: the one in memory and the one over AMQP to the embedded broker."""

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Protocol

import pytest
from azure.servicebus._pyamqp.error import MessageException
from azure.servicebus.exceptions import (
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusServerBusyError,
)

from spark_sb_sink.amqp import batch_payload, batch_prefix, encode_message
from spark_sb_sink.broker import BrokerProcess
from spark_sb_sink.broker.faults import Busy, LoseAck, Refuse, Reject
from spark_sb_sink.envelope import restore
from spark_sb_sink.errors import ClosedError, MisconfiguredSendError
from spark_sb_sink.failover import Health
from spark_sb_sink.faults import Fault, Kind, Phase, sort, symptom_of
from spark_sb_sink.transport import Link, Side
from tests.paired.support import Rig, ids, messages
from tests.paired.two_sides import TwoSides, two_sides

BUSY = "Throttled. Please wait 25 seconds and try again."
CLAIM = "Unauthorized access. 'Send' claim(s) are required to perform this operation."
ODD = "it is odd"


class Network(Protocol):
    """A pair with an entity, and what can be done to the primary's side of it."""

    rig: Rig
    entity: str

    def refuse_connections(self) -> None: ...

    def be_busy(self) -> None: ...

    def take_the_claim_away(self) -> None: ...

    def find_the_first_odd(self, count: int) -> None:
        """Refuse what holds m0, where so many messages, a power of two, come in one batch."""

    def lose_one_acknowledgement(self) -> None: ...

    def heal(self) -> None: ...

    async def primary(self) -> list[bytes]: ...

    async def backlog(self) -> list[bytes]: ...


class InMemory:
    entity = "orders"

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.heal = rig.heal

    def refuse_connections(self) -> None:
        self.rig.fail_primary(ServiceBusConnectionError)

    def be_busy(self) -> None:
        self.rig.fail_primary(lambda: ServiceBusServerBusyError(message=BUSY))

    def take_the_claim_away(self) -> None:
        self.rig.fail_primary(lambda: ServiceBusAuthorizationError(message=CLAIM))

    def find_the_first_odd(self, count: int) -> None:
        condition = b"amqp:not-allowed"
        inner = MessageException(condition, description=ODD)
        odd = ServiceBusError(ODD, condition=condition, error=inner)
        self.rig.memory.refuse = lambda message: odd if ids([message]) == ["m0"] else None

    def lose_one_acknowledgement(self) -> None:
        def after(payload: bytes) -> None:
            # Stored, and the link gone before it could say so.
            self.rig.memory.seen = lambda payload: None
            self.rig.memory.sent[Side.PRIMARY, self.entity].append(payload)
            raise ServiceBusConnectionError

        self.rig.memory.seen = after

    async def primary(self) -> list[bytes]:
        return self.rig.primary(self.entity)

    async def backlog(self) -> list[bytes]:
        return self.rig.backlogged()


class OverAmqp:
    def __init__(self, sides: TwoSides) -> None:
        self.sides = sides
        self.rig, self.entity = sides.rig, sides.entity
        self.heal = sides.primary.undo
        self.primary, self.backlog = sides.receive_primary, sides.receive_backlog

    def refuse_connections(self) -> None:
        self.sides.primary.hang(Refuse(), self.entity)

    def be_busy(self) -> None:
        self.sides.primary.hang(Busy(description=BUSY), self.entity)

    def take_the_claim_away(self) -> None:
        self.sides.primary.hang(Reject("amqp:unauthorized-access", CLAIM), self.entity)

    def find_the_first_odd(self, count: int) -> None:
        # Strikes the batches of 8, 4 and 2 and the first message alone, and then no more.
        self.sides.primary.hang(Reject("amqp:not-allowed", ODD, count=2 * count - 1), self.entity)

    def lose_one_acknowledgement(self) -> None:
        self.sides.primary.hang(LoseAck(count=1), self.entity)


Make = Callable[..., "contextlib.AbstractAsyncContextManager[Network]"]


@pytest.fixture(params=["memory", "AMQP"])
def network(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Makes a network with a failover interval."""

    @contextlib.asynccontextmanager
    async def make(interval: float = 0.0, **rig: Any) -> AsyncIterator[Network]:
        if request.param == "memory":
            yield InMemory(Rig(tmp_path, interval=interval, **rig))
            return
        broker: BrokerProcess = request.getfixturevalue("broker")
        async with two_sides(broker, tmp_path, interval=interval, **rig) as sides:
            yield OverAmqp(sides)

    return make


async def opened(over: Network) -> Link:
    return await over.rig.transport.open(Side.PRIMARY, over.entity)


async def failing(call: Any, during: Phase = Phase.SEND) -> Fault:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - sorted here
        await call
    return sort(symptom_of(caught.value, during=during))


# The transport by itself


async def test_messages_and_batches_arrive_as_they_were_and_in_order(network: Make) -> None:
    sent = messages(6)
    async with network() as over:
        link = await opened(over)
        await link.send(sent[0], batch=False)
        await link.send(batch_payload(batch_prefix(sent[1]), sent[1:5]), batch=True)
        await link.send(sent[5], batch=False)
        await link.close()
        assert ids(await over.primary()) == [f"m{n}" for n in range(6)]


async def test_a_link_knows_its_limits_and_what_is_over_them_is_too_large(network: Make) -> None:
    async with network() as over:
        link = await opened(over)
        assert 0 < link.limits.max_batch_size <= link.limits.max_message_size == 256 * 1024
        large = encode_message(b"x" * link.limits.max_message_size, message_id="large")
        fault = await failing(link.send(large, batch=False))
        assert (fault.kind, fault.too_large) == (Kind.BAD_MESSAGE, True)
        await link.close()
        assert await over.primary() == []


async def test_what_is_rejected_is_not_kept_and_the_link_lives(network: Make) -> None:
    sent = messages(2)
    async with network() as over:
        link = await opened(over)
        over.find_the_first_odd(1)
        fault = await failing(link.send(sent[0], batch=False))
        assert (fault.kind, fault.split) == (Kind.BAD_MESSAGE, True)
        assert ODD in fault.text
        assert not link.broken
        await link.send(sent[1], batch=False)
        await link.close()
        assert ids(await over.primary()) == ["m1"]


async def test_a_link_whose_connection_was_lost_is_broken_and_another_opens(network: Make) -> None:
    async with network() as over:
        link = await opened(over)
        over.refuse_connections()
        assert (await failing(link.send(messages(1)[0], batch=False))).kind is Kind.ENTITY_FAULT
        assert link.broken
        await link.close()
        assert (await failing(opened(over), Phase.OPEN)).kind is Kind.ENTITY_FAULT
        over.heal()
        link = await opened(over)
        await link.send(messages(1)[0], batch=False)
        await link.close()


async def test_a_ping_by_link_sends_nothing_and_fails_as_an_opening_does(network: Make) -> None:
    async with network() as over:
        await over.rig.transport.ping_by_link(Side.PRIMARY, over.entity)
        over.refuse_connections()
        fault = await failing(over.rig.transport.ping_by_link(Side.PRIMARY, over.entity), Phase.OPEN)
        assert fault.kind is Kind.ENTITY_FAULT
        over.heal()
        assert await over.primary() == []


async def test_a_closed_link_says_so_and_closing_twice_is_fine(network: Make) -> None:
    async with network() as over:
        link = await opened(over)
        await link.close()
        await link.close()
        with pytest.raises(ClosedError, match=over.entity):
            await link.send(messages(1)[0], batch=False)


async def test_a_closed_transport_opens_nothing_on_either_side(network: Make) -> None:
    async with network() as over:
        await over.rig.transport.close()
        for side in Side:
            with pytest.raises(ClosedError, match=side.value):
                await over.rig.transport.open(side, over.entity)
            with pytest.raises(ClosedError, match=side.value):
                await over.rig.transport.ping_by_link(side, over.entity)


# A sender over it


async def test_healthy_messages_go_to_the_primary_in_order_and_unchanged(network: Make) -> None:
    sent = messages(300)
    async with network() as over:
        report = await over.rig.send(sent, over.entity)
        assert (report.primary, report.total, report.transfers, report.changes) == (300, 300, 1, ())
        assert ids(await over.primary()) == [f"m{n}" for n in range(300)]


@pytest.mark.parametrize("interval", [0.0, 2.0, 60.0])
async def test_an_entity_that_is_out_is_diverted_and_comes_back_after_a_ping(network: Make, interval: float) -> None:
    async with network(interval) as over:
        rig = over.rig
        over.refuse_connections()
        begun = rig.clock.now()
        report = await rig.send(messages(20), over.entity)
        assert (report.primary, report.backlog) == (0, 20)
        assert rig.clock.now() - begun == pytest.approx(interval, abs=0.01)
        restored = [restore(message) for message in await over.backlog()]
        assert ids([one.message for one in restored]) == [f"m{n}" for n in range(20)]
        assert {one.path for one in restored} == {over.entity}
        over.heal()
        rig.clock.time += 60
        assert await rig.pinger.ping(over.entity)
        report = await rig.send(messages(5, start=20), over.entity)
        assert (report.primary, report.backlog) == (5, 0)
        assert rig.board.view(over.entity).health is Health.HEALTHY


async def test_throttling_is_waited_for_as_long_as_the_service_asks(network: Make) -> None:
    async with network() as over:
        over.be_busy()
        over.rig.clock.on_sleep = lambda seconds: over.heal() if len(over.rig.clock.waited) == 3 else None
        report = await over.rig.send(messages(5), over.entity)
        assert (report.primary, report.backlog, report.changes) == (5, 0, ())
        assert over.rig.clock.waited == [25.0] * 3


async def test_a_missing_claim_is_reported_and_never_diverted(network: Make) -> None:
    async with network() as over:
        over.take_the_claim_away()
        report = await over.rig.send(messages(5), over.entity)
        assert (report.primary, report.backlog, report.abandoned, report.changes) == (0, 0, 5, ())
        assert isinstance(report.error, MisconfiguredSendError)
        assert (report.error.entity, report.error.claim) == (over.entity, "Send")


async def test_the_one_bad_message_is_found_and_the_rest_are_sent(network: Make) -> None:
    async with network() as over:
        over.find_the_first_odd(8)
        report = await over.rig.send(messages(8), over.entity)
        assert [one.position for one in report.rejected] == [0]
        assert ODD in report.rejected[0].reason
        assert ids(await over.primary()) == [f"m{n}" for n in range(1, 8)]


async def test_an_ambiguous_send_is_repeated_under_the_same_id(network: Make) -> None:
    async with network(60.0) as over:
        over.lose_one_acknowledgement()
        report = await over.rig.send(messages(1), over.entity)
        assert (report.primary, report.backlog) == (1, 0)
        assert [change.after for change in report.changes] == [Health.SUSPECT, Health.HEALTHY]
        assert ids(await over.primary()) == ["m0", "m0"]


async def test_a_message_that_only_the_envelope_makes_too_large_is_for_overflow(network: Make) -> None:
    async with network() as over:
        near = encode_message(b"x" * (256 * 1024 - 40), message_id="near")
        assert len(near) <= 256 * 1024
        assert (await over.rig.send([near], over.entity)).primary == 1
        over.refuse_connections()
        report = await over.rig.send([near, *messages(3)], over.entity)
        assert [one.message for one in report.overflow] == [near]
        assert (report.backlog, report.rejected, report.total) == (3, (), 4)
