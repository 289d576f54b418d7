"""How a pair stands: what waits in the backlog, what Delta knows, and how long the drain takes at the present rate.

Puts the two looks together and estimates; it does not look itself. Pure.
"""

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_sb_sink.backlog_look import BacklogLook
    from spark_sb_sink.state_look import StateLook


class From(Enum):
    """Where a rate was taken from."""

    TRANSFERS = "transfers"
    LOOKS = "two looks"
    NOWHERE = "nowhere"


@dataclass(frozen=True, slots=True)
class DrainTime:
    """Seconds until the backlog queues are empty, at messages a second; `told` says it in words, also why not."""

    seconds: float | None
    rate: float | None
    source: From
    told: str


@dataclass(frozen=True, slots=True)
class Status:
    """All that is known of a pair."""

    backlog: "BacklogLook"
    state: "StateLook | None"
    drain: DrainTime
    notes: tuple[str, ...]


def status(
    backlog: "BacklogLook", state: "StateLook | None", before: "BacklogLook | None" = None, note: str = ""
) -> Status:
    """Of a look at the backlog, maybe one some time before it, and maybe one at Delta."""
    return Status(backlog, state, drain_time(backlog, state, before), (*backlog.notes, *([note] if note else [])))


def drain_time(backlog: "BacklogLook", state: "StateLook | None", before: "BacklogLook | None" = None) -> DrainTime:
    """Two looks are the present; without them, what the syphons have noted lately; else it is not known."""
    waiting = backlog.active
    if waiting == 0:
        return DrainTime(0.0, None, From.NOWHERE, "nothing waits in the backlog queues")
    if not backlog.there:
        return DrainTime(None, None, From.NOWHERE, "not known, as there is no backlog queue")
    if waiting is None:
        return DrainTime(None, None, From.NOWHERE, "not known, as not all queues could be seen")
    if before is not None and before.active is not None and backlog.at is not None and before.at is not None:
        seconds = (backlog.at - before.at).total_seconds()
        rate = (before.active - waiting) / seconds if seconds > 0 else 0.0
        if rate <= 0:
            grown = "grew" if rate < 0 else "stayed as it was"
            return DrainTime(
                None, rate, From.LOOKS, f"not draining: the backlog {grown} in {seconds:.0f} s (is a syphon running?)"
            )
        return DrainTime(waiting / rate, rate, From.LOOKS, f"at {rate:,.1f} messages/s, as in the last {seconds:.0f} s")
    if state is not None and state.rate:
        return DrainTime(
            waiting / state.rate,
            state.rate,
            From.TRANSFERS,
            f"at {state.rate:,.1f} messages/s, as the syphons noted in the last minutes",
        )
    if state is not None:
        told = "not known: no syphon has noted a transfer in the last minutes (is one running?)"
    else:
        told = "not known without the option state; --look-again 10s looks twice and tells"
    return DrainTime(None, None, From.NOWHERE, told)
