"""The sender links of one process: opened when first needed, kept, capped, and lent to one user at a time.

Knows nothing of messages or failover. A link that broke is thrown away, never mended.
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from spark_sb_sink.errors import ClosedError
from spark_sb_sink.transport import Link, Side, Transport

JUST_USED = 1.0
"""Seconds for which a link is not closed to make room for an entity that fails."""
RECYCLE_AFTER = 540.0
"""The service detaches a link that was idle for ten minutes; one minute before that it is closed in good order."""


@dataclass
class _Place:
    """Where a link for one entity is, or will be."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    link: Link | None = None
    last_used: float = 0.0
    users: int = 0


@dataclass(frozen=True, slots=True)
class Lent:
    """A link in use. `idle`: seconds that it was unused before; 0 for one just opened."""

    link: Link
    idle: float


class Links:
    """At most `most` links, those of both sides together; the least used make room."""

    def __init__(self, transport: Transport, most: int, clock: Callable[[], float]) -> None:
        self._transport = transport
        self._most = most
        self._clock = clock
        self._places: OrderedDict[tuple[Side, str], _Place] = OrderedDict()
        self._room = asyncio.Condition()
        self._opening = 0
        self._wanting = 0
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def open_count(self) -> int:
        return sum(place.link is not None for place in self._places.values()) + self._opening

    @contextlib.asynccontextmanager
    async def use(self, side: Side, path: str, *, doubtful: bool = False) -> AsyncIterator[Lent]:
        """The link to an entity, for one user at a time. Opens it if there is none.

        `doubtful`: the entity has failed lately. However many of those there are, a quarter of the links is kept for
        the others, and no link that was just used is closed for them.
        """
        self._check()
        place = self._places.setdefault((side, path), _Place())
        place.users += 1
        try:
            async with place.lock:
                idle = 0.0
                if place.link is not None and place.link.broken:
                    # The service has detached it while nobody used it, as it does after ten minutes: no fault.
                    await self.discard(side, path, place.link)
                if place.link is None:
                    place.link = await self._open(side, path, doubtful)
                else:
                    idle = self._clock() - place.last_used
                self._places.move_to_end((side, path))
                try:
                    yield Lent(place.link, idle)
                finally:
                    place.last_used = self._clock()
                    if place.link is not None and (place.link.broken or self._closed):
                        await self.discard(side, path, place.link)
        finally:
            place.users -= 1
            if not place.users and place.link is None:
                del self._places[side, path]
            async with self._room:
                self._room.notify_all()
            if self._wanting:
                # Who waits for room comes before who comes back for the next batch, or it would wait for all of them.
                await asyncio.sleep(0)

    def _check(self) -> None:
        if self._closed:
            raise ClosedError("The paired factory")

    async def discard(self, side: Side, path: str, link: Link) -> None:
        """Throw this link away, unless it is gone and another is in its place. Its close goes on by itself."""
        place = self._places.get((side, path))
        if place is not None and place.link is link:
            self._close_soon(link)
            place.link = None
            async with self._room:
                self._room.notify_all()

    async def drop(self, side: Side) -> None:
        """Close all links of one side, also those in use."""
        for (where, path), place in list(self._places.items()):
            if where is side and place.link is not None:
                await self.discard(side, path, place.link)
        await self._closings()

    async def _open(self, side: Side, path: str, doubtful: bool) -> Link:
        most = self._most - self._most // 4 if doubtful else self._most
        spared = JUST_USED if doubtful else 0.0
        async with self._room:
            self._wanting += 1
            try:
                while not self._closed and self.open_count >= most and not self._make_room(spared):
                    if not doubtful:
                        await self._room.wait()
                        continue
                    # Looks again by itself, as a link that was just used is not so for ever. Not with wait_for, which
                    # up to Python 3.11 forgets a cancellation that comes at the moment of being notified.
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(JUST_USED):
                            await self._room.wait()
            finally:
                self._wanting -= 1
            self._check()
            self._opening += 1
        try:
            return await self._transport.open(side, path)
        finally:
            self._opening -= 1

    def _make_room(self, spared: float) -> bool:
        """Close the link that was longest unused, if any is free and was unused for so many seconds."""
        now = self._clock()
        for key, place in self._places.items():
            if place.link is not None and not place.users and now - place.last_used >= spared:
                self._close_soon(place.link)
                del self._places[key]
                return True
        return False

    async def recycle(self) -> None:
        """Close links that were idle for so long that the service is about to."""
        now = self._clock()
        for key, place in list(self._places.items()):
            if place.link is not None and not place.users and now - place.last_used >= RECYCLE_AFTER:
                self._close_soon(place.link)
                del self._places[key]

    def _close_soon(self, link: Link) -> None:
        task = asyncio.get_running_loop().create_task(link.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close all links, those in use as soon as they are given back."""
        self._closed = True
        for place in self._places.values():
            if place.link is not None and not place.users:
                self._close_soon(place.link)
                place.link = None
        async with self._room:
            self._room.notify_all()
        await self._closings()

    async def _closings(self) -> None:
        if self._closing:
            await asyncio.gather(*self._closing, return_exceptions=True)
