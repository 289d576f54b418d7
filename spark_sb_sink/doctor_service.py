"""The doctor at the service: are both namespaces there, do they take who we are, and do clocks and limits fit.

Sends nothing and makes nothing: links are attached and detached, queues are looked at. Every call has a deadline.
"""

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

import aiohttp
from azure.servicebus.aio import ServiceBusClient

from spark_sb_sink.bounded import CallFailedError, within
from spark_sb_sink.credentials import CLOSE_WITHIN, Access
from spark_sb_sink.entity_names import BACKLOG_FOLDER
from spark_sb_sink.errors import CredentialsRefusedError, ManageClaimMissingError, PairingError
from spark_sb_sink.faults import Kind
from spark_sb_sink.findings import Finding, fail, ok, warn
from spark_sb_sink.namespaces import NamespaceOptions
from spark_sb_sink.options import Options, Pairing
from spark_sb_sink.pairing import pair_async
from spark_sb_sink.sizes import format_size
from spark_sb_sink.wire import RawReceiver, RawSender

SKEW_OK, SKEW_BAD = 5.0, 300.0
"""Seconds. The header has whole ones; tokens of an hour bear minutes; times to live and schedules bear nothing."""
BACKLOG = "backlog"
NOBODY = "spark-sb-sink-doctor"
"""An entity that nobody has: an answer that it is not there is an answer."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a link told of its entity."""

    largest: int | None = None
    """Bytes of a message that it takes."""


async def clock(side: str, options: NamespaceOptions, deadline: float, now: Callable[[], float] = time.time) -> Finding:
    """This machine's clock against the Date header of the administration endpoint."""
    check = f"clock against {side}"
    try:
        trust: ssl.SSLContext | bool = ssl.create_default_context(cafile=options.ca_file) if options.ca_file else True
        async with asyncio.timeout(deadline), aiohttp.ClientSession() as session:
            before = now()
            async with session.get(f"https://{options.host}/", ssl=trust, allow_redirects=False) as answer:
                here, told = (before + now()) / 2, answer.headers.get("Date")
        if told is None:
            return warn(check, f"{options.host} tells no time", "compare the clock with another machine's")
        skew = here - (parsedate_to_datetime(told).timestamp() + 0.5)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        cure = "let HTTPS (port 443) through, or set ca_file where the certificate is one of your own"
        return warn(check, f"https://{options.host}/ does not answer ({type(error).__name__})", cure)
    which = f"{abs(skew):.0f} s {'fast' if skew > 0 else 'slow'}"
    if abs(skew) <= SKEW_OK:
        return ok(check, f"within {SKEW_OK:.0f} s")
    if abs(skew) <= SKEW_BAD:
        return warn(check, f"this clock is {which}", "let NTP set it: times to live and schedules are off by as much")
    return fail(check, f"this clock is {which}", "let NTP set it: tokens are refused as expired, or are good too long")


async def primary(options: Options, entities: Sequence[str]) -> tuple[list[Finding], Seen]:
    """Reachable, and each entity takes us with the Send claim."""
    check, findings, seen = "primary", list[Finding](), Seen()
    async with _client(options.primary) as client:
        for entity in entities or (NOBODY,):
            try:
                sender = RawSender(client, entity, send_timeout=options.send_timeout)
                largest = await _attached(sender, options.send_timeout)
                seen = Seen(max(largest, seen.largest or 0))  # the backlog has to take what the largest of them takes
                findings.append(ok(f"Send on {entity}", f"{options.primary.host} takes us"))
            except CallFailedError as failed:
                findings.append(_refused(options.primary.host, entity, "Send", failed, check))
    if not entities and findings[0].check == f"Send on {NOBODY}":
        findings = [ok(check, f"{options.primary.host} answers")]
    return findings, seen


async def secondary(options: Options) -> tuple[list[Finding], Seen]:
    """Reachable; the backlog queues as they should be; Send for the sink, Listen for the syphon."""
    findings, queue, seen = [await _queues(options)], f"{options.backlog_path}0", Seen()
    host = options.secondary.host
    async with _client(options.secondary) as client:
        try:
            sender = RawSender(client, queue, send_timeout=options.send_timeout)
            seen = Seen(await _attached(sender, options.send_timeout))
            findings.append(ok("Send on backlog", f"{host} takes us"))
        except CallFailedError as failed:
            findings.append(_refused(host, queue, "Send", failed, "secondary"))
        receiver = RawReceiver(client, queue, timeout=options.send_timeout)
        try:
            await within(options.send_timeout, receiver.open())
            await within(options.send_timeout, receiver.peek(0, 1))
            findings.append(ok("Listen on backlog", f"{host} lets the syphon receive"))
        except CallFailedError as failed:
            findings.append(_refused(host, queue, "Listen", failed, "secondary"))
        finally:
            await receiver.close()
    return list(dict.fromkeys(findings)), seen


