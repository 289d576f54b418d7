"""What a syphon moved, as it is told: for its listeners, and as rows of the Delta table `transfers`. Moves nothing."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from spark_sb_sink.events import Moved
from spark_sb_sink.syphon.overflow_drain import OverflowSent
from spark_sb_sink.syphon.receipts import Receipt

OVERFLOW_BATCH = -1
"""In the place of a micro-batch's number."""


def of_turn(receipts: Iterable[Receipt]) -> tuple[Moved, ...]:
    return tuple(Moved(**{name: getattr(receipt, name) for name in Moved.__slots__}) for receipt in receipts)


def of_overflow(sent: OverflowSent) -> tuple[Moved, ...]:
    return tuple(
        Moved(
            "overflow",
            count.entity,
            count.primary,
            deferred=count.backlog,
            dead_lettered=count.quarantine,
            lost_locks=0,
            unconfirmed=0,
            oldest_ms=sent.oldest_ms[count.entity],
            bytes=sent.bytes[count.entity],
        )
        for count in sent.entities
        if count.primary or count.backlog or count.quarantine  # others are tried again
    )


def rows(now: datetime, syphon: str, batch_id: int, moved: Iterable[Moved]) -> Iterator[tuple[Any, ...]]:
    """In the order of the table's columns."""
    for each in moved:
        oldest = None if each.oldest_ms is None else datetime.fromtimestamp(each.oldest_ms / 1000, UTC)
        yield (
            now,
            syphon,
            batch_id,
            each.queue,
            each.entity,
            each.moved,
            each.deferred,
            each.dead_lettered,
            each.lost_locks,
            each.unconfirmed,
            oldest,
            each.bytes,
        )
