"""A receiver of one session, named or the next available; the attach is answered once a session is locked."""

from typing import Any

from proton import Data, Described, symbol

from spark_sb_sink.broker.connection import refuse
from spark_sb_sink.broker.outgoing_link import OutgoingLink
from spark_sb_sink.broker.queue import RefusedError, Session

SESSION_FILTER = "com.microsoft:session-filter"
TICKS_AT_EPOCH = 621355968000000000
SESSION_WAIT = 60.0
LONGEST_SESSION_WAIT = 24 * 3600.0

NO_FILTER = object()


def session_filter(link: Any) -> Any:
    """The session that a receiver asks for: a name, None for the next available, or `NO_FILTER`."""
    data = link.remote_source.filter
    data.rewind()
    if not data.next():
        return NO_FILTER
    filters = data.get_object()
    if not isinstance(filters, dict) or SESSION_FILTER not in filters:
        return NO_FILTER
    value = filters[SESSION_FILTER]
    if isinstance(value, Described):
        value = value.value
    return None if value is None else str(value)


class SessionLink(OutgoingLink):
    """A receiver of one session, named or the next available; the attach is answered once a session is locked."""

    def _start(self) -> None:
        wanted = session_filter(self.link)
        if wanted is NO_FILTER:
            raise RefusedError(
                "amqp:not-allowed",
                "It is not possible for an entity that requires sessions to create a non-sessionful message receiver.",
            )
        self._waiting = False
        if wanted is None:
            self._wait_for_any()
            return
        session = self.store.session(wanted)
        if session.owner is not None:
            raise RefusedError(
                "com.microsoft:session-cannot-be-locked",
                f"The requested session '{wanted}' cannot be accepted. It may be locked by another receiver.",
                410,
            )
        self._take(session)

    def _wait_for_any(self) -> None:
        session = self.store.ready_sessions()
        if session is not None:
            self._take(session)
            return
        self._waiting = True
        properties = self.link.remote_properties
        wait = SESSION_WAIT
        if isinstance(properties, Data):
            properties.rewind()
            found = properties.get_object() if properties.next() else None
        else:
            found = properties
        asked = found.get("com.microsoft:timeout") if isinstance(found, dict) else None
        if isinstance(asked, int) and asked >= 0:
            wait = min(asked / 1000, LONGEST_SESSION_WAIT)
        self._timer = self.connection.loop.call_later(wait, self._give_up)
        self.connection.listener.pumps.add(self.store, self)

    def _give_up(self) -> None:
        if not self._waiting:
            return
        self._waiting = False
        self.connection.links.pop(self.link, None)
        self.gone()
        refuse(self.link, RefusedError("com.microsoft:timeout", "No session became available in time."))
        self.connection.flush()

    def _take(self, session: Session) -> None:
        if self._waiting:
            self._waiting = False
            self._timer.cancel()
        self.session = session
        self.store.lock_session(session, self, self.namespace.clock.now())
        link = self.link
        link.source.copy(link.remote_source)
        data = link.source.filter
        data.clear()
        data.put_dict({symbol(SESSION_FILTER): session.id})
        link.target.copy(link.remote_target)
        link.snd_settle_mode = link.remote_snd_settle_mode
        link.rcv_settle_mode = link.remote_rcv_settle_mode
        ticks = TICKS_AT_EPOCH + int(session.locked_until * 10_000_000)
        link.properties = {symbol("com.microsoft:locked-until-utc"): ticks}
        link.open()
        self.connection.listener.pumps.add(self.store, self)

    def pump(self, limit: int = 1_000_000) -> int:
        if self.session is None:
            if self._waiting:
                session = self.store.ready_sessions()
                if session is not None:
                    self._take(session)
                    self.connection.flush()
            return 0
        if self.session.owner is not self:
            # The lock ran out: the service detaches the link.
            self.detach(
                RefusedError(
                    "com.microsoft:session-lock-lost",
                    "The session lock has expired on the MessageSession. Accept a new MessageSession.",
                    410,
                )
            )
            return 0
        return super().pump(limit)

    def gone(self) -> None:
        super().gone()
        if self._waiting:
            self._waiting = False
            self._timer.cancel()
        if self.session is not None and self.session.owner is self:
            self.store.release_session(self.session, self.namespace.clock.now(), expired=False)
