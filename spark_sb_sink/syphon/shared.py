"""What all queues of a drain share: the pair, the rate, the ledger, and whether a run is on. Moves nothing itself."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from spark_sb_sink.errors import SendError
from spark_sb_sink.factory import PairedFactory
from spark_sb_sink.faults import Fault
from spark_sb_sink.options import Options
from spark_sb_sink.sender import Pair
from spark_sb_sink.syphon.rate import Bucket, in_hand
from spark_sb_sink.syphon.receipts import Ledger
from spark_sb_sink.transport import Side

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Refusal:
    """An entity has refused our claim. Until a time of the drain's clock it is believed to go on doing so."""

    error: SendError
    until: float


@dataclass
class Shared:
    """Lives in the factory's loop."""

    factory: PairedFactory
    bucket: Bucket
    wall_clock: Callable[[], float] = time.time
    ledger: Ledger = field(default_factory=Ledger)
    receiving: asyncio.Event = field(default_factory=asyncio.Event)
    """Set during a run: new messages are taken up."""
    sending: asyncio.Event = field(default_factory=asyncio.Event)
    """Set until what a run has in hand is to be given back."""
    refused: dict[str, Refusal] = field(default_factory=dict)
    """Entities that refused our claim when they were last tried."""
    faulted: asyncio.Event = field(default_factory=asyncio.Event)
    busy_until: dict[str, float] = field(default_factory=dict)
    """Entities that throttled us, and until when they asked us to wait."""
    queues: list[Callable[[], int]] = field(default_factory=list)
    """For each queue, how many of its messages are in hand that only wait for the rate."""

    @property
    def options(self) -> Options:
        return self.factory.options

    @property
    def pair(self) -> Pair:
        return self.factory.pair

    @property
    def ended(self) -> bool:
        """A side of the pair has come to its end, here or by somebody else who has the factory."""
        return self.faulted.is_set() or self.factory.closed or self.factory.ended

    def now(self) -> float:
        return self.pair.clock.now()

    def refuses(self, path: str) -> bool:
        """Whether the entity is not to be tried now. From time to time it is, with a few messages."""
        refusal = self.refused.get(path)
        return refusal is not None and self.now() < refusal.until

    def busy(self, path: str) -> float:
        """Seconds for which the entity has asked us to wait still."""
        return max(0.0, self.busy_until.get(path, 0.0) - self.now())

    def refusals(self) -> list[SendError]:
        """What is to be told of entities that refuse our claim."""
        return [refusal.error for path, refusal in self.refused.items() if self.refuses(path)]

    def allowed(self, mine: int) -> int | None:
        """How many more a queue may take in hand which has so many; None where there is no rate."""
        if self.bucket.rate is None:
            return None
        return in_hand(self.bucket.rate, mine, sum(each() for each in self.queues), len(self.queues))

    async def pause(self, seconds: float) -> None:
        """Wait, but not beyond the end of a run."""
        until = self.now() + seconds
        while self.sending.is_set() and (left := until - self.now()) > 0:
            await self.pair.clock.sleep(min(left, 0.1))

    async def fault(self, side: Side, where: str, fault: Fault) -> None:
        """A credential was refused: that is the end of this side, and five seconds later of the other."""
        if not self.faulted.is_set():
            self.faulted.set()
            _LOG.error("the %s side refuses the syphon at %s: %s", side.value, where, fault)
            await self.factory.fault(side, f"its credential was refused at {where}: {fault}")
