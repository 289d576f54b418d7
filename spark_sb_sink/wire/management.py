"""Requests to the management node of an entity, over the connection of a line: peek, deferred messages, locks.

Messages come as the bytes that they are. The SDK's own requests read the connection themselves, and leave a trace of
each answer behind; these do neither.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from spark_sb_sink.amqp import MalformedMessageError, decode_value, split_sections
from spark_sb_sink.amqp.layout import cut_map
from spark_sb_sink.amqp.sections import MESSAGE_ANNOTATIONS
from spark_sb_sink.wire import sdk
from spark_sb_sink.wire.line import UNHEARD, Line
from spark_sb_sink.wire.settling import Action, Outcome

STATES = ("active", "deferred", "scheduled")
"""What `x-opt-message-state` counts."""
_OK, _NOTHING = 200, (202, 204)
_LEAST_CREDIT = 100


@dataclass(frozen=True, slots=True)
class RawPeeked:
    """A message seen without taking it; `state` is one of `STATES`."""

    sequence_number: int
    state: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class RawDeferred:
    """A deferred message, locked under a token of its own."""

    lock_token: UUID
    payload: bytes


class ManagementNode:
    """The `$management` node of one entity, attached at the first request and again after it was detached."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._pair: Any = None
        self._lock = asyncio.Lock()

    async def peek(self, from_sequence: int, count: int) -> list[RawPeeked]:
        body = {"from-sequence-number": sdk.Transport.AMQP_LONG_VALUE(from_sequence), "message-count": count}
        return [_peeked(bytes(entry[b"message"])) for entry in _entries(await self._request("peek-message", body))]

    async def receive_deferred(self, sequence_numbers: Sequence[int]) -> list[RawDeferred]:
        if not sequence_numbers:
            return []
        numbers = [sdk.Transport.AMQP_LONG_VALUE(number) for number in sequence_numbers]
        body = {
            "sequence-numbers": sdk.Transport.AMQP_ARRAY_VALUE(numbers),
            "receiver-settle-mode": sdk.Transport.AMQP_UINT_VALUE(1),
        }
        answer = await self._request("receive-by-sequence-number", body)
        return [RawDeferred(entry[b"lock-token"], bytes(entry[b"message"])) for entry in _entries(answer)]

    async def settle(self, lock_tokens: Sequence[UUID], outcome: Outcome) -> None:
        if outcome.action is Action.RELEASE:
            raise ValueError("a message can be released only on the link that brought it")
        if not lock_tokens:
            return
        body: dict[str, Any] = {
            "disposition-status": outcome.action.value,
            "lock-tokens": sdk.Transport.AMQP_ARRAY_VALUE(list(lock_tokens)),
        }
        if outcome.action is Action.DEAD_LETTER:
            body |= {"deadletter-reason": outcome.reason, "deadletter-description": outcome.description}
        await self._request("update-disposition", body)

    async def renew_locks(self, lock_tokens: Sequence[UUID]) -> list[float]:
        if not lock_tokens:
            return []
        body = {"lock-tokens": sdk.Transport.AMQP_ARRAY_VALUE(list(lock_tokens))}
        answer = await self._request("renew-lock", body)
        return [until / 1000 for until in answer[b"expirations"]]

    async def _request(self, operation: str, body: dict[str, Any]) -> Any:
        line = self._line
        line.check()
        status, description, message = await self._execute(operation, body)
        if status == _OK:
            return message.value
        if status in _NOTHING:
            return None
        condition = (message.application_properties or {}).get(sdk.ERROR_CONDITION_FIELD)
        return sdk.Transport.handle_amqp_mgmt_error(UNHEARD, f"{operation} failed.", condition, description, status)

    async def _execute(self, operation: str, body: dict[str, Any]) -> Any:
        line = self._line
        async with line.deadline(f"{operation} was not answered"):
            await line.authorise()
            async with self._lock:
                if self._pair is None:
                    await self._attach()
                pair = self._pair
            answer = line.expect()
            pair.failed.append(answer)
            try:
                await pair.links.execute_operation(
                    self._message(body),
                    _answers(answer),
                    operation=sdk.string_value(f"com.microsoft:{operation}"),
                    type=sdk.string_value(sdk.ENTITY_MANAGEMENT),
                    timeout=line.timeout,
                )
                found = await answer
                await pair.tidy()
            finally:
                pair.failed.remove(answer)
        return found

    def _message(self, body: dict[str, Any]) -> Any:
        timeout = sdk.Transport.AMQP_UINT_VALUE(int(self._line.timeout * 1000))
        return sdk.Transport.create_mgmt_msg(
            message=body,
            application_properties={sdk.ASSOCIATED_LINK: self._line.link.name, sdk.SERVER_TIMEOUT: timeout},
            config=self._line.owner._config,
            reply_to=self._line.owner._mgmt_target,
        )

    async def _attach(self) -> None:
        opened = self._line.expect()
        self._pair = _Pair(self._line, opened, self._gone)
        try:
            await self._pair.links.open()
            await opened
        except BaseException:
            self._pair = None
            raise

    def _gone(self, pair: "_Pair") -> None:
        if self._pair is pair:
            self._pair = None


