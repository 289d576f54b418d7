"""The doctor at the secondary: each backlog queue is there, enabled, and takes the sink's links and the syphon's.

Looks by administration where the claim allows it, and by a link to each queue in any case. Takes and makes nothing.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from azure.servicebus.aio import ServiceBusClient

from spark_sb_sink import backlog_queues
from spark_sb_sink.bounded import CallFailedError, within
from spark_sb_sink.doctor_service import UNREACHABLE, Seen, attached, client_of
from spark_sb_sink.errors import CredentialsRefusedError, ManageClaimMissingError, PairingError
from spark_sb_sink.faults import Kind
from spark_sb_sink.findings import Finding, fail, ok, warn
from spark_sb_sink.options import Options, Pairing
from spark_sb_sink.pairing import pair_async
from spark_sb_sink.wire import RawReceiver, RawSender

AT_ONCE = 8
"""Queues that are tried side by side; each takes a connection or two."""
QUEUES = "backlog queues"
CLAIMS = {"Send": "takes us", "Listen": "lets the syphon receive"}


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of a link to one queue. `failed` is None where it was attached."""

    queue: str
    claim: str
    failed: CallFailedError | None = None
    largest: int | None = None

    @property
    def missing(self) -> bool:
        return self.failed is not None and self.failed.fault.reason == "entity gone"

    @property
    def answered(self) -> bool:
        """Whether the namespace had an answer, be it a refusal."""
        if self.failed is None or self.missing:
            return True
        fault = self.failed.fault
        return fault.kind in (Kind.MISCONFIGURED, Kind.THROTTLED) or fault.reason == "disabled"


async def secondary(options: Options) -> tuple[list[Finding], Seen]:
    """Reachable; the backlog queues as they should be; Send for the sink, Listen for the syphon."""
    looked = await _looked(options)
    tried = await _tried(options)
    missing = [name for name in _names(options) if any(each.missing for each in tried if each.queue == name)]
    findings = [looked or _assumed(options, tried, missing)]
    for claim in CLAIMS:
        findings += _told(options, claim, [each for each in tried if each.claim == claim])
    # The sink may pick any of them, so the smallest of their limits is what the backlog takes.
    sizes = [each.largest for each in tried if each.largest is not None]
    return list(dict.fromkeys(findings)), Seen(min(sizes, default=None))


async def _looked(options: Options) -> Finding | None:
    """By administration; None where the claim does not allow it and nobody needs it."""
    host = options.secondary.host
    assumed = options.pairing is Pairing.ASSUME
    try:
        paired = await pair_async(options.model_copy(update={"pairing": Pairing.REQUIRED}), dry_run=True)
    except ManageClaimMissingError:
        if assumed:
            return None
        cure = (
            'grant Manage (role Azure Service Bus Data Owner), or make the queues yourself and set pairing = "assume"'
        )
        return fail(QUEUES, f"the credential for {host} lacks the Manage claim", cure)
    except CredentialsRefusedError as error:
        return fail(QUEUES, str(error).split(" Nothing was sent.")[0], "check the key or identity of secondary")
    except PairingError as error:
        return fail(QUEUES, str(error).split(" Nothing was sent.")[0], "check name, network, firewall and ca_file")
    if paired.missing:
        found = _is_missing(paired.missing, options)
        if assumed:
            return fail(QUEUES, found, "make them: pairing is assume, so nobody else will")
        return warn(QUEUES, found, "spark-sb-sink pair makes them, or else the first start does")
    disabled = [each for each in paired.differing if each.property == "status"]
    if disabled:
        found = f"{backlog_queues.some([each.queue for each in disabled])} in {host}: status {disabled[0].got}"
        return fail(QUEUES, found, "enable them: what is not Active takes no messages, or gives none")
    if paired.differing:
        cure = "spark-sb-sink pair --dry-run lists it; they are used as they are"
        return warn(QUEUES, f"{paired.differing[0]} ({len(paired.differing)} differences in all)", cure)
    return ok(QUEUES, f"{paired.count} in {host}, as expected")


