"""What became of messages: counts per entity and route, and what could not be sent, with the reason."""

from dataclasses import dataclass, field

from spark_sb_sink.errors import AllBacklogsOutError, SendError
from spark_sb_sink.failover import StateChange


@dataclass(frozen=True, slots=True)
class Unsent:
    """One message that did not go out: its place in the stream of its entity, its bytes, and why."""

    position: int
    message: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class EntityReport:
    """All that became of the messages of one entity. `error` is set where the batch has to fail."""

    entity: str
    primary: int = 0
    backlog: int = 0
    overflow: tuple[Unsent, ...] = ()
    rejected: tuple[Unsent, ...] = ()
    abandoned: int = 0
    """Messages that were not tried any more after `error`."""
    error: SendError | None = None
    all_out: AllBacklogsOutError | None = None
    changes: tuple[StateChange, ...] = ()
    transfers: int = 0
    primary_bytes: int = 0
    untried: tuple[bytes, ...] = ()
    """Those that were abandoned."""

    @property
    def total(self) -> int:
        return self.primary + self.backlog + len(self.overflow) + len(self.rejected) + self.abandoned


@dataclass
class Tally:
    """An entity's report in the making."""

    entity: str
    primary: int = 0
    backlog: int = 0
    overflow: list[Unsent] = field(default_factory=list)
    rejected: list[Unsent] = field(default_factory=list)
    abandoned: int = 0
    error: SendError | None = None
    all_out: AllBacklogsOutError | None = None
    changes: list[StateChange] = field(default_factory=list)
    transfers: int = 0
    primary_bytes: int = 0
    untried: list[bytes] = field(default_factory=list)

    def clear(self) -> None:
        """Begin anew."""
        self.primary = self.backlog = self.abandoned = self.transfers = self.primary_bytes = 0
        self.overflow, self.rejected, self.changes, self.untried = [], [], [], []
        self.error = self.all_out = None

    def report(self) -> EntityReport:
        return EntityReport(
            self.entity,
            self.primary,
            self.backlog,
            tuple(self.overflow),
            tuple(self.rejected),
            self.abandoned,
            self.error,
            self.all_out,
            tuple(self.changes),
            self.transfers,
            self.primary_bytes,
            tuple(self.untried),
        )
