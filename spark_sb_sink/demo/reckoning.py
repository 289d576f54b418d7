"""What became of every message: the sink's acknowledgements held against the broker's journal. Pure.

Knows neither Spark nor the broker: a tally is, for each message id, how often each thing happened to it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from spark_sb_sink.events import RouteCounts

Tally = Mapping[str, Mapping[str, int]]
ACCEPTED, DUPLICATE, COMPLETED, UNROUTED = "accepted", "duplicate", "completed", "unrouted"


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Rows as the sink acknowledged them, over all micro-batches."""

    rows: int = 0
    primary: int = 0
    backlog: int = 0
    overflow: int = 0
    quarantine: int = 0

    def plus(self, rows: int, entities: Iterable[RouteCounts]) -> "Acknowledged":
        """With one more micro-batch."""
        counts = list(entities)
        return Acknowledged(
            self.rows + rows,
            self.primary + sum(count.primary for count in counts),
            self.backlog + sum(count.backlog for count in counts),
            self.overflow + sum(count.overflow for count in counts),
            self.quarantine + sum(count.quarantine for count in counts),
        )


@dataclass(frozen=True, slots=True)
class Books:
    """What the broker wrote down, and what it would bill."""

    entities: Mapping[str, Tally]
    """The journal of the primary, for each entity."""
    backlog: Tally
    """The journal of the secondary."""
    stored: Mapping[str, int]
    """Messages that each entity holds at the end; for a topic its subscription."""
    operations_primary: int = 0
    operations_secondary: int = 0
    pings: int = 0


@dataclass(frozen=True, slots=True)
class Outage:
    """One thing that was broken and mended, with the seconds until the last entity was diverted and was back."""

    what: str
    failover_s: float
    failback_s: float


@dataclass(frozen=True, slots=True)
class Reckoning:
    """The end of the story in numbers."""

    sent: int
    primary: int
    backlog: int
    overflow: int
    quarantine: int
    drained: int
    delivered: int
    lost: int
    duplicates: int
    dropped_duplicates: int
    """Sends that were repeated, with the same id, and that duplicate detection did not let in."""
    outages: tuple[Outage, ...]
    drain_s: float
    operations_primary: int
    operations_secondary: int
    pings: int
    disagreements: tuple[str, ...]
    """Where acknowledgements and journal do not match; one sentence each."""

    @property
    def failover_s(self) -> float:
        """The longest."""
        return max((outage.failover_s for outage in self.outages), default=0.0)

    @property
    def failback_s(self) -> float:
        """The longest."""
        return max((outage.failback_s for outage in self.outages), default=0.0)

    @property
    def exit_code(self) -> int:
        """1 if anything was lost, or if the books do not balance."""
        return 1 if self.lost or self.disagreements else 0

    def as_json(self) -> dict[str, object]:
        """For `--json`."""
        return {
            "sent": self.sent,
            "primary": self.primary,
            "backlog": self.backlog,
            "overflow": self.overflow,
            "quarantine": self.quarantine,
            "drained": self.drained,
            "delivered": self.delivered,
            "lost": self.lost,
            "duplicates": self.duplicates,
            "failover_s": round(self.failover_s, 2),
            "failback_s": round(self.failback_s, 2),
            "dropped_duplicates": self.dropped_duplicates,
            "drain_s": round(self.drain_s, 2),
            "operations": self.operations_primary + self.operations_secondary,
            "operations_primary": self.operations_primary,
            "operations_secondary": self.operations_secondary,
            "pings": self.pings,
            "outages": [
                {
                    "what": outage.what,
                    "failover_s": round(outage.failover_s, 2),
                    "failback_s": round(outage.failback_s, 2),
                }
                for outage in self.outages
            ],
            "disagreements": list(self.disagreements),
        }


def reckon(
    sent: Mapping[str, str],
    acknowledged: Acknowledged,
    books: Books,
    *,
    outages: Iterable[Outage] = (),
    drain_s: float = 0.0,
) -> Reckoning:
    """`sent`: the entity of each message id that the source gave."""
    arrived = {message_id: _arrived(books.entities, message_id, entity) for message_id, entity in sent.items()}
    diverted = {message_id for message_id, what in books.backlog.items() if what.get(ACCEPTED)}
    drained = sum(1 for message_id in diverted if books.backlog[message_id].get(COMPLETED))
    delivered = {message_id for message_id, count in arrived.items() if count}
    duplicates = sum(count - 1 for count in arrived.values() if count > 1)
    return Reckoning(
        sent=len(sent),
        primary=acknowledged.primary,
        backlog=acknowledged.backlog,
        overflow=acknowledged.overflow,
        quarantine=acknowledged.quarantine,
        drained=drained,
        delivered=len(delivered),
        lost=len(sent) - len(delivered),
        duplicates=duplicates,
        dropped_duplicates=sum(what.get(DUPLICATE, 0) for tally in books.entities.values() for what in tally.values()),
        outages=tuple(outages),
        drain_s=drain_s,
        operations_primary=books.operations_primary,
        operations_secondary=books.operations_secondary,
        pings=books.pings,
        disagreements=tuple(_disagreements(sent, acknowledged, books, delivered, diverted, duplicates)),
    )


def _arrived(entities: Mapping[str, Tally], message_id: str, entity: str) -> int:
    """How often a consumer of the entity that the message was for can get it."""
    what = entities.get(entity, {}).get(message_id, {})
    return what.get(ACCEPTED, 0) - what.get(UNROUTED, 0)


def _disagreements(
    sent: Mapping[str, str],
    acknowledged: Acknowledged,
    books: Books,
    delivered: set[str],
    diverted: set[str],
    duplicates: int,
) -> Iterator[str]:
    routes = acknowledged.primary + acknowledged.backlog + acknowledged.overflow + acknowledged.quarantine
    if not len(sent) == acknowledged.rows == routes:
        yield (
            f"the source gave {len(sent)} rows, the sink acknowledged {acknowledged.rows}, and its four routes "
            f"have {routes}."
        )
    if len(diverted) != acknowledged.backlog:
        yield f"the sink says {acknowledged.backlog} by backlog, the journal has {len(diverted)} there."
    # What came by overflow was sent by the syphon, and looks in the journal as if it had come directly.
    direct = len(delivered - diverted)
    if direct != acknowledged.primary + acknowledged.overflow:
        yield (
            f"the sink says {acknowledged.primary} directly and {acknowledged.overflow} by overflow, the journal has "
            f"{direct} that no backlog queue had."
        )
    strays = sum(
        1
        for entity, tally in books.entities.items()
        for message_id, what in tally.items()
        if what.get(ACCEPTED) and sent.get(message_id) != entity
    )
    if strays:
        yield f"{strays} messages are at an entity that they were not sent to."
    held = sum(books.stored.values())
    if held != len(delivered) + duplicates + strays:
        yield f"the journal has {len(delivered) + duplicates + strays} messages accepted, the entities hold {held}."
