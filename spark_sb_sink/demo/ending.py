"""The last words: the reckoning as text, what went wrong in a few lines, and what to type next."""

import re
from collections.abc import Sequence
from pathlib import Path

from spark_sb_sink.demo.display import table_of
from spark_sb_sink.demo.reckoning import Reckoning
from spark_sb_sink.errors import SparkSbSinkError, redact

MOST_LINES = 12
NEXT = (
    "{program} demo --keep demo-state",
    "{program} doctor --conf-file conf/connection-strings.toml",
    "{program} pair --conf-file conf/connection-strings.toml --dry-run",
)
"""The tables that were written; whether one's own namespaces will do; what would be made there."""
NEXT_TITLE = "What to type next (the last two with SERVICEBUS_PRIMARY and _SECONDARY set):"
NO_JARS = (
    "Spark could not get Delta's jars. The first time it needs Maven Central: look at network and proxy, try again."
)
_TELLING = re.compile(r"unresolved dependency|not found|Exception|Error|ERROR|Caused by|refused|denied|No space", re.I)
_NOISE = re.compile(r"^\s*(at |\.\.\. \d+ more|:: |WARN|\d\d/\d\d/\d\d .* WARN |WARNING: |Setting default|To adjust)")


def reckoning_lines(found: Reckoning, seconds: float) -> list[str]:
    """At most twenty lines."""
    per_outage = ", ".join(f"{outage.failover_s:.1f} s for {outage.what}" for outage in found.outages)
    back = ", ".join(f"{outage.failback_s:.1f} s for {outage.what}" for outage in found.outages)
    repeated = found.dropped_duplicates
    rows = [
        ("sent", f"{found.sent:,}", "messages of the source, each acknowledged by the sink"),
        ("direct", f"{found.primary:,}", "taken by the primary at once"),
        ("by backlog", f"{found.backlog:,}", "taken by backlog queues of the secondary"),
        ("by overflow", f"{found.overflow:,}", "to Delta, for when both namespaces are out"),
        ("quarantined", f"{found.quarantine:,}", "to Delta, for rows that can be no message"),
        ("drained", f"{found.drained:,}", f"brought home by the syphon, in {found.drain_s:.1f} s"),
        ("delivered", f"{found.delivered:,}", "at the entity that each was for"),
        ("lost", f"{found.lost:,}", ""),
        ("duplicates", f"{found.duplicates:,}", f"{repeated:,} repeated sends were kept out" if repeated else ""),
        ("failover", f"{found.failover_s:.1f} s", per_outage),
        ("failback", f"{found.failback_s:.1f} s", back),
        (
            "operations",
            f"{found.operations_primary + found.operations_secondary:,}",
            f"billed: primary {found.operations_primary:,}, secondary {found.operations_secondary:,}; "
            f"pings {found.pings:,}",
        ),
    ]
    return ["Reckoning, from the broker's journal", *table_of(rows), *_verdict(found, seconds)]


def _verdict(found: Reckoning, seconds: float) -> list[str]:
    wrong = [f"The books do not balance: {sentence}" for sentence in found.disagreements]
    if found.lost:
        wrong.insert(
            0, f"{found.lost:,} of {found.sent:,} messages were lost. That is a fault of ours: please report it."
        )
    came = "" if found.duplicates else ", and nothing came twice"
    return wrong or [f"Nothing was lost{came}. All of it took {seconds:.0f} s."]


def next_lines(kept: Path | None, program: str) -> list[str]:
    """Where to go from here."""
    told = [] if kept is None else ["", f"The Delta tables are kept in {kept}."]
    return [*told, "", NEXT_TITLE, *(f"  {line.format(program=program)}" for line in NEXT)]


def failure_lines(error: BaseException, log: str) -> list[str]:
    """What happened, and what the log says that may be the reason."""
    text = redact(str(error)).strip()
    first = text.splitlines()[0] if text else type(error).__name__
    if isinstance(error, SparkSbSinkError):
        return [first]
    reasons = [line.strip() for line in redact(log).splitlines() if _TELLING.search(line) and not _NOISE.match(line)]
    cure = [NO_JARS] if "unresolved dependency" in log else []
    return [first, *(f"  | {line}" for line in _some(list(dict.fromkeys(reasons)))), *cure]


def _some(lines: Sequence[str]) -> list[str]:
    """The first ones, which are the causes, and the last ones, which are the ends."""
    shown = [line[:300] for line in lines]
    if len(shown) <= MOST_LINES:
        return shown
    half = MOST_LINES // 2
    return [*shown[:half], f"({len(shown) - 2 * half} more)", *shown[-half:]]