class _Pair:
    """The two links of the node, and who waits on them."""

    def __init__(self, line: Line, opened: "asyncio.Future[Any]", gone: Any) -> None:
        self.failed: list[asyncio.Future[Any]] = [opened]
        self._opened = opened
        self._gone = gone
        self.links: Any = line.session.create_request_response_link_pair(
            endpoint=line.owner._mgmt_target.encode(),
            on_amqp_management_open_complete=self._on_open,
            on_amqp_management_error=self._on_error,
        )

    async def _on_open(self, result: Any) -> None:
        if result is not sdk.ManagementOpenResult.OK:
            await self._on_error()
        elif not self._opened.done():
            self._opened.set_result(None)

    async def _on_error(self) -> None:
        self._gone(self)
        error = self.links._request_link._error or self.links._response_link._error
        error = error or sdk.AMQPLinkError(sdk.ErrorCondition.UnknownError, description="The node was detached.")
        for future in list(self.failed):
            if not future.done():
                future.set_exception(error)
        # One half alone would go on taking the answers meant for the next pair.
        for link in (self.links._request_link, self.links._response_link):
            await link.detach(close=True)

    async def tidy(self) -> None:
        """Forget what the SDK keeps of each answer, and give the credit that it never renews."""
        responses = self.links._response_link
        responses._received_delivery_tags.clear()
        if responses.current_link_credit < _LEAST_CREDIT:
            await responses.flow()


def _answers(answer: "asyncio.Future[Any]") -> Any:
    async def complete(_: Any, status: Any, description: Any, message: Any, error: Any = None) -> None:
        if answer.done():
            return
        if isinstance(error, Exception):
            answer.set_exception(error)
        else:
            answer.set_result((status, description, message))

    return complete


def _entries(answer: Any) -> list[dict[bytes, Any]]:
    return list(answer[b"messages"]) if answer else []


_SEQUENCE_NUMBER = b"\xa3\x15x-opt-sequence-number"
_STATE = b"\xa3\x13x-opt-message-state"


def _peeked(payload: bytes) -> RawPeeked:
    for section in split_sections(payload):
        if section.descriptor == MESSAGE_ANNOTATIONS:
            annotations = dict(cut_map(payload, section.value, section.end))
            number = _number(annotations.get(_SEQUENCE_NUMBER))
            state = _number(annotations.get(_STATE)) or 0
            if number is not None and 0 <= state < len(STATES):
                return RawPeeked(number, STATES[state], payload)
    raise MalformedMessageError(0, "a peeked message with its sequence number", "one without")


def _number(encoded: bytes | None) -> int | None:
    """A whole number of any width."""
    value = None if encoded is None else decode_value(encoded)
    value = getattr(value, "value", value)
    return value if isinstance(value, int) else None
