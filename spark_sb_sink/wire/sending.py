"""Already encoded messages and batches to one entity, one transfer each. Decides nothing about failures."""

import time
from collections.abc import Callable
from typing import Any

from azure.servicebus.aio import ServiceBusClient

from spark_sb_sink.amqp import BATCH_FORMAT
from spark_sb_sink.transport import LinkLimits
from spark_sb_sink.wire import sdk
from spark_sb_sink.wire.line import Line, translated
from spark_sb_sink.wire.transfer import RawTransfers


class RawSender:
    """A sender link to one queue or topic. Safe for several coroutines; their messages keep the order of the calls.

    After a failure other than a rejection it is `broken`: what became of the message is not known, and the sender must
    be closed and thrown away.
    """

    def __init__(
        self,
        client: ServiceBusClient,
        entity: str,
        *,
        send_timeout: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # No keep-alive task of the SDK: it would read beside our reader, and hold up a close for a second.
        self._line = Line(client.get_queue_sender(entity, keep_alive=0), entity, send_timeout)
        self._clock = clock
        self._limits: LinkLimits | None = None
        self._spent = 0.0
        self.entity = entity
        self.last_used = clock()
        """When the broker last answered on this link, by the given clock; a failure leaves it as it was."""

    @property
    def broken(self) -> bool:
        return self._line.broken

    @property
    def limits(self) -> LinkLimits:
        """Known once the link is open."""
        if self._limits is None:
            self._line.check()
            raise RuntimeError("the limits of a link are known once it is open")
        return self._limits

    async def open(self) -> None:
        """Connect, authorise and attach, within the send timeout."""
        begun = time.monotonic()
        await self._line.open(self._prepare)
        self._spent = time.monotonic() - begun
        self.last_used = self._clock()

    def _prepare(self, link: Any) -> None:
        self._transfers = RawTransfers(link, self._line.expect)
        self._limits = _limits(self._line.handler)

    async def send(self, payload: bytes, *, batch: bool) -> None:
        """Send one transfer and return when the broker has accepted it.

        Raises what the SDK would raise, or `TimeoutError` when the send timeout has run out.
        """
        line = self._line
        line.check()
        # What opening took is taken off the first send: an attempt at a sick entity lasts one deadline, not two.
        spent, self._spent = self._spent, 0.0
        async with line.deadline("the message was not acknowledged", spent=spent):
            await line.authorise()
            answer = await self._transfers.send(payload, BATCH_FORMAT if batch else 0)
            refusal = _refusal(await answer)
        self.last_used = self._clock()
        if refusal is not None:
            if refusal.condition == sdk.ErrorCondition.UnknownError:
                line.broken = True
            raise translated(refusal) from refusal

    async def close(self) -> None:
        """Close in two seconds at most; never raises."""
        await self._line.close()


async def ping_by_link(client: ServiceBusClient, entity: str, *, timeout: float = 10.0) -> None:  # noqa: ASYNC109
    """Attach a sender link and detach it; sends nothing. Raises what opening a sender raises."""
    sender = RawSender(client, entity, send_timeout=timeout)
    try:
        await sender.open()
    finally:
        await sender.close()


def _limits(handler: Any) -> LinkLimits:
    # As the SDK does: a batch has a limit of its own, also where single messages may be of 100 MB.
    message = sdk.Transport.get_remote_max_message_size(handler) or sdk.DEFAULT_MAX_MESSAGE_SIZE
    batch = sdk.Transport.get_remote_max_message_batch_size(handler)
    if batch is None:
        batch = sdk.PREMIUM_BATCH_SIZE if message >= sdk.PREMIUM_BATCH_SIZE else sdk.STANDARD_BATCH_SIZE
    return LinkLimits(int(message), int(batch))


def _refusal(state: Any) -> Any:
    """None for accepted. The SDK's own reading fails on an error without `info`, and on any outcome but two."""
    if state and sdk.ACCEPTED in state:
        return None
    try:
        condition, description, info = (*state[sdk.REJECTED][0], None, None)[:3]
    except (LookupError, TypeError):
        text = f"The message was neither accepted nor rejected: {state!r:.200}"
        return sdk.MessageException(sdk.ErrorCondition.UnknownError, description=text)
    try:
        return sdk.MessageSendFailed(sdk.ErrorCondition(condition), description=description, info=info)
    except ValueError:
        return sdk.MessageException(condition, description=description, info=info)
