"""Sorts failures by what to do about them: the table of failures, and the only place that knows it.

`symptom_of` takes an exception apart by its looks (class names, condition, status code, text), so that neither this
module nor what uses it imports Azure; `sort` is a pure function from such a symptom to a `Fault`. What is then done
about a fault, and when, is not known here. The SDK's own `_retryable` is not looked at: it answers another question.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from spark_sb_sink.errors import redact

THROTTLE_WAIT = 10.0
"""Seconds to wait when throttled, unless the service asks for more."""
LONGEST_THROTTLE_WAIT = 600.0
"""No text of the service makes us wait longer than this, in seconds."""
IDLE_LINK = 60.0
"""A link unused for more than this many seconds may be dead without anybody being at fault."""

_LONGEST_TEXT = 1000


class Kind(Enum):
    """What to do about a failure; DESIGN calls the rows of its table so."""

    ENTITY_FAULT = "entity fault"
    THROTTLED = "throttled"
    MISCONFIGURED = "misconfigured"
    BAD_MESSAGE = "bad message"
    STALE_LINK = "stale link"


class Phase(Enum):
    """What was going on when it failed."""

    ENCODE = "encode"  # before anything went out: the row, the codec, the envelope
    TOKEN = "token"  # noqa: S105 - fetching a token, or putting it to $cbs
    OPEN = "open"  # connecting, attaching
    SEND = "send"  # the transfer went out, or may have gone out
    DISPOSITION = "disposition"  # the broker answered on a live link: rejected
    DEADLINE = "deadline"  # our own clock cut it off


@dataclass(frozen=True, slots=True)
class Symptom:
    """A failure as it looks from outside."""

    names: tuple[str, ...]
    """Class names of the exception in the order of its MRO, then those of the exceptions inside it."""
    phase: Phase = Phase.SEND
    condition: str | None = None
    status_code: int | None = None
    text: str = ""
    link_idle: float = 0.0
    """Seconds that the link was unused before this call; 0 for a link just opened."""
    seen_healthy: bool = True
    """Whether this entity ever accepted anything."""
    unreachable: bool = False
    """Whether the text, of which `text` is the beginning, speaks of a network that did not answer."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A failure sorted. `reason` is the row of the table, `text` what the service or the library said, redacted."""

    kind: Kind
    reason: str
    text: str = ""
    wait: float = 0.0
    """Seconds to wait before sending again; only when throttled."""
    split: bool = False
    """Some message of the batch is bad: halve the batch until it stands alone."""
    claim: str | None = None
    """The claim that the service says is missing."""
    status_code: int | None = None

    @property
    def claim_missing(self) -> bool:
        """Refused for what we may do, rather than for who we are."""
        return self.kind is Kind.MISCONFIGURED and (self.claim is not None or self.status_code == 403)

    @property
    def too_large(self) -> bool:
        """Refused for its size alone: elsewhere it may fit."""
        return self.kind is Kind.BAD_MESSAGE and self.reason == _TOO_LARGE_ROW

    @property
    def lock_lost(self) -> bool:
        """The message is not ours any more: its lock is over, or it is gone."""
        return self.reason == _LOCK_LOST_ROW

    def __str__(self) -> str:
        return f"{self.reason}: {self.text}" if self.text else self.reason


_BUSY = "com.microsoft:server-busy"
_TOO_LARGE = "amqp:link:message-size-exceeded"
_TOO_LARGE_ROW = "too large"
_LOCK_LOST_ROW = "lock lost"
_LOST = frozenset({"MessageLockLostError", "MessageNotFoundError"})
_NOT_FOUND = "amqp:not-found"
_UNAUTHORISED = frozenset({"amqp:unauthorized-access", "com.microsoft:auth-failed"})
# What a broker rejects a message with, when the message is to blame. Anything else it rejects with is its own trouble.
_BAD = frozenset(
    {
        "amqp:not-allowed",
        "amqp:precondition-failed",
        "amqp:decode-error",
        "amqp:invalid-field",
        "com.microsoft:argument-error",
        "com.microsoft:argument-out-of-range",
        "com.microsoft:precondition-failed",
    }
)
# The SDK's way to say that it does not know what became of a message.
_NO_ANSWER = frozenset({None, "amqp:unknown-error", "amqp:client-error", "amqp:socket-error"})

_REFUSED_STATUS = frozenset({401, 403})
_NETWORK = frozenset({"ServiceRequestError", "ServiceResponseError", "OSError"})
# azure-identity's chained credentials, DefaultAzureCredential among them, keep of the errors inside them only the text.
_NETWORK_TEXT = re.compile(
    r"cannot connect to host|connection (?:refused|reset|aborted|timed out)|name or service not known|name resolution"
    r"|getaddrinfo failed|network is unreachable|no route to host|max retries exceeded|timed? ?out|server disconnected"
    r"|no response from the imds endpoint",
    re.I,
)
# What Entra says of a credential that it has looked at, whatever else a chain tried besides.
_JUDGED = re.compile(r"\bAADSTS\d")


