"""The faults that the broker can be told to have, as frozen descriptions, and the board on which they hang.

Which fault is in force for which entity is decided here; what it does to the wire is in the modules that speak it.
"""

import itertools
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, TypeVar

from spark_sb_sink.broker.fields import wrong_field


class FaultError(ValueError):
    """A fault that cannot be; the text says which field and what it takes."""


@dataclass(frozen=True)
class Fault:
    """Base of all faults. `count` limits how often it strikes; None is until it is undone."""

    kind: ClassVar[str] = ""


@dataclass(frozen=True)
class Refuse(Fault):
    """Cut the open connections and refuse new ones. For one entity: cut at its attach, and those that use it."""

    kind: ClassVar[str] = "refuse"


@dataclass(frozen=True)
class BlackHole(Fault):
    """Take TCP connections and never answer. `attach`: answer until a link is attached, then never again."""

    kind: ClassVar[str] = "black-hole"
    after: Literal["accept", "attach"] = "accept"


@dataclass(frozen=True)
class CbsAnswer(Fault):
    """`$cbs` answers every token with this status."""

    kind: ClassVar[str] = "cbs"
    status: int = 503
    description: str = "injected"


@dataclass(frozen=True)
class Reject(Fault):
    """Reject messages with an AMQP condition; `info=False` leaves the error without its `info` map."""

    kind: ClassVar[str] = "reject"
    condition: str = "amqp:internal-error"
    description: str = "injected"
    info: bool = True
    count: int | None = None
    at: Literal["transfer", "attach"] = "transfer"


@dataclass(frozen=True)
class Busy(Fault):
    """Server-busy for the next `count` messages, or for what comes above `above_rate` messages a second."""

    kind: ClassVar[str] = "busy"
    count: int | None = None
    above_rate: float | None = None
    description: str = "The request was terminated because the namespace is being throttled. Please wait 10 seconds."


@dataclass(frozen=True)
class LoseAck(Fault):
    """Accept and store, then cut the connection instead of acknowledging."""

    kind: ClassVar[str] = "lose-ack"
    count: int | None = None


@dataclass(frozen=True)
class CutMidBatch(Fault):
    """Cut the connection once `after_bytes` of a transfer came in, before it is whole; nothing of it is stored."""

    kind: ClassVar[str] = "cut-mid-batch"
    after_bytes: int = 1
    count: int | None = None


@dataclass(frozen=True)
class Shape(Fault):
    """`latency` seconds more for a round trip, `bandwidth` bytes a second in each direction, on every connection."""

    kind: ClassVar[str] = "shape"
    latency: float = 0.0
    bandwidth: float | None = None


@dataclass(frozen=True)
class LateVisible(Fault):
    """Messages are accepted at once and become visible `seconds` later, as while the service heals its storage."""

    kind: ClassVar[str] = "late-visible"
    seconds: float = 60.0


@dataclass(frozen=True)
class FullQuota(Fault):
    """The entity (or every entity) refuses messages as if its size limit were reached."""

    kind: ClassVar[str] = "full-quota"


@dataclass(frozen=True)
class ManagementAnswer(Fault):
    """`$management` answers with this status and does nothing; `operation`, as `peek-message`, leaves the others."""

    kind: ClassVar[str] = "management"
    status: int = 500
    condition: str = "amqp:internal-error"
    description: str = "injected"
    operation: str | None = None
    count: int | None = None


_ALL = (
    Refuse,
    BlackHole,
    CbsAnswer,
    Reject,
    Busy,
    LoseAck,
    CutMidBatch,
    Shape,
    LateVisible,
    FullQuota,
    ManagementAnswer,
)
KINDS: dict[str, type[Fault]] = {fault.kind: fault for fault in _ALL}


def to_json(fault: Fault) -> dict[str, Any]:
    return {"kind": fault.kind, **asdict(fault)}


def from_json(data: dict[str, Any]) -> Fault:
    """The fault that this describes, or `FaultError` with one sentence that says what is wrong."""
    given = dict(data)
    kind = given.pop("kind", None)
    cls = KINDS.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise FaultError(f"kind is {kind!r}; it takes one of {', '.join(sorted(KINDS))}")
    wrong = wrong_field(cls, given)
    if wrong is not None:
        raise FaultError(f"{kind}: {wrong}")
    fault = cls(**given)
    _check(fault)
    return fault


def _check(fault: Fault) -> None:
    match fault:
        case CbsAnswer(status=status) if not 100 <= status <= 599:
            raise FaultError(f"cbs: status is {status!r}; it takes a number from 100 to 599")
        case ManagementAnswer(status=status) if not 400 <= status <= 599:
            raise FaultError(f"management: status is {status!r}; it takes a number from 400 to 599")
        case Reject(condition=condition) | ManagementAnswer(condition=condition) if not (
            condition and condition.isascii()
        ):
            raise FaultError(
                f"{fault.kind}: condition is {condition!r}; it takes an AMQP symbol such as amqp:internal-error"
            )
        case CutMidBatch(after_bytes=size) if size < 1:
            raise FaultError(f"cut-mid-batch: after_bytes is {size!r}; it takes at least 1")
        case Busy(above_rate=rate) if rate is not None and rate <= 0:
            raise FaultError(f"busy: above_rate is {rate!r}; it takes a number above 0")
        case Shape(latency=latency, bandwidth=bandwidth) if latency < 0 or (bandwidth is not None and bandwidth <= 0):
            raise FaultError("shape: latency takes 0 or more seconds, bandwidth more than 0 bytes a second")
        case LateVisible(seconds=seconds) if seconds < 0:
            raise FaultError(f"late-visible: seconds is {seconds!r}; it takes 0 or more")
        case _:
            pass
    count = getattr(fault, "count", None)
    if count is not None and count < 1:
        raise FaultError(f"{fault.kind}: count is {count!r}; it takes a whole number of at least 1, or nothing")


