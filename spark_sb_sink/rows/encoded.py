"""What a batch of rows became: the messages of each entity, and the rows that are none."""

from dataclasses import dataclass, field
from typing import NamedTuple


class BadRow(NamedTuple):
    """A row that cannot be a message: for quarantine."""

    row: int
    reason: str


@dataclass(frozen=True, slots=True)
class EntityMessages:
    """The messages for one entity, and for each the number of its row in the batch."""

    messages: list[bytes] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """Every row of the batch: a message of one entity, or bad."""

    entities: dict[str, EntityMessages]
    bad: list[BadRow]
