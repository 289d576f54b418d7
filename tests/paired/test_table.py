"""Each failure that the table of failures knows, through the whole sender, with each failover interval.

The network is in memory and the clock moves only when the sender waits; `test_failures` and `test_refusals` have the
same rows as a broker makes them.
"""

from pathlib import Path

import pytest
from azure.servicebus.exceptions import ServiceBusConnectionError, ServiceBusServerBusyError

from spark_sb_sink.envelope import restore
from spark_sb_sink.errors import MisconfiguredSendError
from spark_sb_sink.failover import Health
from tests.paired.support import Rig, ids, messages
from tests.test_faults import BAD_MESSAGES, ENTITY_FAULTS, MISCONFIGURED, THROTTLED, rows

INTERVALS = pytest.mark.parametrize("interval", [0.0, 2.0, 60.0])


async def known(folder: Path, interval: float) -> Rig:
    """A pair whose entity has taken a message."""
    rig = Rig(folder, interval=interval)
    assert (await rig.send(messages(1))).primary == 1
    return rig


@INTERVALS
@rows(ENTITY_FAULTS)
async def test_an_entity_fault_diverts_when_the_interval_is_over_and_loses_nothing(
    tmp_path: Path, error: BaseException, interval: float
) -> None:
    rig = await known(tmp_path, interval)
    rig.fail_primary(lambda: error)
    begun = rig.clock.now()
    report = await rig.send(messages(100, start=1))
    assert (report.primary, report.backlog, report.total) == (0, 100, 100)
    assert rig.clock.now() - begun == pytest.approx(interval)
    assert [change.after for change in report.changes] == (
        [Health.SUSPECT, Health.FAILED_OVER] if interval else [Health.FAILED_OVER]
    )
    restored = [restore(message) for message in rig.backlogged()]
    assert [one.message for one in restored] == messages(100, start=1)
    assert {one.path for one in restored} == {"orders"}


@INTERVALS
@rows(THROTTLED)
async def test_throttling_is_waited_for_and_never_starts_or_advances_the_timer(
    tmp_path: Path, error: BaseException, interval: float
) -> None:
    rig = await known(tmp_path, interval)
    rig.fail_primary(lambda: error)
    rig.clock.on_sleep = lambda seconds: rig.heal() if rig.clock.now() >= 1000 + 3600 else None
    report = await rig.send(messages(5, start=1))
    assert (report.primary, report.backlog, report.changes) == (5, 0, ())
    assert rig.clock.waited == [10.0] * 360


async def test_throttling_does_not_use_up_the_interval_of_an_entity_that_has_failed_before(tmp_path: Path) -> None:
    rig = await known(tmp_path, 60.0)
    rig.fail_primary(ServiceBusConnectionError)

    def then(seconds: float) -> None:
        if rig.clock.now() >= 1000 + 3600:
            rig.heal()
        else:
            rig.fail_primary(ServiceBusServerBusyError)

    rig.clock.on_sleep = then
    report = await rig.send(messages(5, start=1))
    assert (report.primary, report.backlog) == (5, 0)
    assert [change.after for change in report.changes] == [Health.SUSPECT, Health.HEALTHY]


@INTERVALS
@rows(MISCONFIGURED)
async def test_what_is_misconfigured_is_reported_and_never_diverted(
    tmp_path: Path, error: BaseException, interval: float
) -> None:
    rig = await known(tmp_path, interval)
    rig.fail_primary(lambda: error)
    sender = rig.sender()
    await sender.send(messages(3, start=1))
    await sender.send(messages(2, start=4))
    report = sender.report()
    assert (report.primary, report.backlog, report.abandoned, report.changes) == (0, 0, 5, ())
    assert rig.clock.waited == []
    assert isinstance(report.error, MisconfiguredSendError)
    assert all(named in str(report.error) for named in ("orders", "primary.example", "Send"))
    assert rig.board.view("orders").health is Health.HEALTHY


@INTERVALS
@rows(BAD_MESSAGES)
async def test_a_bad_message_is_found_and_the_rest_are_sent(tmp_path: Path, error: Exception, interval: float) -> None:
    rig = await known(tmp_path, interval)
    bad = messages(1, start=37)[0]
    rig.memory.refuse = lambda message: error if message == bad else None
    report = await rig.send(messages(100, start=1))
    assert [(one.position, one.message) for one in report.rejected] == [(36, bad)]
    assert report.rejected[0].reason
    assert ids(rig.primary()) == [f"m{n}" for n in range(101) if n != 37]
    assert (report.total, report.backlog, report.changes, rig.clock.waited) == (100, 0, (), [])
