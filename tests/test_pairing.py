"""Backlog queues are found or made before the first send, exactly as designed, or one error tells why not."""

import asyncio
import base64
import contextlib
import hashlib
import hmac
import logging
import ssl
import time
import traceback
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from aiohttp import web

from spark_sb_sink.backlog_queues import Difference, sort
from spark_sb_sink.broker import BrokerProcess, NamespaceHandle, certificates
from spark_sb_sink.broker.faults import BlackHole, Refuse
from spark_sb_sink.connection_strings import parse_connection_string
from spark_sb_sink.errors import (
    ClosedError,
    CredentialsRefusedError,
    ManageClaimMissingError,
    PairingError,
    QueueNotCreatableError,
    QueueUnsafeError,
    SecondaryUnreachableError,
)
from spark_sb_sink.options import Options
from spark_sb_sink.pairing import Paired, pair, pair_async
from spark_sb_sink.pairing_keeper import TRY_AGAIN, PairingKeeper

CONNECT = "{http://schemas.microsoft.com/netservices/2010/10/servicebus/connect}"
FOREVER = "P10675199DT2H48M5.4775807S"
SECTION_7 = {
    "MaxSizeInMegabytes": "5120",
    "MaxDeliveryCount": "2147483647",
    "DefaultMessageTimeToLive": FOREVER,
    "AutoDeleteOnIdle": FOREVER,
    "LockDuration": "PT1M",
    "DeadLetteringOnMessageExpiration": "true",
    "EnableBatchedOperations": "true",
    # The rest default.
    "RequiresSession": "false",
    "RequiresDuplicateDetection": "false",
    "EnablePartitioning": "false",
    "Status": "Active",
}
PRIMARY = "Endpoint=sb://alpha.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey=cHJpbWFyeWtleQ=="


@pytest.fixture
def secondary(broker: BrokerProcess) -> Iterator[NamespaceHandle]:
    """The secondary namespace, without faults, before and after."""
    handle = broker["secondary"]
    handle.undo()
    handle.start()
    yield handle
    handle.undo()
    handle.start()


@pytest.fixture
def options(secondary: NamespaceHandle, name: str) -> Callable[..., Options]:
    """Options for a pair that no other test has."""

    def make(connection_string: str = secondary.connection_string, **more: Any) -> Options:
        side = {"connection_string": connection_string, "ca_file": secondary.ca_file}
        return Options(
            **{"primary": PRIMARY, "secondary": side, "primary_name": name, "backlog_queue_count": 3, **more}
        )

    return make


def queues(name: str, *numbers: int) -> tuple[str, ...]:
    return tuple(f"{name}/x-servicebus-transfer/{number}" for number in numbers)


def signature(handle: NamespaceHandle, lifetime: float = 600.0) -> str:
    """A shared access signature for the whole namespace, made by hand as the service documents it."""
    parsed = parse_connection_string(handle.connection_string)
    resource = urllib.parse.quote_plus(f"sb://{parsed.host}/")
    expiry = int(time.time() + lifetime)
    signed = hmac.new(str(parsed.key).encode(), f"{resource}\n{expiry}".encode(), hashlib.sha256).digest()
    sig = urllib.parse.quote_plus(base64.b64encode(signed))
    return f"SharedAccessSignature sr={resource}&sig={sig}&se={expiry}&skn={parsed.key_name}"


def with_signature(handle: NamespaceHandle, lifetime: float = 600.0) -> str:
    emulator = ";UseDevelopmentEmulator=true"
    return f"Endpoint=sb://{handle.endpoint}/;SharedAccessSignature={signature(handle, lifetime)}{emulator}"


def with_wrong_key(handle: NamespaceHandle) -> str:
    parsed = parse_connection_string(handle.connection_string)
    key = base64.b64encode(b"not the key of anybody at all 32").decode()
    return handle.connection_string.replace(str(parsed.key), key)


def on_the_wire(handle: NamespaceHandle, queue: str) -> dict[str, str]:
    """The properties of a queue as the service itself writes them; empty if there is none."""
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}),
        urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=handle.ca_file)),
    )
    url = f"https://{handle.endpoint}/{queue}?api-version=2021-05"
    request = urllib.request.Request(url, headers={"Authorization": signature(handle)})
    with opener.open(request, timeout=20) as answer:
        found = ElementTree.fromstring(answer.read()).find(f".//{CONNECT}QueueDescription")
    return {} if found is None else {child.tag.removeprefix(CONNECT): child.text or "" for child in found}


