"""What the board hands out: the turn to ping, the changes of state, the whole at one moment."""

from dataclasses import dataclass

from spark_sb_sink.failover import EntityState, PingBusy, PingFailed, PingSucceeded, StateChange
from spark_sb_sink.rotation import Keep, QueueState


@dataclass(frozen=True, slots=True)
class Lease:
    """The turn to ping one entity: nobody else pings it for a while, whether this ping is reported or not."""

    entity: str
    epoch: int
    begun_at: float

    def succeeded(self) -> PingSucceeded:
        """To record when the ping was accepted."""
        return PingSucceeded(self.epoch, self.begun_at)

    def failed(self, reason: str) -> PingFailed:
        """To record when the ping met an entity fault."""
        return PingFailed(self.epoch, self.begun_at, reason)

    def busy(self, wait: float) -> PingBusy:
        """To record when the ping was throttled."""
        return PingBusy(self.epoch, self.begun_at, wait)


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in the history of a board."""

    board: str
    number: int


@dataclass(frozen=True, slots=True)
class NotedChange:
    """A change of state as the board noted it. Tasks of one executor report the same ones: `board` and `number` tell
    them apart. The time in `change` means nothing on another machine; `wall_time` is for people, and decides nothing.
    """

    board: str
    number: int
    change: StateChange
    wall_time: float


@dataclass(frozen=True, slots=True)
class Changes:
    """What happened since a mark, oldest first. `missed`: how many more there were that are forgotten by now."""

    noted: tuple[NotedChange, ...]
    mark: Mark
    missed: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole board at one moment."""

    board: str
    at: float
    entities: tuple[EntityState, ...]
    queues: tuple[QueueState, ...]
    kept: tuple[Keep, ...]
    noted: tuple[NotedChange, ...]
