"""A call to the service under a deadline, whose failure is a sorted fault and nothing that could tell a secret."""

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any, TypeVar

from spark_sb_sink.durations import format_duration
from spark_sb_sink.faults import Fault, Phase, sort, symptom_of

T = TypeVar("T")


class CallFailedError(Exception):
    """A call failed. Knows what of it may be told, and not the SDK's exception."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault))
        self.fault = fault

    @property
    def told(self) -> str:
        """What the service said, or else what it is."""
        return self.fault.text or self.fault.reason


async def within(deadline: float, call: Awaitable[T]) -> T:
    """The answer, or `CallFailedError` once the deadline has passed."""
    try:
        async with asyncio.timeout(deadline):
            return await call
    except Exception as error:  # noqa: BLE001 - on a document that it cannot read, the SDK fails in any way
        fault = sort(symptom_of(error, during=Phase.OPEN))
        if isinstance(error, TimeoutError):
            fault = replace(fault, text=f"no answer within {format_duration(deadline)}")
    # Outside of the handler, so that the SDK's exception, which knows the request, does not travel along.
    raise CallFailedError(fault)


async def listed(deadline: float, items: Any) -> list[Any]:
    """All items of the SDK's pages, each page under the deadline."""
    found: list[Any] = []
    pages = items.by_page()
    while (page := await within(deadline, anext(pages, None))) is not None:
        found += [item async for item in page]
    return found
