"""What became of the messages of a backlog queue, per entity, as counts. Knows nothing of how."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from spark_sb_sink.errors import SendError


@dataclass(frozen=True, slots=True)
class Receipt:
    """For one backlog queue and one entity; the entity is empty for messages that name none."""

    queue: str
    entity: str
    moved: int = 0
    """Accepted by the entity, and gone from the backlog queue."""
    deferred: int = 0
    dead_lettered: int = 0
    lost_locks: int = 0
    """Their lock was lost, so they are not counted elsewhere: whoever has them now counts them."""
    unconfirmed: int = 0
    """The backlog queue did not answer to their settlement; they may come again, with the same message id."""
    oldest_ms: int | None = None
    """When the oldest of them was enqueued, in milliseconds since 1970 by the service's clock."""
    bytes: int = 0
    """Of those that were moved, as they came from the backlog queue."""


@dataclass(frozen=True, slots=True)
class Report:
    """All receipts of one run. `errors`: entities that refuse our claim; the others were served all the same."""

    receipts: tuple[Receipt, ...] = ()
    errors: tuple[SendError, ...] = ()

    @property
    def moved(self) -> int:
        return sum(receipt.moved for receipt in self.receipts)

    def total(self, count: str) -> int:
        return sum(getattr(receipt, count) for receipt in self.receipts)


@dataclass
class _Sums:
    counts: dict[str, int] = field(default_factory=dict)
    oldest_ms: int | None = None
    bytes: int = 0


@dataclass
class Ledger:
    """Receipts in the making."""

    _sums: dict[tuple[str, str], _Sums] = field(default_factory=dict)

    @property
    def has_some(self) -> bool:
        return bool(self._sums)

    def note(self, queue: str, entity: str, what: str, enqueued_ms: int | None, size: int) -> None:
        """One message. `what` is the name of a count of `Receipt`."""
        sums = self._sums.get((queue, entity))
        if sums is None:
            sums = self._sums[queue, entity] = _Sums()
        sums.counts[what] = sums.counts.get(what, 0) + 1
        if what == "moved":
            sums.bytes += size
        if enqueued_ms is not None and (sums.oldest_ms is None or enqueued_ms < sums.oldest_ms):
            sums.oldest_ms = enqueued_ms

    def take(self, errors: Iterable[SendError] = ()) -> Report:
        """What was noted since the last time."""
        sums, self._sums = self._sums, {}
        receipts = (
            Receipt(queue, entity, **each.counts, oldest_ms=each.oldest_ms, bytes=each.bytes)
            for (queue, entity), each in sorted(sums.items())
        )
        return Report(tuple(receipts), tuple(errors))
