"""The doctor at the service: does the primary take who we are, and do clocks and limits fit.

Sends nothing and makes nothing: links are attached and detached. Every call has a deadline. Knows no backlog.
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
from spark_sb_sink.faults import Kind
from spark_sb_sink.findings import Finding, fail, ok, warn
from spark_sb_sink.namespaces import NamespaceOptions
from spark_sb_sink.options import Options
from spark_sb_sink.sizes import format_size
from spark_sb_sink.wire import RawSender

SKEW_OK, SKEW_BAD = 5.0, 300.0
"""Seconds. The header has whole ones; tokens of an hour bear minutes; times to live and schedules bear nothing."""
NOBODY = "spark-sb-sink-doctor"
"""An entity that nobody has: an answer that it is not there is an answer."""
UNREACHABLE = "check name, network and firewall (AMQP, port 5671)"


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
    async with client_of(options.primary) as client:
        for entity in entities or (NOBODY,):
            try:
                sender = RawSender(client, entity, send_timeout=options.send_timeout)
                largest = await attached(sender, options.send_timeout)
                seen = Seen(max(largest, seen.largest or 0))  # the backlog has to take what the largest of them takes
                findings.append(ok(f"Send on {entity}", f"{options.primary.host} takes us"))
            except CallFailedError as failed:
                findings.append(_refused(options.primary.host, entity, failed, check))
    if not entities and findings[0].check == f"Send on {NOBODY}":
        findings = [ok(check, f"{options.primary.host} answers")]
    return findings, seen


def limits(options: Options, home: Seen, away: Seen) -> Finding:
    """Whether the backlog takes what the primary takes."""
    check, room = "limits", f"{options.backlog_queue_count} backlog queues hold {options.backlog_queue_count * 5} GB"
    unknown = [
        told
        for seen, told in (
            (home, f"the primary ({options.primary.host})"),
            (away, f"the backlog ({options.secondary.host})"),
        )
        if seen.largest is None
    ]
    if home.largest is None or away.largest is None:
        found = f"{room}; how large a message may be is not known of {' and '.join(unknown)}"
        return warn(check, found, "attach a link to each side: name an entity with --entity, make the backlog queues")
    if away.largest < home.largest:
        where = "goes to overflow" if options.state is not None else "fails the batch, as the option state is not set"
        return warn(
            check,
            f"the primary takes messages up to {format_size(home.largest)}, the backlog {format_size(away.largest)}",
            f"use the same tier on both sides; what is larger {where} during an outage",
        )
    return ok(check, f"messages up to {format_size(home.largest)} on both sides, less the envelope; {room}")


def _refused(host: str, entity: str, failed: CallFailedError, check: str) -> Finding:
    fault, send = failed.fault, f"Send on {entity}"
    if fault.kind is Kind.MISCONFIGURED and entity == NOBODY:
        return fail(check, f"{host} refuses us: {failed.told}", "correct the key or identity")
    if fault.kind is Kind.MISCONFIGURED:
        cure = f"grant Send on {entity}, or correct the key or identity"
        return fail(send, f"{host} refuses us: {failed.told}", cure)
    if fault.reason == "entity gone":
        if entity == NOBODY:
            return ok(check, f"{host} answers")
        return fail(send, f"there is no {entity} in {host}", "make it, or correct its name")
    if fault.reason == "disabled":
        return fail(send, f"{entity} in {host} is disabled", "enable it: until then its messages go to the backlog")
    if fault.kind is Kind.THROTTLED:
        return warn(check, f"{host} is busy: {failed.told}", "look again in a minute")
    return fail(check, f"{host} cannot be reached: {failed.told}", UNREACHABLE)


async def attached(sender: RawSender, deadline: float) -> int:
    """Attach and detach; how large a message may be."""
    try:
        await within(deadline, sender.open())
        return sender.limits.max_message_size
    finally:
        await sender.close()


@contextlib.asynccontextmanager
async def client_of(options: NamespaceOptions) -> AsyncIterator[ServiceBusClient]:
    async with Access(options) as access:
        client = access.service_bus_client()
        try:
            yield client
        finally:
            with contextlib.suppress(Exception):  # what a broken connection says about being closed helps nobody
                async with asyncio.timeout(CLOSE_WITHIN):
                    await client.close()