async def _queues(options: Options) -> Finding:
    check, host = "backlog queues", options.secondary.host
    assumed = options.pairing is Pairing.ASSUME
    try:
        paired = await pair_async(options.model_copy(update={"pairing": Pairing.REQUIRED}), dry_run=True)
    except ManageClaimMissingError:
        if assumed:
            return ok(check, 'not looked at without the Manage claim, and assumed to be there (pairing = "assume")')
        cure = (
            'grant Manage (role Azure Service Bus Data Owner), or make the queues yourself and set pairing = "assume"'
        )
        return fail(check, f"the credential for {host} lacks the Manage claim", cure)
    except CredentialsRefusedError as error:
        return fail(check, str(error).split(" Nothing was sent.")[0], "check the key or identity of secondary")
    except PairingError as error:
        return fail(check, str(error).split(" Nothing was sent.")[0], "check name, network, firewall and ca_file")
    if paired.missing:
        found = f"{len(paired.missing)} of {options.backlog_queue_count} are missing in {host}"
        if assumed:
            return fail(check, found, "make them: pairing is assume, so nobody else will")
        return warn(check, found, "spark-sb-sink pair makes them, or else the first start does")
    if paired.differing:
        cure = "spark-sb-sink pair --dry-run lists it; they are used as they are"
        return warn(check, f"{paired.differing[0]} ({len(paired.differing)} differences in all)", cure)
    return ok(check, f"{paired.count} in {host}, as expected")


def limits(options: Options, home: Seen, away: Seen) -> Finding:
    """Whether the backlog takes what the primary takes."""
    check, room = "limits", f"{options.backlog_queue_count} backlog queues hold {options.backlog_queue_count * 5} GB"
    if home.largest is None or away.largest is None:
        return ok(check, f"{room}; message sizes are known once a link to each side is attached")
    if away.largest < home.largest:
        where = "goes to overflow" if options.state is not None else "fails the batch, as the option state is not set"
        return warn(
            check,
            f"the primary takes messages up to {format_size(home.largest)}, the backlog {format_size(away.largest)}",
            f"use the same tier on both sides; what is larger {where} during an outage",
        )
    return ok(check, f"messages up to {format_size(home.largest)} on both sides, less the envelope; {room}")


def _refused(host: str, entity: str, claim: str, failed: CallFailedError, check: str) -> Finding:
    fault = failed.fault
    if fault.kind is Kind.MISCONFIGURED and entity == NOBODY:
        return fail(check, f"{host} refuses us: {failed.told}", "correct the key or identity")
    if fault.kind is Kind.MISCONFIGURED:
        cure = f"grant {claim} on {entity}, or correct the key or identity"
        return fail(f"{claim} on {_short(entity)}", f"{host} refuses us: {failed.told}", cure)
    if fault.reason == "entity gone":
        if entity == NOBODY:
            return ok(check, f"{host} answers")
        if _short(entity) == BACKLOG:  # whether that is bad is said of the queues
            found = f"not known while there is no {entity}"
            return warn(f"{claim} on {BACKLOG}", found, "make the queues, and look again")
        return fail(f"{claim} on {entity}", f"there is no {entity} in {host}", "make it, or correct its name")
    return fail(check, f"{host} cannot be reached: {failed.told}", "check name, network and firewall (AMQP, port 5671)")


def _short(entity: str) -> str:
    return BACKLOG if f"/{BACKLOG_FOLDER}/" in entity else entity


async def _attached(sender: RawSender, deadline: float) -> int:
    """Attach and detach; how large a message may be."""
    try:
        await within(deadline, sender.open())
        return sender.limits.max_message_size
    finally:
        await sender.close()


@contextlib.asynccontextmanager
async def _client(options: NamespaceOptions) -> AsyncIterator[ServiceBusClient]:
    async with Access(options) as access:
        client = access.service_bus_client()
        try:
            yield client
        finally:
            with contextlib.suppress(Exception):  # what a broken connection says about being closed helps nobody
                async with asyncio.timeout(CLOSE_WITHIN):
                    await client.close()
