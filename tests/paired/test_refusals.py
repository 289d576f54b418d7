"""The rows of the table of failures in which nobody is out: bad messages, and what we are not allowed to do.

The SDK and the network are real; the clock moves only when the sender waits.
"""

import re
from collections import Counter
from pathlib import Path

import pytest

from spark_sb_sink.amqp import Symbol, encode_message, encode_value
from spark_sb_sink.amqp.sections import DATA, MESSAGE_ANNOTATIONS, PROPERTIES, section_prefix
from spark_sb_sink.board import Board
from spark_sb_sink.broker import BrokerProcess, NamespaceHandle
from spark_sb_sink.broker.faults import CbsAnswer, Refuse, Reject
from spark_sb_sink.errors import MisconfiguredSendError
from spark_sb_sink.factory import PairedFactory
from spark_sb_sink.failover import Health
from spark_sb_sink.options import Options
from spark_sb_sink.reports import EntityReport
from tests.paired.support import messages
from tests.paired.two_sides import TwoSides, two_sides

INTERVALS = pytest.mark.parametrize("interval", [0.0, 2.0, 60.0])


# Bad messages


@INTERVALS
@pytest.mark.parametrize("info", [True, False], ids=["with info", "without info"])
@pytest.mark.parametrize(
    "condition",
    [
        "amqp:not-allowed",
        "com.microsoft:argument-error",
        "amqp:precondition-failed",
        "amqp:decode-error",
        "amqp:invalid-field",
        "amqp:link:message-size-exceeded",
    ],
)
async def test_a_rejected_batch_is_halved_until_the_one_message_is_found(
    broker: BrokerProcess, tmp_path: Path, condition: str, info: bool, interval: float
) -> None:
    async with two_sides(broker, tmp_path, interval=interval) as sides:
        # Strikes the batches of 8, 4 and 2 and the first message alone, and then no more.
        sides.primary.hang(Reject(condition, "it is odd", info=info, count=8 + 4 + 2 + 1), sides.entity)
        report = await sides.rig.send(messages(8), sides.entity)
        assert [(one.position, one.message) for one in report.rejected] == [(0, messages(1)[0])]
        assert "it is odd" in report.rejected[0].reason
        _only_these_are_refused(sides, report, 8, {0})


@INTERVALS
async def test_a_partition_key_that_is_not_the_session_id_is_quarantined(
    broker: BrokerProcess, tmp_path: Path, interval: float
) -> None:
    odd = (
        section_prefix(MESSAGE_ANNOTATIONS) + encode_value({Symbol("x-opt-partition-key"): "a"})
        + section_prefix(PROPERTIES) + encode_value(["m37", *[None] * 9, "b"])
        + section_prefix(DATA) + encode_value(b"x")
    )  # fmt: skip
    await _the_38th_of_100_is_found(broker, tmp_path, interval, odd, "PartitionKey has to be equal to SessionId")


@INTERVALS
async def test_bytes_that_are_no_message_are_quarantined(
    broker: BrokerProcess, tmp_path: Path, interval: float
) -> None:
    good = messages(1, start=37)[0]
    await _the_38th_of_100_is_found(broker, tmp_path, interval, good[:-5], "")


@INTERVALS
async def test_a_message_over_the_limit_is_quarantined(broker: BrokerProcess, tmp_path: Path, interval: float) -> None:
    large = encode_message(b"x" * 300_000, message_id="m37")
    await _the_38th_of_100_is_found(broker, tmp_path, interval, large, "too large")


@INTERVALS
@pytest.mark.parametrize("alias", ["x-ms-path", "x-ms-sessionid", "x-ms-timetolive", "x-ms-scheduledenqueuetimeutc"])
@pytest.mark.parametrize("out", [False, True], ids=["to the primary", "to the backlog"])
async def test_a_property_with_a_name_of_the_envelopes_own_is_quarantined(
    broker: BrokerProcess, tmp_path: Path, alias: str, out: bool, interval: float
) -> None:
    odd = encode_message(b"x", message_id="m37", application_properties={"mine": 1, alias: "elsewhere"})
    await _the_38th_of_100_is_found(broker, tmp_path, interval, odd, alias, out=out)


