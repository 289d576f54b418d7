"""A sick primary as time goes by: the sender fails over in time, and every message is at the primary or in the backlog.

Also what the way through the backlog leaves of a message: all of it.
"""

from collections import Counter
from pathlib import Path
from uuid import UUID

import pytest

from spark_sb_sink.amqp import (
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float,
    Long,
    Map,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    decode_message,
    encode_message,
    encode_value,
)
from spark_sb_sink.amqp.sections import (
    APPLICATION_PROPERTIES,
    DATA,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    VALUE,
    section_prefix,
)
from spark_sb_sink.broker import BrokerProcess
from spark_sb_sink.broker.faults import BlackHole, CbsAnswer, CutMidBatch, Fault, LoseAck, Refuse, Reject
from spark_sb_sink.envelope import restore
from spark_sb_sink.failover import Health
from spark_sb_sink.timing import MonotonicClock
from spark_sb_sink.transport import Side
from tests.amqp.strategies import typed_message
from tests.paired.support import messages
from tests.paired.two_sides import two_sides
from tests.ticking import ticking

INTERVAL, DEADLINE = 2.0, 2.0
"""As long as each other, so that a deadline that is longer than it says cannot hide in the interval."""
SLACK = DEADLINE / 2

SICK: dict[str, tuple[Fault, bool]] = {
    "refused": (Refuse(), False),
    "black hole before SASL": (BlackHole(after="accept"), False),
    "black hole after the attach": (BlackHole(after="attach"), False),
    "$cbs at 500": (CbsAnswer(status=500), False),
    "cut in mid-batch": (CutMidBatch(after_bytes=500), False),
    "acknowledgements lost": (LoseAck(), True),
    "rejected without info": (Reject("amqp:internal-error", info=False), False),
}


@pytest.mark.parametrize("name", SICK)
async def test_a_sick_namespace_is_left_in_time_and_nothing_is_lost(
    broker: BrokerProcess, tmp_path: Path, name: str
) -> None:
    fault, stores = SICK[name]
    async with (
        ticking() as clock,
        two_sides(broker, tmp_path, interval=INTERVAL, timeout=DEADLINE, clock=clock) as sides,
    ):
        assert (await sides.rig.send(messages(10), sides.entity)).primary == 10
        sides.primary.hang(fault)
        if isinstance(fault, CbsAnswer):  # asked when a link is opened
            await sides.rig.links.drop(Side.PRIMARY)
        begun = clock.now()
        report = await sides.rig.send(messages(200, start=10), sides.entity)

        assert (report.primary, report.backlog, report.total) == (0, 200, 200)
        suspect, diverted = report.changes
        assert (suspect.after, diverted.after) == (Health.SUSPECT, Health.FAILED_OVER)
        assert suspect.at - begun <= DEADLINE + SLACK, "an attempt took longer than its deadline"
        assert diverted.at - suspect.at + 0.001 >= INTERVAL
        assert diverted.at - suspect.at <= INTERVAL + DEADLINE + SLACK
        late = Counter(f"m{n}" for n in range(10, 210))
        early = {f"m{n}" for n in range(10)}
        assert sides.in_backlog() == late
        # What was stored and never acknowledged went out again under the id that it had.
        assert sides.at_primary().keys() == (early | late.keys() if stores else early)


