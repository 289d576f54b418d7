"""The backlog queues: their names, how they are made, and how one that exists differs from that.

Pure. Names are compared as the service does, without regard to case.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from spark_sb_sink.durations import format_duration

FOREVER = timedelta(days=10675199, hours=2, minutes=48, seconds=5, microseconds=477580)
"""Stands for TimeSpan.MaxValue, which a timedelta cannot hold; the SDK reads it as up to a microsecond more."""
FOREVER_ON_THE_WIRE = "P10675199DT2H48M5.4775807S"

AS_MADE: Mapping[str, Any] = {
    "max_size_in_megabytes": 5120,
    "max_delivery_count": 2147483647,
    "default_message_time_to_live": FOREVER,
    "auto_delete_on_idle": FOREVER,
    "lock_duration": timedelta(minutes=1),
    "dead_lettering_on_message_expiration": True,
    "enable_batched_operations": True,
}
"""What is set when a queue is made, by the SDK's names. A syphon that fails must use up neither message nor queue."""

# The defaults of the service that a backlog queue relies on. With sessions it would refuse what the envelope cleared;
# with duplicate detection it would drop a message whose id another entity has used; with forwarding it keeps nothing.
_BY_DEFAULT: Mapping[str, Any] = {
    "requires_session": False,
    "requires_duplicate_detection": False,
    "enable_partitioning": False,
    "forward_to": None,
    "forward_dead_lettered_messages_to": None,
    "status": "Active",
}


UNSAFE: Mapping[str, str] = {
    "requires_duplicate_detection": "it would drop a message whose id another entity has used",
    "requires_session": "it would refuse all messages, as the envelope clears their session ids",
    "forward_to": "it would pass on what the syphon looks for in it",
}
"""What of a queue breaks a promise, and how. Of all others the worst is that messages expire or that it is slow."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A property of a queue that is not as we make it."""

    queue: str
    property: str
    got: str
    expected: str

    def __str__(self) -> str:
        return f"{self.queue} has {self.property} {self.got} where {self.expected} is meant"


@dataclass(frozen=True, slots=True)
class Sorted:
    """The queues of a namespace, as far as they are of this pair, by number and then by name."""

    found: tuple[str, ...]
    missing: tuple[str, ...]
    extra: tuple[str, ...]


def names(path: str, count: int) -> tuple[str, ...]:
    """The backlog queues under the path, 0 … count-1."""
    return tuple(f"{path}{number}" for number in range(count))


def some(queues: Sequence[str]) -> str:
    """For a sentence: the first three, and how many more."""
    more = f" and {len(queues) - 3} more" if len(queues) > 3 else ""
    return ", ".join(queues[:3]) + more


def sort(path: str, count: int, existing: Iterable[str]) -> Sorted:
    """Which backlog queues are there, which are missing, and what else is under the path."""
    there = {name.lower(): name for name in existing if name.lower().startswith(path.lower())}
    ours = names(path, count)
    used = {name.lower() for name in ours}
    return Sorted(
        found=tuple(name for name in ours if name.lower() in there),
        missing=tuple(name for name in ours if name.lower() not in there),
        extra=tuple(sorted((name for low, name in there.items() if low not in used), key=_by_number)),
    )


def _by_number(name: str) -> tuple[bool, int, str]:
    last = name.rpartition("/")[2]
    number = last.isascii() and last.isdecimal() and len(last) < 10
    return not number, int(last) if number else 0, name


def differences(queue: str, properties: object) -> tuple[Difference, ...]:
    """How the properties of a queue, as the SDK gives them, differ from how we make one."""
    found = []
    for name, expected in {**AS_MADE, **_BY_DEFAULT}.items():
        got = getattr(properties, name, None)
        if not _same(got, expected):
            found.append(Difference(queue, name, _shown(got), _shown(expected)))
    return tuple(found)


def _same(got: object, expected: object) -> bool:
    if expected == FOREVER:
        return isinstance(got, timedelta) and got >= FOREVER
    if isinstance(expected, str):
        return str(getattr(got, "value", got)) == expected
    if not expected:  # a property that this version of the service does not tell has its default
        return not got
    return got == expected


def _shown(value: object) -> str:
    if isinstance(value, timedelta):
        return "forever" if value >= FOREVER else format_duration(value.total_seconds())
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else str(getattr(value, "value", value))