def _token_unreachable(s: Symptom) -> bool:
    """A credential that never got as far as being judged: the network, or the token service itself, is out."""
    if s.phase is not Phase.TOKEN or "TokenAuthFailure" in s.names:
        return False
    if s.status_code is not None:
        return s.status_code >= 500 or s.status_code in (408, 429)
    if "FileNotFoundError" in s.names:  # an OSError too, but of a missing token file
        return False
    return not _NETWORK.isdisjoint(s.names) or ("ClientAuthenticationError" in s.names and s.unreachable)


def _not_found(s: Symptom) -> bool:
    """The entity itself is not there. A connection closed with not-found speaks of the namespace."""
    return "AMQPConnectionError" not in s.names and (
        "MessagingEntityNotFoundError" in s.names
        or s.condition == _NOT_FOUND
        or ("TokenAuthFailure" in s.names and s.status_code == 404)
    )


def _named(name: str) -> Callable[[Symptom], bool]:
    return lambda s: name in s.names


@dataclass(frozen=True, slots=True)
class _Row:
    reason: str
    kind: Kind
    holds: Callable[[Symptom], bool]
    split: bool = False


# The first row that holds decides.
_TABLE: tuple[_Row, ...] = (
    _Row("not sendable", Kind.BAD_MESSAGE, lambda s: s.phase is Phase.ENCODE),
    _Row("deadline", Kind.ENTITY_FAULT, lambda s: s.phase is Phase.DEADLINE),
    _Row("busy", Kind.THROTTLED, lambda s: "ServiceBusServerBusyError" in s.names or s.condition == _BUSY),
    _Row(
        _TOO_LARGE_ROW,
        Kind.BAD_MESSAGE,
        lambda s: "MessageSizeExceededError" in s.names or s.condition == _TOO_LARGE,
        split=True,
    ),
    _Row("no token", Kind.ENTITY_FAULT, _token_unreachable),
    _Row("token refused", Kind.MISCONFIGURED, lambda s: s.phase is Phase.TOKEN and s.status_code in _REFUSED_STATUS),
    # Every message of the batch is for this entity, so there is nothing to split.
    _Row("no such entity", Kind.BAD_MESSAGE, lambda s: _not_found(s) and not s.seen_healthy),
    _Row("entity gone", Kind.ENTITY_FAULT, _not_found),
    _Row("token not taken", Kind.ENTITY_FAULT, _named("AuthenticationException")),
    _Row("credential refused", Kind.MISCONFIGURED, _named("ClientAuthenticationError")),
    _Row(
        "not authorised",
        Kind.MISCONFIGURED,
        lambda s: (
            "ServiceBusAuthorizationError" in s.names
            or s.condition in _UNAUTHORISED
            or s.status_code in _REFUSED_STATUS
        ),
    ),
    _Row("rejected", Kind.BAD_MESSAGE, lambda s: s.phase is Phase.DISPOSITION and s.condition in _BAD, split=True),
    # From here on all are entity faults; the rows only give them better names than the last one.
    _Row(_LOCK_LOST_ROW, Kind.ENTITY_FAULT, lambda s: not _LOST.isdisjoint(s.names)),
    _Row("disabled", Kind.ENTITY_FAULT, _named("MessagingEntityDisabledError")),
    _Row("quota exceeded", Kind.ENTITY_FAULT, _named("ServiceBusQuotaExceededError")),
    _Row("timed out", Kind.ENTITY_FAULT, _named("OperationTimeoutError")),
    _Row("connection lost", Kind.ENTITY_FAULT, _named("ServiceBusConnectionError")),
    _Row("no connection", Kind.ENTITY_FAULT, _named("ServiceBusCommunicationError")),
    _Row("service error", Kind.ENTITY_FAULT, _named("ServiceBusError")),
    # What nobody thought of is tried again and then diverted: slower than it might be, never lost.
    _Row("unknown", Kind.ENTITY_FAULT, lambda s: True),
)


def sort(symptom: Symptom) -> Fault:
    """What a failure is, and with that what to do about it."""
    row = next(row for row in _TABLE if row.holds(symptom))
    answered = symptom.phase in (Phase.DISPOSITION, Phase.ENCODE)
    kind, reason = row.kind, row.reason
    if symptom.link_idle > IDLE_LINK and not answered and _may_be_stale(kind, symptom.phase):
        kind, reason = Kind.STALE_LINK, f"idle link, {reason}"
    return Fault(
        kind=kind,
        reason=reason,
        text=redact(symptom.text),
        wait=throttle_wait(symptom.text) if kind is Kind.THROTTLED else 0.0,
        split=row.split,
        claim=_claim(symptom.text) if kind is Kind.MISCONFIGURED else None,
        status_code=symptom.status_code,
    )