@INTERVALS
async def test_a_message_without_session_for_an_entity_that_requires_one_is_quarantined(
    broker: BrokerProcess, tmp_path: Path, interval: float
) -> None:
    sent = [encode_message(b"x", message_id=f"m{n}", session_id="s" if n != 5 else None) for n in range(20)]
    async with two_sides(broker, tmp_path, interval=interval, queue={"requires_session": True}) as sides:
        report = await sides.rig.send(sent, sides.entity)
        assert "SessionId was not set" in report.rejected[0].reason
        _only_these_are_refused(sides, report, 20, {5})


@INTERVALS
async def test_an_entity_that_is_not_there_and_was_never_seen_is_a_bad_address(
    broker: BrokerProcess, tmp_path: Path, interval: float
) -> None:
    async with two_sides(broker, tmp_path, interval=interval) as sides:
        report = await sides.rig.send(messages(30), "nowhere")
        assert [one.message for one in report.rejected] == messages(30)
        assert all("nowhere" in one.reason for one in report.rejected)
        assert (report.primary, report.backlog, report.changes, sides.rig.clock.waited) == (0, 0, (), [])
        assert not sides.in_backlog()
        assert (await sides.rig.send(messages(3), sides.entity)).primary == 3


async def test_a_bad_message_takes_no_backlog_queue_out(broker: BrokerProcess, tmp_path: Path) -> None:
    async with two_sides(broker, tmp_path, interval=0.0) as sides:
        sides.primary.hang(Refuse(), sides.entity)
        await sides.rig.send(messages(1, start=100), sides.entity)
        sides.secondary.hang(Reject("amqp:not-allowed", "it is odd", count=8 + 4 + 2 + 1), sides.kept_queue())
        report = await sides.rig.send(messages(8), sides.entity)
        assert ([one.position for one in report.overflow], report.backlog) == ([0], 7)
        assert sides.queues_out() == []