@dataclass
class Hung:
    """A fault in force, with what is left of its count."""

    id: int
    entity: str | None
    fault: Fault
    left: int | None
    allowance: "Allowance | None" = None
    """For a fault above a rate: what may pass still. One for all that the fault is for, so a namespace shares it."""

    def as_json(self) -> dict[str, Any]:
        return {"id": self.id, "entity": self.entity, "left": self.left, **to_json(self.fault)}


class Allowance:
    """So many a second, and no more than a second's worth saved up."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._saved = rate
        self._at: float | None = None

    def take(self, units: int, now: float) -> bool:
        """Whether so many may pass. More than a second's worth passes a full allowance, and is paid off after."""
        if self._at is not None:
            # A clock that was moved back gives nothing and takes nothing.
            self._saved = min(self._rate, self._saved + max(0.0, now - self._at) * self._rate)
        self._at = now
        if self._saved < min(units, self._rate):
            return False
        self._saved -= units
        return True


F = TypeVar("F", bound=Fault)


class FaultBoard:
    """The faults in force in one namespace. A fault with no entity holds for all of them."""

    def __init__(self) -> None:
        self._hung: dict[int, Hung] = {}
        self._ids = itertools.count(1)

    def __bool__(self) -> bool:
        return bool(self._hung)

    def __iter__(self) -> Iterator[Hung]:
        return iter(list(self._hung.values()))

    def hang(self, fault: Fault, entity: str | None) -> Hung:
        hung = Hung(next(self._ids), entity, fault, getattr(fault, "count", None))
        if isinstance(fault, Busy) and fault.above_rate is not None:
            hung.allowance = Allowance(fault.above_rate)
        self._hung[hung.id] = hung
        return hung

    def undo(self, fault_id: int) -> Hung | None:
        return self._hung.pop(fault_id, None)

    def clear(self) -> None:
        self._hung.clear()

    def find(self, cls: type[F], entity: str | None, *, exact: bool = False) -> F | None:
        """The fault of that kind that holds for the entity; with `exact` not one for the whole namespace."""
        for _, fault in self._matching(cls, entity, exact):
            return fault
        return None

    def black_hole(self, entity: str | None, after: str) -> bool:
        """Whether a black hole of that kind holds for the entity, whatever others there are."""
        wanted = entity.lower() if entity is not None else None
        return any(
            isinstance(hung.fault, BlackHole)
            and hung.fault.after == after
            and (hung.entity is None or hung.entity.lower() == wanted)
            for hung in self._hung.values()
        )

    def black_holes(self) -> set[tuple[str | None, str]]:
        """The entity of each black hole, None for the namespace, and when it opens."""
        return {(hung.entity, hung.fault.after) for hung in self if isinstance(hung.fault, BlackHole)}

    def shape(self, entities: Collection[str]) -> Shape | None:
        """What all shapes for the namespace and for these come to: the most latency, the least bandwidth."""
        found = [
            hung.fault
            for hung in self
            if isinstance(hung.fault, Shape) and (hung.entity is None or hung.entity.lower() in entities)
        ]
        if not found:
            return None
        limits = [shape.bandwidth for shape in found if shape.bandwidth is not None]
        return Shape(max(shape.latency for shape in found), min(limits, default=None))

    def strike(self, cls: type[F], entity: str | None, units: int = 1) -> F | None:
        """Like `find`, and takes `units` off its count; the last one undoes it."""
        for hung, fault in self._matching(cls, entity):
            self._spend(hung, units)
            return fault
        return None

    def rejection(self, entity: str, at: Literal["transfer", "attach"], units: int = 1) -> Reject | None:
        """The `Reject` that strikes there, with `units` taken off its count."""
        for hung, fault in self._matching(Reject, entity):
            if fault.at == at:
                self._spend(hung, units)
                return fault
        return None

    def management(self, entity: str, operation: str) -> ManagementAnswer | None:
        """The answer that strikes that request."""
        for hung, fault in self._matching(ManagementAnswer, entity):
            if fault.operation in (None, operation):
                self._spend(hung, 1)
                return fault
        return None

    def busy(self, entity: str, units: int, now: float) -> Busy | None:
        """The `Busy` that strikes these messages; one above a rate lets through what its rate allows."""
        for hung, fault in self._matching(Busy, entity):
            if hung.allowance is None or not hung.allowance.take(units, now):
                self._spend(hung, units)
                return fault
        return None

    def _spend(self, hung: Hung, units: int) -> None:
        if hung.left is not None:
            hung.left -= units
            if hung.left <= 0:
                del self._hung[hung.id]

    def _matching(self, cls: type[F], entity: str | None, exact: bool = False) -> Iterator[tuple[Hung, F]]:
        if not self._hung:
            return
        wanted = entity.lower() if entity is not None else None
        # One for the entity strikes before one for the namespace, and of two alike the one that was hung first.
        for hung in sorted(self._hung.values(), key=lambda hung: hung.entity is None):
            if not isinstance(hung.fault, cls):
                continue
            if hung.entity is None:
                if not exact or wanted is None:
                    yield hung, hung.fault
            elif hung.entity.lower() == wanted:
                yield hung, hung.fault