def _may_be_stale(kind: Kind, phase: Phase) -> bool:
    # A link whose token ran out while it was idle is detached as unauthorised: opened again it gets a new token. What
    # $cbs or the token service refuses, they have just looked at.
    return kind is Kind.ENTITY_FAULT or (kind is Kind.MISCONFIGURED and phase is not Phase.TOKEN)


_WAIT = re.compile(
    r"(?:wait(?:ing)?(?:\s+for)?(?:\s+at\s+least)?|(?:retry|try again)[\s-]+(?:after|in))[:\s]+"
    r"(\d{1,2}:\d{2}:\d{2}\b|\d{1,9}(?:\.\d{1,3})?)"
    r"\s*(ms\b|milliseconds?|s\b|secs?\b|seconds?|m\b|mins?\b|minutes?|h\b|hours?)?",
    re.I,
)


def throttle_wait(text: str) -> float:
    """Seconds to wait when throttled: ten, or what the text asks for if that is more ("Please wait 20 seconds …")."""
    asked = 0.0
    for number, unit in _WAIT.findall(text):
        seconds = 0.0
        for part in number.split(":"):  # a TimeSpan as .NET writes it, or a number
            seconds = seconds * 60 + float(part)
        asked = max(asked, seconds * _seconds_of(unit.lower()))
    return min(max(asked, THROTTLE_WAIT), LONGEST_THROTTLE_WAIT)


def _seconds_of(unit: str) -> float:
    if unit.startswith(("ms", "milli")):
        return 0.001
    return {"m": 60.0, "h": 3600.0}.get(unit[:1], 1.0)


def _claim(text: str) -> str | None:
    match = re.search(r"\b(Manage|Send|Listen)\b[^.]{0,40}?\bclaim", text, re.I)
    return match[1].capitalize() if match else None


def symptom_of(
    error: BaseException,
    *,
    during: Phase = Phase.SEND,
    link_idle: float = 0.0,
    seen_healthy: bool = True,
) -> Symptom:
    """How an exception looks from outside. `during` says what was asked for; the exception may know it better."""
    chain = list(_chain(error))
    names = tuple(dict.fromkeys(cls.__name__ for e in chain for cls in type(e).__mro__ if cls not in _EVERY))
    conditions = [c for c in (_condition(e) for e in chain) if c is not None]
    condition = next((c for c in conditions if c not in _NO_ANSWER), conditions[0] if conditions else None)
    phase = _phase(during, error, names, condition)
    text = _text(chain)
    return Symptom(
        names=names,
        phase=phase,
        condition=condition,
        status_code=next((code for code in map(_status_code, chain) if code is not None), None),
        text=text[:_LONGEST_TEXT],
        link_idle=link_idle,
        seen_healthy=seen_healthy,
        # Of the whole text: a chain tells first, and at length, of all the credentials that nobody meant to use.
        unreachable=_NETWORK_TEXT.search(text) is not None and _JUDGED.search(text) is None,
    )


_EVERY = frozenset({object, BaseException, Exception})


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The exception, then those inside it, outermost first, each once."""
    waiting, seen = [error], set[int]()
    while waiting:
        found = waiting.pop(0)
        if id(found) in seen:
            continue
        seen.add(id(found))
        yield found
        inside = (getattr(found, name, None) for name in ("inner_exception", "inner_error", "error", "__cause__"))
        waiting.extend(e for e in inside if isinstance(e, BaseException))


def _phase(during: Phase, error: BaseException, names: tuple[str, ...], condition: str | None) -> Phase:
    if during is Phase.ENCODE:
        return during
    if isinstance(error, TimeoutError):  # not wrapped by the SDK, so it is our own
        return Phase.DEADLINE
    if not {"AuthenticationException", "ClientAuthenticationError"}.isdisjoint(names):
        return Phase.TOKEN
    rejected = "MessageException" in names and "MessageSettlementUnconfirmed" not in names
    if rejected and condition not in _NO_ANSWER:
        return Phase.DISPOSITION
    return during


def _condition(error: BaseException) -> str | None:
    for name in ("_condition", "condition", "error_condition"):
        value = getattr(error, name, None)
        if isinstance(value, bytes):
            return value.decode("utf-8", "replace")
        if isinstance(value, str) and value:
            return value
    return None


def _status_code(error: BaseException) -> int | None:
    for name in ("_status_code", "status_code"):
        value = getattr(error, name, None)
        if isinstance(value, str) and value.isascii() and value.isdigit():
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def _text(chain: list[BaseException]) -> str:
    told: list[str] = []
    for error in chain:
        try:
            text = " ".join(str(error).split())
        except Exception:  # noqa: BLE001 - an exception that cannot even tell what it is
            text = ""
        text = text or type(error).__name__
        if not any(text in known for known in told):
            told.append(text)
    return redact(" | ".join(told))  # to be cut only then, lest half a secret goes unrecognised
