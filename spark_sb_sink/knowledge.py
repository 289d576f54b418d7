"""What the driver knows of all executors: states of entities, hints for the next micro-batch, totals. Pure."""

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from spark_sb_sink.board_records import NotedChange
from spark_sb_sink.events import RouteCounts
from spark_sb_sink.failover import Health
from spark_sb_sink.receipts import TaskReport

MOST_BOARDS = 2000
"""Executors come and go; those not heard of for longest are forgotten, which costs a hint at most."""

WORST_FIRST = (Health.FAILED_OVER, Health.PROBATION, Health.SUSPECT, Health.HEALTHY)


@dataclass(frozen=True, slots=True)
class EntityView:
    """What is known of one entity: the worst that an executor believes of it, and where its rows went so far."""

    entity: str
    health: Health
    reason: str
    changed_at: float | None
    """Seconds since 1970."""
    counts: RouteCounts


@dataclass(frozen=True, slots=True)
class SinkState:
    """All that the sink knows, at one moment."""

    batches: int
    rows: int
    entities: tuple[EntityView, ...]

    def __getitem__(self, entity: str) -> EntityView:
        for view in self.entities:
            if view.entity == entity:
                return view
        raise KeyError(entity)


class Knowledge:
    """Learns from the reports of tasks. Micro-batches take turns; people may ask for the state at any time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[str, int] = {}
        self._believed: dict[str, dict[str, NotedChange]] = {}
        self._totals: dict[str, RouteCounts] = {}
        self._batches = self._rows = 0

    def hints(self) -> tuple[str, ...]:
        """The entities that some executor has failed over."""
        return tuple(
            entity
            for entity, boards in self._believed.items()
            if any(noted.change.after is Health.FAILED_OVER for noted in boards.values())
        )

    def known(self) -> Mapping[str, int]:
        """The last change that we know of, by board."""
        return dict(self._last)

    def learn(self, reports: Sequence[TaskReport], hinted: Sequence[str]) -> list[NotedChange]:
        """The changes that are new, oldest first on each board. `hinted` is what the tasks had been told."""
        with self._lock:
            return self._learn(reports, hinted)

    def _learn(self, reports: Sequence[TaskReport], hinted: Sequence[str]) -> list[NotedChange]:
        new: dict[tuple[str, int], NotedChange] = {}
        for report in reports:
            for noted in report.changes:
                if noted.number > self._last.get(noted.board, 0):
                    new[noted.board, noted.number] = noted
        told = [new[key] for key in sorted(new, key=lambda key: (key[0], key[1]))]
        for noted in told:
            self._believed.setdefault(noted.change.entity, {})[noted.board] = noted
        self._forget_refuted(reports, hinted)
        for report in reports:
            last = max((noted.number for noted in report.changes), default=0)
            last = max(last, self._last.pop(report.board, 0))
            self._last[report.board] = last  # heard of last, so forgotten last
        while len(self._last) > MOST_BOARDS:
            gone = next(iter(self._last))
            del self._last[gone]
            for boards in self._believed.values():
                boards.pop(gone, None)
        return sorted(told, key=lambda noted: noted.wall_time)

    def _forget_refuted(self, reports: Sequence[TaskReport], hinted: Sequence[str]) -> None:
        """An executor that is gone never says that an entity is back; one that was hinted and still sends does."""
        heard = {report.board for report in reports}
        for entity in hinted:
            sent = any(
                lane.entity == entity and lane.primary and not lane.backlog
                for report in reports
                for lane in report.entities
            )
            if sent:
                boards = self._believed.get(entity, {})
                self._believed[entity] = {board: noted for board, noted in boards.items() if board in heard}

    def count(self, rows: int, entities: Iterable[RouteCounts]) -> None:
        """Add a micro-batch to the totals."""
        with self._lock:
            self._batches += 1
            self._rows += rows
            for counts in entities:
                known = self._totals.get(counts.entity, RouteCounts(counts.entity))
                self._totals[counts.entity] = added(known, counts)

    def state(self) -> SinkState:
        """Everything, for people."""
        with self._lock:
            names = sorted(self._totals.keys() | self._believed.keys())
            return SinkState(self._batches, self._rows, tuple(self._view(name) for name in names))

    def _view(self, entity: str) -> EntityView:
        counts = self._totals.get(entity, RouteCounts(entity))
        boards = self._believed.get(entity, {}).values()
        worst = min(boards, key=lambda noted: WORST_FIRST.index(noted.change.after), default=None)
        if worst is None:
            return EntityView(entity, Health.HEALTHY, "", None, counts)
        return EntityView(entity, worst.change.after, worst.change.reason, worst.wall_time, counts)


def added(one: RouteCounts, other: RouteCounts) -> RouteCounts:
    """Both together, under the name of the first."""
    return replace(
        one,
        primary=one.primary + other.primary,
        backlog=one.backlog + other.backlog,
        overflow=one.overflow + other.overflow,
        quarantine=one.quarantine + other.quarantine,
        abandoned=one.abandoned + other.abandoned,
    )


def counts_of(reports: Iterable[TaskReport]) -> tuple[RouteCounts, ...]:
    """What became of the rows of each entity, over all tasks."""
    found: dict[str, RouteCounts] = {}
    for report in reports:
        for lane in report.entities:
            counts = RouteCounts(
                lane.entity, lane.primary, lane.backlog, lane.overflow, lane.quarantine, lane.abandoned
            )
            found[lane.entity] = added(found[lane.entity], counts) if lane.entity in found else counts
    return tuple(found[entity] for entity in sorted(found))