def _assumed(options: Options, tried: Sequence[Tried], missing: Sequence[str]) -> Finding:
    """What the links tell of queues that nobody may look at."""
    if missing:
        return fail(QUEUES, _is_missing(missing, options), "make them: pairing is assume, so nobody else will")
    if {each.queue for each in tried if each.failed is None} >= set(_names(options)):
        told = f"{options.backlog_queue_count} in {options.secondary.host}, as links to them tell"
        return ok(QUEUES, f"{told}; their settings are not looked at without the Manage claim")
    return warn(
        QUEUES,
        'not looked at without the Manage claim, and assumed to be there (pairing = "assume")',
        "mend what is wrong with the links to them, and look again",
    )


async def _tried(options: Options) -> list[Tried]:
    """A link of each kind to every queue. A namespace that is silent for the first of them is not tried again."""
    turns, tried = asyncio.Semaphore(AT_ONCE), list[Tried]()

    async def one(client: ServiceBusClient, queue: str) -> None:
        async with turns:
            for claim in CLAIMS:
                if tried and not any(each.answered for each in tried):
                    return
                tried.append(await _try(client, queue, claim, options.send_timeout))

    async with client_of(options.secondary) as client:
        await asyncio.gather(*(one(client, queue) for queue in _names(options)))
    order = {name: at for at, name in enumerate(_names(options))}
    return sorted(tried, key=lambda each: order[each.queue])


async def _try(client: ServiceBusClient, queue: str, claim: str, deadline: float) -> Tried:
    try:
        if claim == "Send":
            return Tried(
                queue, claim, largest=await attached(RawSender(client, queue, send_timeout=deadline), deadline)
            )
        receiver = RawReceiver(client, queue, timeout=deadline)
        try:
            await within(deadline, receiver.open())
            await within(deadline, receiver.peek(0, 1))
        finally:
            await receiver.close()
        return Tried(queue, claim)
    except CallFailedError as failed:
        return Tried(queue, claim, failed)


def _told(options: Options, claim: str, tried: Sequence[Tried]) -> Iterator[Finding]:
    """One finding where all is well, else one for each thing that is wrong, with the queues that it is wrong with."""
    check, host = f"{claim} on backlog", options.secondary.host
    wrong: dict[str, list[tuple[Tried, CallFailedError]]] = {}
    for each in tried:
        if each.failed is not None:
            wrong.setdefault(_cause(each.failed), []).append((each, each.failed))
    if not wrong and tried:
        yield ok(check, f"{host} {CLAIMS[claim]}")
    for cause, found in wrong.items():
        which, told = backlog_queues.some([each.queue for each, _ in found]), found[0][1].told
        if cause == "missing":  # whether that is bad is said of the queues
            yield warn(check, f"not known while there is no {which}", "make the queues, and look again")
        elif cause == "disabled":
            yield fail(check, f"{which} in {host}: disabled", "enable it")
        elif cause == "refused":
            everywhere = len(found) == len(tried)
            where = f"the queues under {options.backlog_path}" if everywhere else which
            some = "" if everywhere else f" at {which}"
            cure = f"grant {claim} on {where}, or correct the key or identity"
            yield fail(check, f"{host} refuses us{some}: {told}", cure)
        elif cause == "busy":
            yield warn(check, f"{host} is busy: {told}", "look again in a minute")
        elif any(each.answered for each in tried):
            yield fail(check, f"{which} in {host}: {told}", "look again, and ask who manages the secondary if it stays")
        else:
            yield fail("secondary", f"{host} cannot be reached: {told}", UNREACHABLE)


def _cause(failed: CallFailedError) -> str:
    fault = failed.fault
    if fault.reason == "entity gone":
        return "missing"
    if fault.kind is Kind.MISCONFIGURED:
        return "refused"
    if fault.kind is Kind.THROTTLED:
        return "busy"
    return "disabled" if fault.reason == "disabled" else "silent"


def _names(options: Options) -> tuple[str, ...]:
    return backlog_queues.names(options.backlog_path, options.backlog_queue_count)


def _is_missing(missing: Sequence[str], options: Options) -> str:
    verb = "is" if len(missing) == 1 else "are"
    return f"{backlog_queues.some(missing)} {verb} missing in {options.secondary.host}"
