"""The sender links of one process: opened when first needed, kept, capped, and lent to one user at a time.

Knows nothing of messages or failover. A link that broke is thrown away, never mended.
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from spark_sb_sink.errors import ClosedError
from spark_sb_sink.transport import Link, Side, Transport

JUST_USED = 1.0
"""Seconds for which a link is not closed to make room for an entity that fails; one such entity at a time waits no
longer than this for a link that is free."""
RECYCLE_AFTER = 540.0
"""The service detaches a link that was idle for ten minutes; one minute before that it is closed in good order."""


@dataclass
class _Place:
    """Where a link for one entity is, or will be."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    link: Link | None = None
    opening: bool = False
    doubtful: bool = False
    last_used: float = 0.0
    users: int = 0

    @property
    def held(self) -> bool:
        """Whether it counts: its link is open, or about to be."""
        return self.link is not None or self.opening


@dataclass(frozen=True, slots=True)
class Lent:
    """A link in use. `idle`: seconds that it was unused before; 0 for one just opened."""

    link: Link
    idle: float


class Turn:
    """The right to one link, until it is given back: nobody else opens or uses it."""

    def __init__(self, lend: Callable[[bool, Callable[[], bool]], Awaitable[Lent | None]]) -> None:
        self._lend = lend

    async def link(self, *, doubtful: bool = False, still: Callable[[], bool] = lambda: True) -> Lent | None:
        """The link, opened if there is none. None where `still` says, after a wait, that it is not wanted any more.

        `doubtful`: the entity has failed lately. However many of those there are, a quarter of the links is kept for
        the others, and of links that were just used no more than one is closed for them.
        """
        return await self._lend(doubtful, still)


class Links:
    """At most `most` links, those of both sides together; the least used make room."""

    def __init__(self, transport: Transport, most: int, clock: Callable[[], float]) -> None:
        self._transport = transport
        self._most = most
        self._most_doubtful = max(1, most - max(1, most // 4))
        self._clock = clock
        self._places: OrderedDict[tuple[Side, str], _Place] = OrderedDict()
        self._room = asyncio.Condition()
        self._wanting = 0
        self._overdue = 0
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def open_count(self) -> int:
        return sum(place.held for place in self._places.values())

    @contextlib.asynccontextmanager
    async def use(self, side: Side, path: str, *, doubtful: bool = False) -> AsyncIterator[Lent]:
        """The link to an entity, for one user at a time. Opens it if there is none."""
        async with self.turn(side, path) as turn:
            lent = await turn.link(doubtful=doubtful)
            if lent is not None:
                yield lent

    @contextlib.asynccontextmanager
    async def turn(self, side: Side, path: str) -> AsyncIterator[Turn]:
        """The link to an entity, for one user at a time, who says when and whether it is to be opened.

        What the user does about a failure before giving the turn back, who waits for it knows by `still`.
        """
        self._check()
        key = side, path
        place = self._places.setdefault(key, _Place())
        place.users += 1
        waits = place.users > 1  # also where the lock is free just now, and somebody else is to have it next
        lent: Lent | None = None

        async def lend(doubtful: bool, still: Callable[[], bool]) -> Lent | None:
            nonlocal lent
            lent = None if waits and not still() else await self._lend(key, place, doubtful, still)
            return lent

        try:
            async with place.lock:
                try:
                    yield Turn(lend)
                finally:
                    if lent is not None:
                        place.last_used = self._clock()
                    if place.link is not None and (place.link.broken or self._closed):
                        await self.discard(side, path, place.link)
        finally:
            place.users -= 1
            if not place.users and place.link is None:
                del self._places[key]
            async with self._room:
                self._room.notify_all()
            if self._wanting:
                # Who waits for room comes before who comes back for the next batch, or it would wait for all of them.
                await asyncio.sleep(0)

    async def _lend(
        self, key: tuple[Side, str], place: _Place, doubtful: bool, still: Callable[[], bool]
    ) -> Lent | None:
        idle = 0.0
        if place.link is not None and place.link.broken:
            # The service has detached it while nobody used it, as it does after ten minutes: no fault.
            await self.discard(*key, place.link)
        if place.link is None:
            if not await self._take_room(place, doubtful, still):
                return None
            try:
                place.link = await self._transport.open(*key)
            finally:
                place.opening = False
        else:
            place.doubtful = doubtful
            idle = self._clock() - place.last_used
        self._places.move_to_end(key)
        return Lent(place.link, idle)

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

    async def _take_room(self, place: _Place, doubtful: bool, still: Callable[[], bool]) -> bool:
        """Wait until this place may have a link. False where that is not wanted any more."""
        waited = overdue = False
        time = asyncio.get_running_loop().time
        patience = time() + JUST_USED
        async with self._room:
            self._wanting += 1
            try:
                while not self._closed and (room := self._room_for(doubtful, overdue)) is None:
                    waited = True
                    # Not with wait_for, which up to Python 3.11 forgets a cancellation that comes at the moment of
                    # being notified. A doubtful one looks again by itself: no link was just used for ever.
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(JUST_USED if doubtful else None):
                            await self._room.wait()
                    if doubtful and time() >= patience:
                        patience = time() + JUST_USED
                        self._overdue += not overdue
                        overdue = True
                        if not still():
                            return False
            finally:
                self._wanting -= 1
                if overdue:
                    self._overdue -= 1
                    self._room.notify_all()  # those that stood back for it
            self._check()
            if waited and not still():
                return False
            for key in room or ():
                self._close_place(key)
            place.opening, place.doubtful = True, doubtful
        return True

    def _room_for(self, doubtful: bool, overdue: bool) -> list[tuple[Side, str]] | None:
        """Which link is to be closed for one more, if any; None where there is no room."""
        held = [place for place in self._places.values() if place.held]
        failing = sum(place.doubtful for place in held)
        if doubtful and failing >= self._most_doubtful:
            return self._longest_unused(JUST_USED, of_doubtful=True)
        if len(held) < self._most:
            return []
        if doubtful:
            # Busy lanes leave no link unused. One of theirs is owed to those that fail, or these would never be tried.
            return self._longest_unused(0.0 if overdue and not failing else JUST_USED)
        return None if self._overdue and not failing else self._longest_unused(0.0)

    def _longest_unused(self, spared: float, *, of_doubtful: bool = False) -> list[tuple[Side, str]] | None:
        """The link that was longest unused, if any is free and was unused for so many seconds."""
        now = self._clock()
        for key, place in self._places.items():
            if place.link is None or place.users or now - place.last_used < spared:
                continue
            if place.doubtful or not of_doubtful:
                return [key]
        return None

    def _close_place(self, key: tuple[Side, str]) -> None:
        link = self._places.pop(key).link
        if link is not None:
            self._close_soon(link)

    async def recycle(self) -> None:
        """Close links that were idle for so long that the service is about to."""
        now = self._clock()
        for key, place in list(self._places.items()):
            if place.link is not None and not place.users and now - place.last_used >= RECYCLE_AFTER:
                self._close_place(key)

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
