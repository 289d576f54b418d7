"""Finds the backlog queues in the secondary namespace and makes those that are missing, before the first send.

One try, each call under a deadline; it ends with all queues there or with one of the pairing errors. Whether such an
error stops the pipeline, and when it is tried again, is not known here: that is `pairing_keeper`.
"""

import asyncio
import contextlib
import html
import logging
import re
import threading
from collections.abc import Awaitable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TypeVar

from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.management import QueueProperties

from spark_sb_sink import backlog_queues
from spark_sb_sink.backlog_queues import AS_MADE, UNSAFE, Difference
from spark_sb_sink.credentials import CLOSE_WITHIN, Access
from spark_sb_sink.durations import format_duration
from spark_sb_sink.errors import (
    CredentialsRefusedError,
    ManageClaimMissingError,
    PairingError,
    QueueNotCreatableError,
    QueueUnsafeError,
    SecondaryUnreachableError,
)
from spark_sb_sink.faults import Fault, Kind, Phase, sort, symptom_of
from spark_sb_sink.options import Options, Pairing

AT_ONCE = 4
"""Queues made at the same time. Each call costs ten credits of the thousand that a Standard namespace has a second."""
CONFLICT_WAITS = (0.0, 0.25, 0.5, 1.0)
"""Seconds until a queue that is neither there nor can be made is looked for again: another driver may be at it."""

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
_DETAIL = re.compile(r"<Detail>(.*?)</Detail>", re.DOTALL)
_QUOTA = re.compile(r"\bquota\b|\bmaximum number\b|\blimit\b.{0,40}\breached\b", re.I)


@dataclass(frozen=True, slots=True)
class Paired:
    """The backlog queues of a pair, by name and in the order of their numbers."""

    namespace: str
    path: str
    count: int
    """Backlog queues that can be used."""
    created: tuple[str, ...] = ()
    found: tuple[str, ...] = ()
    """There before, or made by another driver at the same time."""
    missing: tuple[str, ...] = ()
    """What a dry run would have made."""
    extra: tuple[str, ...] = ()
    """Others under the same path: left alone, never used."""
    differing: tuple[Difference, ...] = ()
    """How queues that were found are not as we would have made them; they are used as they are."""
    assumed: bool = False
    """Nobody has looked."""


def pair(options: Options, *, dry_run: bool = False) -> Paired:
    """`pair_async` for those who are not in an event loop, or are in one and cannot wait in it: runs in a thread.

    Inside a running loop it holds that loop up, for as long as the deadlines of its calls allow.
    """
    outcome: Future[Paired] = Future()

    def run() -> None:
        # Not asyncio.run: it waits without limit for the loop's threads, and a name lookup can hang in one.
        loop = asyncio.new_event_loop()
        try:
            outcome.set_result(loop.run_until_complete(pair_async(options, dry_run=dry_run)))
        except BaseException as error:  # noqa: BLE001 - handed to the caller, whatever it is
            outcome.set_exception(error)
        finally:
            loop.close()

    threading.Thread(target=run, name="spark-sb-sink-pairing", daemon=True).start()
    return outcome.result()


async def pair_async(options: Options, *, dry_run: bool = False) -> Paired:
    """Find or make the backlog queues 0 … backlog_queue_count-1; a dry run only looks.

    Raises `SecondaryUnreachableError`, `CredentialsRefusedError`, `ManageClaimMissingError`,
    `QueueNotCreatableError`, and with pairing = "required" `QueueUnsafeError`. With pairing = "assume" it calls nobody.
    """
    paired = Paired(options.secondary.host, options.backlog_path, options.backlog_queue_count, assumed=True)
    if options.pairing is Pairing.ASSUME:
        return paired
    async with Access(options.secondary) as access:
        client = access.administration_client()
        try:
            paired = await _Attempt(options, client).run(replace(paired, count=0, assumed=False), dry_run)
        finally:
            await _closed(client)
    _tell(paired)
    unsafe = next((difference for difference in paired.differing if difference.property in UNSAFE), None)
    if unsafe is not None and options.pairing is Pairing.REQUIRED and not dry_run:
        detail = f"it has {unsafe.property} {unsafe.got}, so {UNSAFE[unsafe.property]}"
        raise QueueUnsafeError(namespace=paired.namespace, queue=unsafe.queue, detail=detail)
    return paired


