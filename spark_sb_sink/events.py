"""What happens in the sink, as frozen dataclasses. Logging is one listener, and the one by default.

A listener is any function of one event; one that raises is logged and does no harm. No event holds a secret or a body.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spark_sb_sink.failover import Health

_LOG = logging.getLogger("spark_sb_sink")


@dataclass(frozen=True, slots=True)
class RouteCounts:
    """What became of the rows of one entity."""

    entity: str
    primary: int = 0
    backlog: int = 0
    overflow: int = 0
    quarantine: int = 0
    abandoned: int = 0
    """Not tried after the entity refused our credential; the micro-batch fails for them."""

    @property
    def total(self) -> int:
        return self.primary + self.backlog + self.overflow + self.quarantine + self.abandoned


@dataclass(frozen=True, slots=True)
class Paired:
    """The backlog queues are there."""

    secondary: str
    backlog_queues: int
    created: int


@dataclass(frozen=True, slots=True)
class EntityChanged:
    """An executor changed its mind about an entity."""

    entity: str
    before: Health
    after: Health
    reason: str
    wall_time: float
    board: str


@dataclass(frozen=True, slots=True)
class BatchSent:
    """Every row of a micro-batch was acknowledged on one of the four routes."""

    query_id: str
    batch_id: int
    rows: int
    seconds: float
    entities: tuple[RouteCounts, ...]

    @property
    def all_primary(self) -> bool:
        """Whether all is well."""
        return all(entity.primary == entity.total for entity in self.entities)


@dataclass(frozen=True, slots=True)
class BatchSkipped:
    """The ledger shows a replayed micro-batch as finished."""

    query_id: str
    batch_id: int


@dataclass(frozen=True, slots=True)
class BatchFailed:
    """A micro-batch could not be sent as a whole."""

    query_id: str
    batch_id: int
    error: str
    entities: tuple[RouteCounts, ...] = ()


@dataclass(frozen=True, slots=True)
class Warned:
    """Something that a person should look at."""

    text: str


@dataclass(frozen=True, slots=True)
class Moved:
    """What a syphon did with the messages of one backlog queue for one entity; the queue is overflow for that table."""

    queue: str
    entity: str
    moved: int
    deferred: int
    dead_lettered: int
    lost_locks: int
    unconfirmed: int
    oldest_ms: int | None
    bytes: int


@dataclass(frozen=True, slots=True)
class SyphonTurn:
    """A micro-batch of the syphon in which something moved; batch -1 is the overflow."""

    syphon: str
    batch_id: int
    moved: tuple[Moved, ...]


Event = SyphonTurn | Paired | EntityChanged | BatchSent | BatchSkipped | BatchFailed | Warned
Listener = Callable[[Event], None]


def log(event: Event) -> None:
    """To logging: what is normal at debug or info, what diverts at warning, what fails at error."""
    match event:
        case Paired(secondary, queues, created):
            _LOG.info("paired with %s: %d backlog queues, %d of them new", secondary, queues, created)
        case EntityChanged(entity, before, after, reason, _, _):
            level = logging.WARNING if after in (Health.FAILED_OVER, Health.SUSPECT) else logging.INFO
            _LOG.log(level, "%s: %s → %s (%s)", entity, before.value, after.value, reason)
        case BatchSent(query_id, batch_id, rows, seconds, entities):
            level = logging.DEBUG if event.all_primary else logging.WARNING
            _LOG.log(
                level, "batch %d of %s: %d rows in %.2f s: %s", batch_id, query_id, rows, seconds, summary(entities)
            )
        case BatchSkipped(query_id, batch_id):
            _LOG.info("batch %d of %s: finished before, as the ledger shows; skipped", batch_id, query_id)
        case BatchFailed(query_id, batch_id, error, _):
            _LOG.error("batch %d of %s failed: %s", batch_id, query_id, error)
        case SyphonTurn(syphon, _, moved):
            totals = ", ".join(
                f"{sum(getattr(each, name) for each in moved)} {name.replace('_', '-')}"
                for name in ("moved", "deferred", "dead_lettered")
            )
            _LOG.info("syphon %s: %s", syphon, totals)
        case Warned(text):
            _LOG.warning("%s", text)


def summary(entities: Sequence[RouteCounts]) -> str:
    """The counts of all routes that were used, over all entities."""
    routes = ("primary", "backlog", "overflow", "quarantine", "abandoned")
    sums = {route: sum(getattr(entity, route) for entity in entities) for route in routes}
    return ", ".join(f"{count} {route}" for route, count in sums.items() if count) or "nothing"


def tell(listeners: Sequence[Listener], event: Event) -> None:
    """Tell all listeners; one that raises keeps the event from nobody."""
    for listener in listeners:
        try:
            listener(event)
        except Exception:  # noqa: BLE001 - whatever it is, the batch goes on
            _LOG.exception("a listener failed on %s", type(event).__name__)