async def test_bytes_that_are_no_message_lose_nothing_on_a_partitioned_entity(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    sent = messages(20)
    sent[7] = sent[7][:-5]
    async with two_sides(broker, tmp_path, interval=0.0, queue={"partitioned": True}) as sides:
        report = await sides.rig.send(sent, sides.entity, partitioned=True)
        _only_these_are_refused(sides, report, 20, {7})


@pytest.mark.parametrize("out", [False, True], ids=["primary", "backlog"])
async def test_what_is_not_sent_needs_no_room_any_more(broker: BrokerProcess, tmp_path: Path, out: bool) -> None:
    alias = encode_message(b"x", message_id="alias", application_properties={"x-ms-path": "elsewhere"})
    sent = [*messages(3), encode_message(b"x" * 300_000, message_id="large"), alias, messages(1)[0][:-5]]
    gone: list[int] = []
    async with two_sides(broker, tmp_path, interval=0.0) as sides:
        if out:
            sides.primary.hang(Refuse(), sides.entity)
        report = await sides.rig.send(sent, sides.entity, left=gone.append)
        assert len(report.rejected) + len(report.overflow) == 3
        assert sum(gone) == sum(map(len, sent))


async def _the_38th_of_100_is_found(
    broker: BrokerProcess, folder: Path, interval: float, odd: bytes, why: str, *, out: bool = False
) -> None:
    sent = messages(100)
    sent[37] = odd
    async with two_sides(broker, folder, interval=interval) as sides:
        if out:
            sides.primary.hang(Refuse(), sides.entity)
        report = await sides.rig.send(sent, sides.entity)
        assert [one.message for one in report.rejected] == [odd]
        assert why in report.rejected[0].reason
        _only_these_are_refused(sides, report, 100, {37}, out=out)


def _only_these_are_refused(
    sides: TwoSides, report: EntityReport, count: int, refused: set[int], *, out: bool = False
) -> None:
    assert [one.position for one in report.rejected] == sorted(refused)
    rest = Counter(f"m{n}" for n in range(count) if n not in refused)
    assert (sides.at_primary(), sides.in_backlog()) == ((Counter(), rest) if out else (rest, Counter()))
    assert report.total == count
    if not out:
        assert report.changes == ()
        assert sides.rig.clock.waited == []
        assert sides.rig.board.view(sides.entity).health is Health.HEALTHY


# Misconfigured


@INTERVALS
@pytest.mark.parametrize(
    "fault",
    [
        CbsAnswer(401, "InvalidSignature: The token has an invalid signature. SharedAccessKey=c2VjcmV0 sig=c2VjcmV0"),
        CbsAnswer(403, "Unauthorized access. 'Send' claim(s) are required."),
        Reject("amqp:unauthorized-access", "Unauthorized access. 'Send' claim(s) are required.", at="attach"),
        Reject("amqp:unauthorized-access", "Unauthorized access. 'Send' claim(s) are required."),
    ],
    ids=["$cbs 401", "$cbs 403", "refused at the attach", "refused when it sends"],
)
async def test_what_we_may_not_do_is_reported_and_the_others_messages_are_sent(
    broker: BrokerProcess, tmp_path: Path, fault: CbsAnswer | Reject, interval: float
) -> None:
    async with two_sides(broker, tmp_path, interval=interval) as sides:
        other = f"{sides.entity}-other"
        sides.primary.create_queue(other)
        sides.primary.hang(fault, sides.entity)
        with _factory(sides, tmp_path, sides.primary.connection_string, interval) as factory:
            reports = factory.send({sides.entity: messages(7), other: messages(7)})
        assert reports[other].primary == 7
        _refused_and_not_diverted(sides, factory, reports[sides.entity], sides.primary.connection_string)


@INTERVALS
@pytest.mark.parametrize("case", ["a key with no Send claim", "a wrong key", "a key name that nobody knows"])
async def test_a_credential_that_does_not_do_never_fails_over(
    broker: BrokerProcess, tmp_path: Path, case: str, interval: float
) -> None:
    async with two_sides(broker, tmp_path, interval=interval) as sides:
        good = sides.primary.connection_string
        connection_string = {
            "a key with no Send claim": lambda: sides.primary.add_policy(f"l-{sides.entity}", ["Listen"]),
            "a wrong key": lambda: re.sub("SharedAccessKey=[^;]+", "SharedAccessKey=d3Jvbmc=", good),
            "a key name that nobody knows": lambda: re.sub("KeyName=[^;]+", "KeyName=nobody", good),
        }[case]()
        with _factory(sides, tmp_path, connection_string, interval) as factory:
            report = factory.send({sides.entity: messages(7)})[sides.entity]
        _refused_and_not_diverted(sides, factory, report, connection_string)


def _factory(sides: TwoSides, folder: Path, primary: str, interval: float) -> "_Closing":
    options = Options.from_dict(
        {
            "primary": primary,
            "secondary": sides.secondary.connection_string,
            "primary_name": sides.entity,
            "backlog_queue_count": len(sides.backlog_queues),
            "failover_interval": interval,
        }
    )
    return _Closing(options, Board.for_executor(folder, options))


class _Closing(PairedFactory):
    def __enter__(self) -> "_Closing":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _refused_and_not_diverted(
    sides: TwoSides, factory: PairedFactory, report: EntityReport, connection_string: str
) -> None:
    assert (report.primary, report.backlog, report.abandoned, report.changes) == (0, 0, 7, ())
    assert not sides.at_primary()
    assert not sides.in_backlog()
    assert factory.board.view(sides.entity).health is Health.HEALTHY
    assert isinstance(report.error, MisconfiguredSendError)
    text = str(report.error)
    for named in (sides.entity, factory.options.primary.host, "Send claim"):
        assert named in text
    _no_secret_in(repr(report), sides.primary, connection_string)
    _no_secret_in(text, sides.primary, connection_string)


def _no_secret_in(text: str, primary: NamespaceHandle, connection_string: str) -> None:
    keys = re.findall("SharedAccessKey=([^;]+)", primary.connection_string + ";" + connection_string)
    for secret in (*keys, "c2VjcmV0", "d3Jvbmc"):
        assert secret not in text
    assert not re.search(r"sig=(?!\*\*\*)", text)