class _Attempt:
    """One try, with the client for it."""

    def __init__(self, options: Options, client: ServiceBusAdministrationClient) -> None:
        self._options = options
        self._client = client
        self._namespace = options.secondary.host
        self._created: set[str] = set()

    async def run(self, paired: Paired, dry_run: bool) -> Paired:
        count = self._options.backlog_queue_count
        for wait in (*CONFLICT_WAITS, None):
            there = await self._list()
            seen = backlog_queues.sort(paired.path, count, there)
            missing = [name for name in seen.missing if name not in self._created]  # a listing may lag behind
            refused = {} if dry_run else await self._make(missing)
            if not refused:
                break
            if wait is None:
                raise self._taken(*next(iter(refused.items())))
            # Made by another driver since we looked, or being made right now, or no queue at all: look again.
            await asyncio.sleep(wait)
        found = tuple(name for name in seen.found if name not in self._created)
        return replace(
            paired,
            count=len(found) + len(self._created),
            created=tuple(name for name in backlog_queues.names(paired.path, count) if name in self._created),
            found=found,
            missing=seen.missing if dry_run else (),
            extra=seen.extra,
            differing=tuple(d for name in found for d in backlog_queues.differences(name, there[name.lower()])),
        )

    async def _list(self) -> dict[str, QueueProperties]:
        """All queues of the namespace by name in small letters; the service has no way to ask for a path only."""
        found: dict[str, QueueProperties] = {}
        pages = self._client.list_queues().by_page()
        try:
            while (page := await self._call(anext(pages, None))) is not None:
                found.update({queue.name.lower(): queue async for queue in page})
        except _FailedError as failed:
            raise self._error(failed.fault) from None
        return found

    async def _make(self, names: Iterable[str]) -> dict[str, str]:
        """Make queues, a few at a time, until one fails. Returns those whose name is taken, with the refusal."""
        waiting, taken = iter(names), dict[str, str]()

        async def work() -> None:
            for name in waiting:  # shared by all that work here
                try:
                    await self._call(self._client.create_queue(name, **AS_MADE))
                    self._created.add(name)
                except _FailedError as failed:
                    if failed.fault.status_code != 409:
                        raise self._error(failed.fault, name) from None
                    taken[name] = failed.fault.text

        workers = [asyncio.create_task(work()) for _ in range(AT_ONCE)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        return taken

    async def _call(self, awaitable: Awaitable[T]) -> T:
        """The answer within the deadline, or `_FailedError`."""
        deadline = self._options.send_timeout
        try:
            async with asyncio.timeout(deadline):
                return await awaitable
        except Exception as error:  # noqa: BLE001 - on a document that it cannot read, the SDK fails in any way
            fault = sort(symptom_of(error, during=Phase.OPEN))
            if isinstance(error, TimeoutError):
                fault = replace(fault, text=f"no answer within {format_duration(deadline)}")
        # Outside of the handler, so that the SDK's exception, which knows the request, does not travel along.
        raise _FailedError(fault)

    def _error(self, fault: Fault, queue: str | None = None) -> PairingError:
        """What a failed call means for pairing."""
        status, detail = fault.status_code or 0, _detail(fault)
        # The service has 403 for a missing claim and for too many queues.
        full = queue is not None and status == 403 and _QUOTA.search(fault.text) is not None
        if fault.kind is Kind.MISCONFIGURED and not full:
            refused = ManageClaimMissingError if fault.claim_missing else CredentialsRefusedError
            return refused(namespace=self._namespace, detail=detail)
        if queue is not None and 400 <= status < 500 and status not in (408, 410, 429):
            return QueueNotCreatableError(namespace=self._namespace, queue=queue, detail=detail)
        return SecondaryUnreachableError(namespace=self._namespace, detail=detail)

    def _taken(self, queue: str, text: str) -> PairingError:
        detail = f"{_within(text).rstrip('.')}. It is not among the queues, so a topic may have that name"
        return QueueNotCreatableError(namespace=self._namespace, queue=queue, detail=detail)


class _FailedError(Exception):
    """A call failed. Knows what of it may be told, and not the SDK's exception."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault))
        self.fault = fault


def _detail(fault: Fault) -> str:
    return f"{_within(fault.text)} ({fault.reason})" if fault.text else fault.reason


def _within(text: str) -> str:
    """What the service says, without the XML around it."""
    match = _DETAIL.search(text)
    return html.unescape(match[1]) if match else text


async def _closed(client: ServiceBusAdministrationClient) -> None:
    # What a broken connection has to say about being closed helps nobody.
    with contextlib.suppress(Exception):
        async with asyncio.timeout(CLOSE_WITHIN):
            await client.close()


def _tell(paired: Paired) -> None:
    _LOG.info(
        "%d backlog queues under %s in %s: %d found, %d made%s.",
        paired.count,
        paired.path,
        paired.namespace,
        len(paired.found),
        len(paired.created),
        f", {len(paired.missing)} to be made" if paired.missing else "",
    )
    for difference in paired.differing:
        danger = UNSAFE.get(difference.property)
        if danger is not None:
            _LOG.warning("UNSAFE BACKLOG QUEUE: %s, in %s: %s.", difference, paired.namespace, danger)
            continue
        _LOG.warning("The backlog queue %s in %s; it is used as it is.", difference, paired.namespace)
    if paired.extra:
        _LOG.info("Not used, and left alone, in %s: %s.", paired.namespace, ", ".join(paired.extra))