async def test_a_lost_acknowledgement_shows_one_message_where_duplicates_are_detected(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    async with two_sides(
        broker, tmp_path, interval=60.0, clock=MonotonicClock(), queue={"requires_duplicate_detection": True}
    ) as sides:
        sides.primary.hang(LoseAck(count=1), sides.entity)
        report = await sides.rig.send(messages(30), sides.entity)
        assert (report.primary, report.backlog) == (30, 0)
        assert [change.after for change in report.changes] == [Health.SUSPECT, Health.HEALTHY]
        assert sides.at_primary() == Counter(f"m{n}" for n in range(30))
        happened = sides.primary.tally(sides.entity)
        assert all(what == {"accepted": 1, "ack-lost": 1, "duplicate": 1} for what in happened.values())


async def test_a_lost_acknowledgement_shows_the_same_id_twice_where_they_are_not(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    async with two_sides(broker, tmp_path, interval=60.0, clock=MonotonicClock()) as sides:
        sides.primary.hang(LoseAck(count=1), sides.entity)
        report = await sides.rig.send(messages(30), sides.entity)
        assert (report.primary, report.backlog) == (30, 0)
        assert sides.at_primary() == Counter({f"m{n}": 2 for n in range(30)})


async def test_a_lost_acknowledgement_of_a_backlog_queue_repeats_under_the_same_id(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    async with two_sides(broker, tmp_path, interval=0.0) as sides:
        sides.primary.hang(Refuse(), sides.entity)
        await sides.rig.send(messages(1), sides.entity)
        sides.secondary.hang(LoseAck(count=1), sides.kept_queue())
        report = await sides.rig.send(messages(5, start=1), sides.entity)
        assert (report.backlog, report.total) == (5, 5)
        assert sides.in_backlog() == Counter({"m0": 1, **{f"m{n}": 2 for n in range(1, 6)}})


async def test_one_batch_cut_in_the_middle_is_sent_again_whole(broker: BrokerProcess, tmp_path: Path) -> None:
    async with two_sides(broker, tmp_path, interval=60.0) as sides:
        sides.primary.hang(CutMidBatch(after_bytes=100_000, count=1), sides.entity)
        report = await sides.rig.send(messages(40, size=5000), sides.entity)
        assert (report.primary, report.backlog) == (40, 0)
        assert sides.at_primary() == Counter(f"m{n}" for n in range(40))


# The envelope


async def test_a_message_that_the_envelope_makes_too_large_is_reported_for_overflow(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    limit = 256 * 1024
    empty = len(encode_message(b"x" * 300, message_id="near")) - 300
    near = encode_message(b"x" * (limit - empty), message_id="near")
    assert len(near) == limit
    async with two_sides(broker, tmp_path, interval=0.0) as sides:
        fault = sides.primary.hang(Refuse(), sides.entity)
        report = await sides.rig.send([*messages(2), near, *messages(2, start=2)], sides.entity)
        assert [(one.position, one.message) for one in report.overflow] == [(2, near)]
        assert "too large with the envelope" in report.overflow[0].reason
        assert (report.backlog, report.total, report.error, report.all_out) == (4, 5, None, None)
        assert "near" not in sides.in_backlog()
        assert sides.queues_out() == []

        sides.primary.undo(fault)
        sides.rig.clock.time += 60
        assert await sides.rig.pinger.ping(sides.entity)
        report = await sides.rig.send([report.overflow[0].message], sides.entity)
        assert (report.primary, sides.at_primary()["near"]) == (1, 1)


EVERY_TYPE: dict[str, object] = {
    "null": None,
    "true": True,
    "false": False,
    "ubyte": UByte(200),
    "ushort": UShort(60_000),
    "uint": UInt(4_000_000_000),
    "uint of one byte": UInt(7),
    "ulong": ULong(2**64 - 1),
    "byte": Byte(-100),
    "short": Short(-30_000),
    "int": -5,
    "long": Long(5),
    "long beyond int": 2**40,
    "float": Float(0.1),
    "double": 0.1,
    "decimal32": Decimal32(b"\x01\x02\x03\x04"),
    "decimal64": Decimal64(bytes(range(8))),
    "decimal128": Decimal128(bytes(range(16))),
    "char": Char("é"),
    "timestamp": Timestamp(1_700_000_000_123),
    "timestamp before 1970": Timestamp(-1),
    "uuid": UUID("00112233-4455-6677-8899-aabbccddeeff"),
    "binary": b"\x00\xff",
    "string": "text",
    "long string": "ü" * 300,
    "symbol": Symbol("a-symbol"),
    "described": Described(Symbol("com.microsoft:timespan"), Long(36_000_000_000)),
}


def own_messages() -> list[bytes]:
    """As our encoder writes them."""
    long_ago = 1_000_000_000_000
    return [
        encode_message(b"plain", message_id="plain"),
        encode_message("every type", message_id="types", application_properties=EVERY_TYPE),
        encode_message(b"s", message_id="session", session_id="a session", partition_key="a session"),
        encode_message(b"k", message_id="key", partition_key="a key"),
        encode_message(b"t", message_id="ttl", ttl_ms=60_000, created_ms=long_ago),
        encode_message(b"t", message_id="long ttl", ttl_ms=2**40, created_ms=long_ago),
        encode_message(b"l", message_id="scheduled", scheduled_ms=4_000_000_000_000),
        encode_message(
            b"all", message_id="all", session_id="s", partition_key="s", correlation_id="c", subject="sub",
            content_type="text/plain", reply_to="r", reply_to_session_id="rs", to="t", ttl_ms=5000,
            created_ms=long_ago, scheduled_ms=4_000_000_000_000, application_properties=EVERY_TYPE,
        ),
    ]  # fmt: skip


def foreign_messages() -> list[bytes]:
    """As others may write them: shapes that our encoder does not choose."""
    pairs = Map(tuple(EVERY_TYPE.items()))  # type: ignore[arg-type]
    annotations = Map(
        ((Symbol("x-opt-mine"), Long(1)), (Symbol("x-opt-scheduled-enqueue-time"), Timestamp(4 * 10**12)))
    )

    def message(*sections: tuple[int, object]) -> bytes:
        return b"".join(section_prefix(kind) + encode_value(value) for kind, value in sections)  # type: ignore[arg-type]

    return [
        message((PROPERTIES, ["only an id"]), (APPLICATION_PROPERTIES, pairs), (DATA, b"1"), (DATA, b"2")),
        message((HEADER, [True, UByte(9), UInt(90_000)]), (PROPERTIES, [UUID(int=1)]), (VALUE, pairs)),
        message(
            (HEADER, [None, None, UInt(1)]),
            (MESSAGE_ANNOTATIONS, annotations),
            (PROPERTIES, ["in a session", b"user", *[None] * 8, "the session", UInt(3)]),
            (VALUE, Described(Symbol("x"), (Long(1), None))),
            (FOOTER, Map(((Symbol("x-opt-sum"), UInt(9)),))),
        ),
    ]


async def test_a_message_comes_back_from_the_backlog_as_it_was(broker: BrokerProcess, tmp_path: Path) -> None:
    own, foreign = own_messages(), foreign_messages()
    async with two_sides(broker, tmp_path, interval=0.0) as sides:
        sides.primary.hang(Refuse(), sides.entity)
        report = await sides.rig.send([*own, *foreign], sides.entity)
        assert (report.backlog, report.total) == (len(own) + len(foreign),) * 2
        # None waits for its time or has run out of it there, though scheduled for 2096 and expired since 2001.
        held = await sides.receive_backlog()
        restored = [restore(payload) for payload in held]
        assert {one.path for one in restored} == {sides.entity}
        back = [one.message for one in restored]
        assert back[: len(own)] == own
        for before, after in zip(foreign, back[len(own) :], strict=True):
            assert typed_message(decode_message(after)) == typed_message(decode_message(before))