def lasting(properties: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in properties.items() if key not in ("AccessedAt", "SizeInBytes", "CountDetails")}


# What is made


def test_missing_queues_are_made_exactly_as_designed(
    options: Callable[..., Options], secondary: NamespaceHandle, name: str
) -> None:
    paired = pair(options())
    assert paired == Paired(
        namespace=secondary.endpoint, path=f"{name}/x-servicebus-transfer/", count=3, created=queues(name, 0, 1, 2)
    )
    for queue in queues(name, 0, 1, 2):
        assert on_the_wire(secondary, queue).items() >= SECTION_7.items()
    assert not on_the_wire(secondary, queues(name, 3)[0])


def test_the_backlog_is_named_after_the_primary_and_has_ten_queues_if_nothing_else_is_said(
    secondary: NamespaceHandle,
) -> None:
    side = {"connection_string": secondary.connection_string, "ca_file": secondary.ca_file}
    paired = pair(Options(primary=PRIMARY, secondary=side))
    assert paired.created == queues("alpha", *range(10))
    assert paired.count == 10


def test_what_is_there_is_found_and_only_the_rest_made(
    options: Callable[..., Options], secondary: NamespaceHandle, name: str
) -> None:
    pair(options(backlog_queue_count=1))
    secondary.create_queue(queues(name, 2)[0])
    paired = pair(options(backlog_queue_count=4))
    assert paired.found == queues(name, 0, 2)
    assert paired.created == queues(name, 1, 3)
    assert paired.count == 4


def test_pairing_again_changes_nothing(options: Callable[..., Options], secondary: NamespaceHandle, name: str) -> None:
    pair(options())
    before = [lasting(on_the_wire(secondary, queue)) for queue in queues(name, 0, 1, 2)]
    again = pair(options())
    assert (again.count, again.found, again.created, again.differing) == (3, queues(name, 0, 1, 2), (), ())
    assert [lasting(on_the_wire(secondary, queue)) for queue in queues(name, 0, 1, 2)] == before


def test_extra_queues_are_left_alone_and_reported(
    options: Callable[..., Options], secondary: NamespaceHandle, name: str
) -> None:
    extra = (*queues(name, 3, 12), f"{name}/x-servicebus-transfer/00", f"{name}/x-servicebus-transfer/old")
    for queue in (*extra, f"{name}/x-servicebus-transfers/0", f"{name}-other"):
        secondary.create_queue(queue, lock_duration=30.0)
    before = [lasting(on_the_wire(secondary, queue)) for queue in extra]
    paired = pair(options())
    assert set(paired.extra) == set(extra)
    assert paired.count == 3
    assert [lasting(on_the_wire(secondary, queue)) for queue in extra] == before


