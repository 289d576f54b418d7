"""The broker's idea of the time: the machine's clock plus an offset that a test can move.

What the service would decide by its clock is decided by this one; deadlines of sockets are real time.
"""

import time
from dataclasses import dataclass


@dataclass
class Clock:
    """Seconds since the epoch, UTC. Moving the offset makes locks, TTLs and windows run out without waiting."""

    offset: float = 0.0

    def now(self) -> float:
        return time.time() + self.offset

    def seen_by_clients(self) -> float:
        """The machine's own time: what a client, whose clock no test moves, writes into its tokens."""
        return time.time()

    def advance(self, seconds: float) -> None:
        self.offset += seconds
