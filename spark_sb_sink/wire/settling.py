"""What is done with a delivery, what the broker said to that, and delivery ids as ranges."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from spark_sb_sink.wire import sdk

LOCK_LOST = "com.microsoft:message-lock-lost"


class Action(Enum):
    """Named as the management node names them."""

    COMPLETE = "completed"
    ABANDON = "abandoned"
    DEFER = "defered"  # the service's own spelling
    DEAD_LETTER = "suspended"
    RELEASE = "released"  # only on a link: back into the queue, as if it had never been delivered


@dataclass(frozen=True, slots=True)
class Outcome:
    """What to do with a delivery; reason and description are for the dead-letter queue."""

    action: Action
    reason: str = ""
    description: str = ""


COMPLETE = Outcome(Action.COMPLETE)
ABANDON = Outcome(Action.ABANDON)
DEFER = Outcome(Action.DEFER)
RELEASE = Outcome(Action.RELEASE)


def dead_letter(reason: str, description: str = "") -> Outcome:
    return Outcome(Action.DEAD_LETTER, reason, description)


class Settled(Enum):
    """What became of a settlement."""

    ACCEPTED = "accepted"
    LOCK_LOST = "lock lost"  # somebody else may have the message by now
    UNKNOWN = "unknown"  # no answer, or one that leaves it open


@dataclass(frozen=True, slots=True)
class SettleResult:
    """A delivery's own answer; `condition` is what the broker said where it did not accept."""

    settled: Settled
    condition: str | None = None


ACCEPTED = SettleResult(Settled.ACCEPTED)
UNKNOWN = SettleResult(Settled.UNKNOWN)


def ranges(ids: Iterable[int]) -> list[tuple[int, int]]:
    """The ids as first and last of each run without a gap. None goes round at 2³², though ids do."""
    found: list[tuple[int, int]] = []
    for number in sorted(set(ids)):
        if found and found[-1][1] + 1 == number:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def delivery_state(outcome: Outcome) -> Any:
    """The outcome as the SDK's delivery state."""
    match outcome.action:
        case Action.COMPLETE:
            return sdk.Accepted()
        case Action.ABANDON:
            return sdk.Modified(delivery_failed=True, undeliverable_here=False)
        case Action.DEFER:
            return sdk.Modified(delivery_failed=True, undeliverable_here=True)
        case Action.RELEASE:
            return sdk.Released()
        case Action.DEAD_LETTER:
            info = {sdk.DEAD_LETTER_REASON: outcome.reason, sdk.DEAD_LETTER_DESCRIPTION: outcome.description}
            error = sdk.AMQPError(condition=sdk.DEAD_LETTER_CONDITION, description=outcome.description, info=info)
            return sdk.Rejected(error=error)


_ECHO = {
    Action.COMPLETE: "accepted",
    Action.ABANDON: "modified",
    Action.DEFER: "modified",
    Action.RELEASE: "released",
    Action.DEAD_LETTER: "rejected",
}


def result_of(state: Any, action: Action) -> SettleResult:
    """What the broker answered. It echoes the outcome that it applied; an error in it means that it did not."""
    if not isinstance(state, dict):
        return UNKNOWN
    rejected = state.get("rejected")
    error = rejected[0] if rejected else None
    if error:
        condition = bytes(error[0]).decode("ascii", "replace")
        return SettleResult(Settled.LOCK_LOST if condition == LOCK_LOST else Settled.UNKNOWN, condition)
    return ACCEPTED if _ECHO[action] in state else UNKNOWN