def test_a_queue_of_another_making_is_used_as_it_is_and_its_differences_are_told(
    options: Callable[..., Options], secondary: NamespaceHandle, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    (queue,) = queues(name, 1)
    secondary.create_queue(queue, max_delivery_count=7, default_ttl=3600.0, lock_duration=30.0, max_size_mb=5120)
    before = lasting(on_the_wire(secondary, queue))
    with caplog.at_level(logging.WARNING, "spark_sb_sink"):
        paired = pair(options())
    assert paired.found == (queue,)
    assert set(paired.differing) == {
        Difference(queue, "max_delivery_count", "7", "2147483647"),
        Difference(queue, "default_message_time_to_live", "1h", "forever"),
        Difference(queue, "lock_duration", "30s", "1m"),
        Difference(queue, "dead_lettering_on_message_expiration", "false", "true"),
    }
    assert f"{queue} has max_delivery_count 7 where 2147483647 is meant" in caplog.text
    assert lasting(on_the_wire(secondary, queue)) == before


UNSAFE: list[tuple[dict[str, Any], str]] = [
    ({"requires_duplicate_detection": True}, "requires_duplicate_detection true"),
    ({"requires_session": True}, "requires_session true"),
]


@pytest.mark.parametrize(("settings", "said"), UNSAFE, ids=lambda value: value if isinstance(value, str) else "")
async def test_a_queue_that_would_lose_or_refuse_messages_is_an_error_unless_best_effort_is_asked_for(
    options: Callable[..., Options],
    secondary: NamespaceHandle,
    name: str,
    caplog: pytest.LogCaptureFixture,
    settings: dict[str, Any],
    said: str,
) -> None:
    (queue,) = queues(name, 1)
    secondary.create_queue(queue, **settings)
    before = lasting(on_the_wire(secondary, queue))
    with pytest.raises(QueueUnsafeError, match=said) as caught:
        await PairingKeeper(options()).start()
    assert caught.value.queue == queue
    assert_for_the_night(caught.value, options())
    assert queue in pair(options(), dry_run=True).found
    caplog.clear()
    paired = await PairingKeeper(options(pairing="best-effort")).start()
    assert paired is not None
    assert paired.count == 3
    assert f"UNSAFE BACKLOG QUEUE: {queue} has {said}" in caplog.text
    assert lasting(on_the_wire(secondary, queue)) == before


def test_a_disabled_queue_is_a_difference(
    options: Callable[..., Options], secondary: NamespaceHandle, name: str
) -> None:
    pair(options())
    secondary.disable(queues(name, 2)[0])
    assert pair(options()).differing == (Difference(queues(name, 2)[0], "status", "Disabled", "Active"),)


def test_names_are_compared_as_the_service_does(
    options: Callable[..., Options], secondary: NamespaceHandle, name: str
) -> None:
    secondary.create_queue(f"{name.upper()}/X-ServiceBus-Transfer/0")
    paired = pair(options())
    assert (paired.found, paired.created) == (queues(name, 0), queues(name, 1, 2))


def test_more_queues_than_fit_a_page_are_all_seen(options: Callable[..., Options], name: str) -> None:
    assert len(pair(options(backlog_queue_count=105)).created) == 105
    again = pair(options(backlog_queue_count=103))
    assert (again.count, len(again.found), again.extra) == (103, 103, queues(name, 103, 104))


def test_a_dry_run_tells_what_it_would_make_and_makes_nothing(
    options: Callable[..., Options], secondary: NamespaceHandle, name: str
) -> None:
    secondary.create_queue(queues(name, 1)[0])
    secondary.create_queue(queues(name, 7)[0])
    paired = pair(options(), dry_run=True)
    assert (paired.found, paired.missing, paired.created) == (queues(name, 1), queues(name, 0, 2), ())
    assert (paired.count, paired.extra) == (1, queues(name, 7))
    assert not on_the_wire(secondary, queues(name, 0)[0])


async def test_drivers_that_pair_at_the_same_time_share_the_work(options: Callable[..., Options], name: str) -> None:
    outcomes = await asyncio.gather(*(pair_async(options(backlog_queue_count=12)) for _ in range(4)))
    assert sorted(queue for paired in outcomes for queue in paired.created) == sorted(queues(name, *range(12)))
    for paired in outcomes:
        assert paired.count == 12
        assert set(paired.found) | set(paired.created) == set(queues(name, *range(12)))
        assert paired.differing == ()


async def test_pair_works_inside_a_running_loop(options: Callable[..., Options], name: str) -> None:
    assert pair(options()).created == queues(name, 0, 1, 2)


def test_a_shared_access_signature_is_as_good_as_a_key(
    options: Callable[..., Options], secondary: NamespaceHandle, name: str
) -> None:
    assert pair(options(with_signature(secondary))).created == queues(name, 0, 1, 2)


def test_queues_are_sorted_by_number() -> None:
    there = ["a/t/10", "a/t/9", "a/t/x", "a/t/1", "b/t/0"]
    assert sort("a/t/", 2, there).extra == ("a/t/9", "a/t/10", "a/t/x")


# What goes wrong


def told(error: BaseException) -> str:
    """All that anybody could read of an error: texts and representations of it and of what travels with it."""
    texts, waiting, seen = ["".join(traceback.format_exception(error))], [error], set[int]()
    while waiting:
        found = waiting.pop()
        if id(found) in seen:
            continue
        seen.add(id(found))
        texts += [str(found), repr(found), repr(vars(found))]
        waiting += [inner for inner in (found.__cause__, found.__context__) if inner is not None]
    return "\n".join(texts)


def assert_tells_no_secret(text: str, connection_string: str) -> None:
    parsed = parse_connection_string(connection_string)
    for secret in (parsed.key, parsed.signature, parsed.signature and parsed.signature.partition("&sig=")[2][:20]):
        assert secret is None or secret not in text
    assert "sig=" not in text.replace("sig=***", "")


def assert_for_the_night(error: PairingError, options: Options) -> None:
    """What happened, where, what the program does next, what the person can do."""
    assert error.namespace == options.secondary.host
    assert options.secondary.host in str(error)
    assert "Nothing was sent." in str(error)
    secret = options.secondary.connection_string
    if secret is not None:
        assert_tells_no_secret(told(error), secret.get_secret_value())


@pytest.mark.parametrize("why", ["refused", "stopped"])
def test_a_secondary_that_cannot_be_reached(
    options: Callable[..., Options], secondary: NamespaceHandle, why: str
) -> None:
    if why == "refused":
        secondary.hang(Refuse())
    else:
        secondary.stop()
    with pytest.raises(SecondaryUnreachableError, match="Cannot connect to host") as caught:
        pair(options())
    assert_for_the_night(caught.value, options())
    assert "best-effort" in str(caught.value)


def test_a_black_hole_is_left_at_the_deadline(options: Callable[..., Options], secondary: NamespaceHandle) -> None:
    with (
        secondary.fault(BlackHole()),
        pytest.raises(SecondaryUnreachableError, match="no answer within 500ms") as caught,
    ):
        pair(options(send_timeout="500ms"))
    assert_for_the_night(caught.value, options())


@pytest.mark.parametrize("pairing", ["required", "best-effort"])
@pytest.mark.parametrize(
    ("credential", "reason"),
    [
        (with_wrong_key, "InvalidSignature"),
        (lambda handle: with_signature(handle, -60), "ExpiredToken"),
    ],
    ids=["wrong key", "expired signature"],
)
async def test_refused_credentials_are_an_error_also_with_best_effort(
    options: Callable[..., Options],
    secondary: NamespaceHandle,
    credential: Callable[[NamespaceHandle], str],
    reason: str,
    pairing: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    refused = options(credential(secondary), pairing=pairing)
    with caplog.at_level(logging.DEBUG), pytest.raises(CredentialsRefusedError, match=reason) as caught:
        await PairingKeeper(refused).start()
    assert_for_the_night(caught.value, refused)
    assert refused.secondary.connection_string is not None
    assert_tells_no_secret(caplog.text, refused.secondary.connection_string.get_secret_value())


@pytest.mark.parametrize("pairing", ["required", "best-effort"])
async def test_a_policy_without_manage_is_an_error_of_its_own(
    options: Callable[..., Options], secondary: NamespaceHandle, name: str, pairing: str
) -> None:
    poor = options(secondary.add_policy(f"{name}-sender", ["Send", "Listen"]), pairing=pairing)
    with pytest.raises(ManageClaimMissingError, match="Manage,EntityRead claims required") as caught:
        await PairingKeeper(poor).start()
    assert_for_the_night(caught.value, poor)
    assert "assume" in str(caught.value)


@pytest.mark.parametrize("pairing", ["required", "best-effort"])
async def test_a_name_that_a_topic_has_cannot_become_a_queue(
    options: Callable[..., Options], secondary: NamespaceHandle, name: str, pairing: str
) -> None:
    (taken,) = queues(name, 1)
    secondary.create_topic(taken)
    with pytest.raises(QueueNotCreatableError, match="a topic may have that name") as caught:
        await PairingKeeper(options(pairing=pairing)).start()
    assert caught.value.queue == taken
    assert taken in str(caught.value)
    assert_for_the_night(caught.value, options())
    secondary.delete(taken)
    paired = pair(options())
    assert (paired.found, paired.created) == (queues(name, 0, 2), (taken,))


def test_with_assume_nobody_is_called(options: Callable[..., Options], secondary: NamespaceHandle, name: str) -> None:
    before = secondary.counters()["management"]
    paired = pair(options(with_wrong_key(secondary), pairing="assume"))
    assert paired == Paired(secondary.endpoint, f"{name}/x-servicebus-transfer/", count=3, assumed=True)
    assert secondary.counters()["management"] == before
    assert not on_the_wire(secondary, queues(name, 0)[0])


# Answers that the broker never gives

Answer = Callable[[web.BaseRequest], Awaitable[web.Response]]
EMPTY_FEED = '<feed xmlns="http://www.w3.org/2005/Atom"><title type="text">Queues</title></feed>'


def refusal(status: int, text: str) -> web.Response:
    body = f"<Error><Code>{status}</Code><Detail>{text}</Detail></Error>"
    return web.Response(status=status, text=body, content_type="application/xml")


@contextlib.asynccontextmanager
async def service(folder: Path, answer: Answer) -> AsyncIterator[Options]:
    """A namespace that answers administration calls in this way."""
    ca_file, context = certificates.make(folder, ["127.0.0.1"])
    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    host = "127.0.0.1:" + str(runner.addresses[0][1])
    secret = f"Endpoint=sb://{host}/;SharedAccessKeyName=n;SharedAccessKey=c2Vjb25kYXJ5;UseDevelopmentEmulator=true"
    side = {"connection_string": secret, "ca_file": str(ca_file)}
    try:
        yield Options(primary=PRIMARY, secondary=side, backlog_queue_count=1, send_timeout="5s")
    finally:
        await runner.cleanup()


async def attempt(folder: Path, listing: web.Response | None, making: web.Response | None) -> PairingError:
    async def answer(request: web.BaseRequest) -> web.Response:
        wanted = listing if request.method == "GET" else making
        return wanted or web.Response(text=EMPTY_FEED, content_type="application/atom+xml")

    async with service(folder, answer) as options:
        with pytest.raises(PairingError) as caught:
            await pair_async(options)
        assert_for_the_night(caught.value, options)
        return caught.value


async def test_too_many_queues_is_not_a_missing_claim_although_both_are_403(tmp_path: Path) -> None:
    text = "SubCode=40300. The maximum number of resources of type Queue has been reached or exceeded. Actual: 10000"
    error = await attempt(tmp_path, None, refusal(403, text))
    assert isinstance(error, QueueNotCreatableError)
    assert error.queue == "alpha/x-servicebus-transfer/0"
    assert "maximum number" in str(error)


async def test_a_claim_missing_for_making_only_is_told_as_such(tmp_path: Path) -> None:
    error = await attempt(tmp_path, None, refusal(403, "Manage,EntityWrite claims required for this operation."))
    assert isinstance(error, ManageClaimMissingError)


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_service_that_cannot_just_now_is_unreachable(tmp_path: Path, status: int) -> None:
    for listing, making in ((refusal(status, "busy, try later"), None), (None, refusal(status, "busy, try later"))):
        error = await attempt(tmp_path, listing, making)
        assert isinstance(error, SecondaryUnreachableError)
        assert "busy, try later" in str(error)


async def test_properties_that_the_service_does_not_take_leave_a_queue_uncreatable(tmp_path: Path) -> None:
    error = await attempt(tmp_path, None, refusal(400, "SubCode=40000. MaxSizeInMegabytes is not supported here."))
    assert isinstance(error, QueueNotCreatableError)


async def test_something_that_is_no_service_bus_at_all_is_unreachable(tmp_path: Path) -> None:
    error = await attempt(tmp_path, web.Response(text="<html>Please log in", content_type="text/html"), None)
    assert isinstance(error, SecondaryUnreachableError)


async def test_a_queue_that_another_driver_is_making_right_now_is_waited_for(tmp_path: Path) -> None:
    puts: list[bytes] = []

    async def answer(request: web.BaseRequest) -> web.Response:
        if request.method == "GET":
            return web.Response(text=EMPTY_FEED, content_type="application/atom+xml")
        puts.append(await request.read())
        if len(puts) < 3:
            return refusal(409, "SubCode=40901. Another conflicting operation is in progress.")
        body = puts[-1].decode()
        return web.Response(status=201, text=body, content_type="application/atom+xml")

    async with service(tmp_path, answer) as options:
        paired = await pair_async(options)
    assert paired.created == queues("alpha", 0)
    assert len(puts) == 3
    assert f">{FOREVER}<".encode() in puts[0]


# Best effort


class SteppedClock:
    """Time passes when the test says so, and only while somebody waits for it."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.sleeps: asyncio.Queue[tuple[float, asyncio.Event]] = asyncio.Queue()

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.Event()
        self.sleeps.put_nowait((seconds, woken))
        await woken.wait()

    async def step(self) -> float:
        """Wait until somebody sleeps, and let that time pass."""
        async with asyncio.timeout(20):
            seconds, woken = await self.sleeps.get()
        self.time += seconds
        woken.set()
        return seconds


async def test_with_best_effort_an_unreachable_secondary_is_a_loud_warning_and_tried_again_each_minute(
    options: Callable[..., Options], secondary: NamespaceHandle, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock, outcomes = SteppedClock(), list[Paired]()
    keeper = PairingKeeper(options(pairing="best-effort"), clock=clock, on_paired=outcomes.append)
    fault = secondary.hang(Refuse())
    with caplog.at_level(logging.WARNING, "spark_sb_sink"):
        assert await keeper.start() is None
        assert caplog.text.count("NO BACKLOG YET") == 1
        assert [await clock.step() for _ in range(3)] == [TRY_AGAIN] * 3
        async with asyncio.timeout(20):
            while clock.sleeps.empty():
                await asyncio.sleep(0)
        assert caplog.text.count("NO BACKLOG YET") == 4
        assert isinstance(keeper.last_error, SecondaryUnreachableError)
        assert keeper.paired is None
        keeper.check()
        secondary.undo(fault)
        await clock.step()
        async with asyncio.timeout(20):
            paired = await keeper.wait()
    assert paired.created == queues(name, 0, 1, 2)
    assert outcomes == [paired]
    settled: tuple[object, object] = (keeper.paired, keeper.last_error)
    assert settled == (paired, None)
    assert clock.sleeps.empty()
    assert secondary.endpoint in caplog.text
    assert_tells_no_secret(caplog.text, secondary.connection_string)
    await keeper.stop()


async def test_the_time_of_a_try_counts_towards_the_minute(
    options: Callable[..., Options], secondary: NamespaceHandle
) -> None:
    clock = SteppedClock()
    keeper = PairingKeeper(options(pairing="best-effort", send_timeout="500ms"), clock=clock)
    with secondary.fault(BlackHole()):
        trying = asyncio.create_task(keeper.start())
        await asyncio.sleep(0)
        clock.time += 12.0
        assert await trying is None
        assert await clock.step() == TRY_AGAIN - 12.0
        await keeper.stop()


async def test_a_credential_refused_later_ends_the_tries_with_an_error(
    options: Callable[..., Options], secondary: NamespaceHandle, caplog: pytest.LogCaptureFixture
) -> None:
    clock, wrong = SteppedClock(), with_wrong_key(secondary)
    keeper = PairingKeeper(options(wrong, pairing="best-effort"), clock=clock)
    with secondary.fault(Refuse()):
        assert await keeper.start() is None
    await clock.step()
    async with asyncio.timeout(20):
        with pytest.raises(CredentialsRefusedError):
            await keeper.wait()
    with pytest.raises(CredentialsRefusedError):
        keeper.check()
    assert "Pairing is not tried again" in caplog.text
    assert_tells_no_secret(caplog.text, wrong)
    await keeper.stop()


async def test_a_stopped_keeper_tries_no_more(options: Callable[..., Options], secondary: NamespaceHandle) -> None:
    keeper = PairingKeeper(options(pairing="best-effort"), clock=SteppedClock())
    with secondary.fault(Refuse()):
        assert await keeper.start() is None
        waiting = asyncio.create_task(keeper.wait())
        await asyncio.sleep(0)
        await keeper.stop()
        with pytest.raises(ClosedError):
            await waiting
    before = secondary.counters()["management"]
    with pytest.raises(ClosedError):
        await keeper.wait()
    keeper.check()
    assert secondary.counters()["management"] == before


async def test_a_required_pairing_is_not_tried_again(
    options: Callable[..., Options], secondary: NamespaceHandle
) -> None:
    clock = SteppedClock()
    with secondary.fault(Refuse()), pytest.raises(SecondaryUnreachableError):
        await PairingKeeper(options(), clock=clock).start()
    assert clock.sleeps.empty()
