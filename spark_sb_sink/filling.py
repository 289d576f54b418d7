"""Fills batches: as many messages as the link takes, in order. Knows nothing of links, time or failures."""

import contextlib
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate, chain, islice, repeat, starmap
from operator import add, itemgetter

from spark_sb_sink.amqp import batch_payload, batch_prefix, size_in_batch
from spark_sb_sink.amqp.errors import CodecError, MalformedMessageError
from spark_sb_sink.amqp.message import DATA_HEADS, FEW, data_head
from spark_sb_sink.envelope import wrap
from spark_sb_sink.keys import partition_key_of
from spark_sb_sink.reports import Tally, Unsent
from spark_sb_sink.transport import LinkLimits

MOST_MESSAGES = 4500
"""The service takes no more in one batch."""

_ALIAS = b"-ms-"
"""What the names of the envelope's own properties have in them, and few bodies; without their x, it is found faster."""

Message = tuple[int, bytes]
"""Its place in the stream of its entity, and its bytes as they were given."""

_BYTES: Callable[[Message], bytes] = itemgetter(1)


@dataclass(slots=True)
class Batch:
    """Messages that go out as one transfer, and how they look on the wire."""

    messages: list[Message] = field(default_factory=list)
    wire: list[bytes] = field(default_factory=list)
    prefix: bytes = b""
    whole: bytes = b""
    """The payload, where it was made already."""

    def payload(self) -> bytes:
        """One message as it is; several as a batch."""
        return self.whole or (self.wire[0] if len(self.wire) == 1 else batch_payload(self.prefix, self.wire))


class Filler:
    """Takes messages off the front of what waits. What no link of that side takes goes into the tally at once."""

    def __init__(self, entity: str, tally: Tally, *, partitioned: bool, left: Callable[[int], None]) -> None:
        """`left` is told the size of each message that goes into the tally."""
        self._entity = entity
        self._tally = tally
        self._left = left
        self._partitioned = partitioned
        self._most = MOST_MESSAGES

    def halve(self, count: int) -> None:
        """A batch of so many was refused for one of them: take half as many next."""
        self._most = max(1, count // 2)

    def progress(self) -> None:
        """Something went through: dare twice as many again."""
        self._most = min(MOST_MESSAGES, self._most * 2)

    def all_of(self, waiting: deque[Message]) -> Batch:
        """All that waits, for what is said of all."""
        batch = Batch(list(waiting))
        waiting.clear()
        return batch

    def fill(self, waiting: deque[Message], limits: LinkLimits, *, wrapped: bool) -> Batch:
        """The next batch, empty only where nothing that waits can be sent on that side."""
        batch = None if wrapped or self._partitioned else self._plain(waiting, limits)
        return batch or self._one_by_one(waiting, limits, wrapped)

    def _plain(self, waiting: deque[Message], limits: LinkLimits) -> Batch | None:
        """Many messages at a time, where none needs a look; None where one may."""
        if len(waiting) < 2:
            return None
        try:
            prefix = batch_prefix(waiting[0][1])
        except CodecError:
            return None
        room = limits.max_batch_size - len(prefix)
        pieces = [prefix]
        count, most = 0, self._most
        coming = map(_BYTES, waiting)
        typical = max(1, len(waiting[0][1]))  # one that had nothing but its path in the backlog is empty
        while room > 0 and (wire := list(islice(coming, min(most - count, 1 + room // typical)))):
            sizes = list(map(len, wire))
            largest = max(sizes)
            if largest > limits.max_message_size:
                return None
            heads = list(map(DATA_HEADS.__getitem__, sizes) if largest < FEW else map(data_head, sizes))
            ends = list(accumulate(map(add, map(len, heads), sizes)))
            fitting = bisect_right(ends, room)
            pieces += chain.from_iterable(zip(heads[:fitting], wire, strict=False))
            count += fitting
            room = room - ends[-1] if fitting == len(wire) else 0
            typical = ends[-1] // len(wire)
        payload = b"".join(pieces)
        if count < 2 or _ALIAS in payload:
            return None
        return Batch(list(starmap(waiting.popleft, repeat((), count))), whole=payload)

    def _one_by_one(self, waiting: deque[Message], limits: LinkLimits, wrapped: bool) -> Batch:
        batch = Batch()
        room = 0
        first: str | None = None
        while waiting and len(batch.messages) < self._most:
            try:
                wire = self._wire(waiting[0][1], wrapped)
                key = partition_key_of(wire) if self._partitioned and not wrapped else None
                prefix = batch.prefix if batch.messages else batch_prefix(wire)
            except CodecError as error:
                self._put_aside(waiting, self._tally.rejected, str(error))
                continue
            if len(wire) > limits.max_message_size:
                self._too_large(waiting, len(wire), limits, wrapped)
                continue
            size = size_in_batch(len(wire))
            if not batch.messages:
                batch.prefix, first = prefix, key
                room = limits.max_batch_size - len(prefix)
            elif size > room or key != first:
                break
            batch.messages.append(waiting.popleft())
            batch.wire.append(wire)
            room -= size
            if room < 0:  # larger than any batch: it goes alone
                break
        return batch

    def _wire(self, message: bytes, wrapped: bool) -> bytes:
        """The message as it goes out."""
        if wrapped:
            return wrap(message, self._entity)
        if _ALIAS in message:
            # One that could not be diverted is refused at once, not only on the day that the entity is out.
            with contextlib.suppress(MalformedMessageError):
                wrap(message, self._entity)
        return message

    def _too_large(self, waiting: deque[Message], size: int, limits: LinkLimits, wrapped: bool) -> None:
        most = limits.max_message_size
        if wrapped:
            reason = f"too large with the envelope: {size} bytes, a backlog queue takes {most}"
            self._put_aside(waiting, self._tally.overflow, reason)
        else:
            self._put_aside(waiting, self._tally.rejected, f"too large: {size} bytes, the entity takes {most}")

    def _put_aside(self, waiting: deque[Message], where: list[Unsent], reason: str) -> None:
        position, message = waiting.popleft()
        where.append(Unsent(position, message, reason))
        self._left(len(message))
