"""The doctor at the primary's entities, where the claim allows to look: duplicate detection, its window, partitions."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

from spark_sb_sink.bounded import CallFailedError, listed
from spark_sb_sink.credentials import CLOSE_WITHIN, Access
from spark_sb_sink.durations import spoken_duration
from spark_sb_sink.entity_names import BACKLOG_FOLDER
from spark_sb_sink.faults import Kind
from spark_sb_sink.findings import Finding, fail, ok, warn
from spark_sb_sink.options import Options

SHOWN = 20
"""Entities that are told one by one where none was named."""
SHORT_WINDOW = 3600.0
"""Seconds. Outages that last longer than an hour do happen."""


async def entities(options: Options, named: Sequence[str]) -> tuple[list[Finding], list[str]]:
    """Findings, and the names of all entities that there are as far as they may be seen."""
    try:
        found = await _all(options)
    except CallFailedError as failed:
        fault, host = failed.fault, options.primary.host
        if fault.kind is Kind.MISCONFIGURED and not fault.claim_missing:
            return [fail("primary", f"{host} refuses us: {failed.told}", "correct the key or identity of primary")], []
        return [_unseen(failed, host)], []
    wanted = {name.lower() for name in named}
    shown = [each for each in found if each.name.lower() in wanted] if wanted else found[:SHOWN]
    findings = [finding for each in shown for finding in _about(each, options)]
    if not wanted and len(found) > SHOWN:
        findings.append(ok("duplicate detection", f"{len(found) - SHOWN} more entities; name them with --entity"))
    return findings, [each.name for each in found]


def _unseen(failed: CallFailedError, host: str) -> Finding:
    """What to do depends on why: nobody who manages the primary can mend a network."""
    check, why = "duplicate detection", f"not known: {failed.told}"
    if failed.fault.kind is Kind.MISCONFIGURED:
        cure = "ask who manages the primary; the sink itself needs no more than Send there"
        return warn(check, "not known: looking takes the Manage claim on the primary", cure)
    if failed.fault.kind is Kind.THROTTLED:
        return warn(check, why, "look again in a minute")
    return warn(check, why, f"check name, network, proxy and ca_file: HTTPS (port 443) to {host} is what looking takes")


async def _all(options: Options) -> list[Any]:
    """Queues and topics of the primary, without backlog queues of somebody else's pair."""
    async with Access(options.primary) as access:
        client = access.administration_client()
        try:
            queues = await listed(options.send_timeout, client.list_queues())
            topics = await listed(options.send_timeout, client.list_topics())
        finally:
            with contextlib.suppress(Exception):  # what a broken connection says about being closed helps nobody
                async with asyncio.timeout(CLOSE_WITHIN):
                    await client.close()
    return [each for each in (*queues, *topics) if f"/{BACKLOG_FOLDER}/" not in each.name.lower()]


def _about(entity: Any, options: Options) -> list[Finding]:
    check, found = f"duplicates on {entity.name}", list[Finding]()
    if not entity.requires_duplicate_detection:
        cure = "duplicate detection can be set only when an entity is made; without it, consumers must bear duplicates"
        found.append(warn(check, "no duplicate detection", cure))
    else:
        window = entity.duplicate_detection_history_time_window.total_seconds()
        told = f"duplicate detection with a window of {spoken_duration(window)}"
        if window < SHORT_WINDOW:
            cure = "an outage longer than that lets duplicates through; a window may be up to 7 days"
            found.append(warn(check, told, cure))
        else:
            found.append(ok(check, f"{told}; an outage longer than that lets duplicates through"))
    if getattr(entity, "enable_partitioning", False) and entity.name not in options.partitioned:
        cure = f"add {entity.name} to the option partitioned, or batches with several keys are refused"
        found.append(warn(f"partitions of {entity.name}", "it is partitioned, and the options do not say so", cure))
    return found
