"""Payloads on the wire as they are: encoded by us, never looked at by the SDK, in either direction.

Replaces what single link instances do with transfers, dispositions and flows. The SDK's own way encodes and decodes,
sends without credit, mixes the frames of two senders, and does not understand every answer.
"""

import asyncio
import struct
from collections.abc import Callable
from typing import Any

from spark_sb_sink.wire import sdk

SERIAL = 0xFFFF_FFFF
"""Delivery ids and counts go round at 2³²."""

Answer = asyncio.Future[Any]
"""Gets the delivery state that the broker answered with."""


class _Delivery:
    """What the session wants to see of a delivery."""

    __slots__ = ("frame", "transfer_state")

    def __init__(self, frame: dict[str, Any]) -> None:
        self.frame = frame
        self.transfer_state: Any = None


class RawTransfers:
    """Takes over a sender link: one transfer after the other, as the broker gives credit."""

    def __init__(self, link: Any, expect: Callable[[], Answer]) -> None:
        self._link = link
        self._session = link._session
        self._expect = expect
        self._answers: dict[int, Answer] = {}
        self._writing = asyncio.Lock()
        self._flow: Answer | None = None
        # The SDK takes itself to have credit before the broker has given any.
        link.current_link_credit = 0
        link._incoming_disposition = self._on_disposition
        link._incoming_flow = self._on_flow

    async def send(self, payload: bytes, message_format: int) -> Answer:
        """Write one transfer; the answer comes later, and may have come already."""
        link, session = self._link, self._session
        async with self._writing:
            while link.current_link_credit <= 0 or session.remote_incoming_window <= 0:
                self._flow = self._expect()
                await self._flow
            count = (link.delivery_count + 1) & SERIAL
            delivery = _Delivery(
                {
                    "handle": link.handle,
                    "delivery_tag": struct.pack(">I", count),
                    "message_format": message_format,
                    "settled": False,
                    "more": False,
                    "rcv_settle_mode": None,
                    "state": None,
                    "resume": None,
                    "aborted": None,
                    "batchable": None,
                    "payload": payload,
                }
            )
            answer = self._expect()
            number = session.next_outgoing_id
            self._answers[number] = answer
            answer.add_done_callback(lambda _: self._answers.pop(number, None))
            link.delivery_count = count
            link.current_link_credit -= 1
            await session._outgoing_transfer(delivery, None)
            session.next_outgoing_id &= SERIAL
            if delivery.transfer_state is not sdk.TransferState.OKAY:
                raise sdk.AMQPLinkError(sdk.ErrorCondition.UnknownError, description="The session takes no transfer.")
        return answer

    async def _on_disposition(self, frame: Any) -> None:
        role, first, last, settled, state = frame[:5]
        if role != sdk.Role.Receiver or not settled:
            return
        for number in named_ids(first, last, self._answers):
            answer = self._answers[number]
            if not answer.done():
                answer.set_result(state)

    async def _on_flow(self, frame: Any) -> None:
        handle, count, credit = frame[4:7]
        if handle is not None and credit is not None:
            link = self._link
            link.current_link_credit = signed(((count or 0) + credit - link.delivery_count) & SERIAL)
        if self._flow is not None and not self._flow.done():
            self._flow.set_result(None)


def named_ids(first: int, last: int | None, known: Any) -> list[int]:
    """Those of the known ids that a disposition names. The peer chose the range, so it is never walked as such."""
    length = ((first if last is None else last) - first) & SERIAL
    if length < len(known):
        return [number for step in range(length + 1) if (number := (first + step) & SERIAL) in known]
    return [number for number in known if (number - first) & SERIAL <= length]


def signed(difference: int) -> int:
    """A difference of two numbers that go round at 2³², as the small number that it means."""
    return difference - (1 << 32) if difference >= 1 << 31 else difference


# Places in a transfer frame as the SDK decodes it.
_ID, _TAG, _MORE, _ABORTED, _PAYLOAD = 1, 2, 5, 9, 11


def receive_raw(link: Any, arrived: Callable[[int, bytes, bytes], None]) -> None:
    """From now on this receiver link hands over id, tag and payload of each delivery, undecoded."""
    parts: list[bytes] = []
    number, tag = 0, b""
    begun = False

    async def incoming(frame: Any) -> None:
        nonlocal number, tag, begun
        link._session.next_incoming_id &= SERIAL
        if not begun:
            number, tag, begun = frame[_ID], bytes(frame[_TAG]), True
        if frame[_PAYLOAD] is not None:
            parts.append(bytes(frame[_PAYLOAD]))
        if frame[_MORE] and not frame[_ABORTED]:
            return
        link.delivery_count = (link.delivery_count + 1) & SERIAL
        link.current_link_credit -= 1
        payload = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        begun = False
        if not frame[_ABORTED]:
            arrived(number, tag, payload)

    link._incoming_transfer = incoming
