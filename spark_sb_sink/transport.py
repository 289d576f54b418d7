"""What the sending side needs of a network: links that take encoded transfers. The AMQP one is in `amqp_transport`.

The one in memory is for tests and for users who want to see what a pipeline would send.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from spark_sb_sink.amqp import split_sections
from spark_sb_sink.errors import ClosedError


class Side(Enum):
    """The two namespaces of a pair."""

    PRIMARY = "primary"
    SECONDARY = "secondary"


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """Bytes of one message and of one batch that a link takes."""

    max_message_size: int
    max_batch_size: int


class Link(Protocol):
    """An open sender link to one entity. One call at a time; broken once a call was cut off."""

    @property
    def limits(self) -> LinkLimits: ...

    @property
    def broken(self) -> bool: ...

    async def send(self, payload: bytes, *, batch: bool) -> None:
        """Returns when the broker has accepted it, within the deadline; raises what `faults.symptom_of` reads."""

    async def close(self) -> None:
        """In bounded time; never raises."""


class Transport(Protocol):
    """Opens links on both sides, each within the deadline."""

    async def open(self, side: Side, path: str) -> Link: ...

    async def ping_by_link(self, side: Side, path: str) -> None:
        """Attach and detach, send nothing."""

    async def close(self) -> None: ...


class TooLargeError(Exception):
    """What a link in memory says of more bytes than it takes, by the condition that a broker has for that."""

    condition = "amqp:link:message-size-exceeded"


@dataclass
class MemoryTransport:
    """Keeps what it is sent. `fail` is asked before each call and may raise, and a link that failed so is broken;
    `refuse` may name an error for a message, and then nothing of its transfer is kept and the link lives."""

    limits: LinkLimits = LinkLimits(256 * 1024, 256 * 1024)
    fail: Callable[[str, Side, str], None] = field(default=lambda what, side, path: None)
    refuse: Callable[[bytes], Exception | None] = field(default=lambda message: None)
    seen: Callable[[bytes], None] = field(default=lambda payload: None)
    sent: dict[tuple[Side, str], list[bytes]] = field(default_factory=lambda: defaultdict(list))
    transfers: int = 0
    opened: int = 0
    closed: int = 0
    ended: bool = False

    async def open(self, side: Side, path: str) -> "MemoryLink":
        self._ask("open", side, path)
        self.opened += 1
        return MemoryLink(self, side, path)

    async def ping_by_link(self, side: Side, path: str) -> None:
        """Sends nothing, as there is nothing to attach."""
        self._ask("ping", side, path)

    def _ask(self, what: str, side: Side, path: str) -> None:
        if self.ended:
            raise ClosedError(f"The {side.value} side of the pair")
        self.fail(what, side, path)

    async def close(self) -> None:
        """From now on no link opens."""
        self.ended = True


@dataclass
class MemoryLink:
    """A link of a `MemoryTransport`."""

    transport: MemoryTransport
    side: Side
    path: str
    broken: bool = False
    closed: bool = False

    @property
    def limits(self) -> LinkLimits:
        return self.transport.limits

    async def send(self, payload: bytes, *, batch: bool) -> None:
        if self.closed or self.broken:
            raise ClosedError(f"The link to {self.path}")
        try:
            self.transport.fail("send", self.side, self.path)
        except BaseException:
            self.broken = True
            raise
        most = self.limits.max_batch_size if batch else self.limits.max_message_size
        if len(payload) > most:
            raise TooLargeError(f"{len(payload)} bytes, the link takes {most}")
        found = members(payload) if batch else [payload]
        for error in map(self.transport.refuse, found):
            if error is not None:
                raise error
        self.transport.seen(payload)
        self.transport.transfers += 1
        self.transport.sent[self.side, self.path] += found

    async def close(self) -> None:
        self.transport.closed += not self.closed
        self.closed = True


def members(payload: bytes) -> list[bytes]:
    """The messages of a batch's payload."""
    found = []
    for section in split_sections(payload):
        if section.descriptor == 0x75:
            head = 2 if payload[section.value] == 0xA0 else 5
            found.append(payload[section.value + head : section.end])
    return found
