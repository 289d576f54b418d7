"""`spark-sb-sink replay`: quarantined messages sent again, after the cause was mended. The sending is in `replay`."""

import signal
import threading
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from spark_sb_sink.commands import fail
from spark_sb_sink.commands.common import AsJson, ConfFile, console, load, number, print_json, table, told_errors
from spark_sb_sink.commands.quarantine import Entities, MessageIds, Reason, Where, filter_of
from spark_sb_sink.commands.spark import require_state, session
from spark_sb_sink.stopping import caught

if TYPE_CHECKING:
    from spark_sb_sink.replay import Replayed


def replay(
    conf_file: ConfFile,
    where: Where = None,
    entity: Entities = None,
    message_id: MessageIds = None,
    reason: Reason = None,
    everything: Annotated[bool, typer.Option("--all", help="All that waits there.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be sent, and send nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Send quarantined messages to their entities, as they were and with the same message ids.

    Mend the cause first, then name what is meant: a filter or --all is required. What is sent is noted, and not sent
    again by the next replay. Exit code 1 where something that was meant stays, also where a signal stopped it.

    Example: spark-sb-sink replay --conf-file conf/topics-with-sessions.toml --entity orders --reason "no such entity"
    """
    options = load(conf_file)
    require_state(options, "replay")
    if everything == bool(where or entity or message_id or reason):
        fail("replay takes a filter (--where, --entity, --message-id, --reason), or --all, and not both.")
    with told_errors():
        stop = threading.Event()
        with session("replay") as spark, caught(stop, signal.SIGTERM, signal.SIGINT):
            from spark_sb_sink import replay as replaying

            wanted = filter_of(where, entity, message_id, reason)
            if dry_run:
                outcome = replaying.plan(spark, options, wanted)
            else:
                outcome = replaying.replay(spark, options, wanted, stop=stop.is_set)
    if as_json:
        print_json(_json(outcome, dry_run))
    else:
        _show(outcome, dry_run)
    raise typer.Exit(0 if dry_run or outcome.complete else 1)


def _json(outcome: "Replayed", dry_run: bool) -> dict[str, object]:
    return {
        "dry_run": dry_run,
        "matched": outcome.matched,
        "sent": outcome.sent,
        "primary": outcome.primary,
        "backlog": outcome.backlog,
        "entities": outcome.entities,
        "kept": outcome.kept_count,
        "kept_rows": [{**asdict(each.row), "why": each.why} for each in outcome.kept],
        "errors": [str(error) for error in outcome.errors],
        "stopped": outcome.stopped,
    }


def _show(outcome: "Replayed", dry_run: bool) -> None:
    out = console()
    if not outcome.matched:
        out.print("Nothing of the kind waits in quarantine.")
        return
    if outcome.entities:
        shown = table("entity", "would be sent" if dry_run else "sent", right=("would be sent", "sent"))
        for entity, count in sorted(outcome.entities.items()):
            shown.add_row(entity, number(count))
        out.print(shown)
        out.print()
    if outcome.kept:
        left = table("stays", "entity", "why")
        for each in outcome.kept[:50]:
            left.add_row(each.row.message_id or each.row.digest[:12], each.row.entity or "(none)", each.why)
        out.print(left)
        out.print()
    for error in outcome.errors:
        out.print(str(error))
    if dry_run:
        would = sum(outcome.entities.values())
        out.print(f"{number(outcome.matched)} rows are meant; {number(would)} would be sent.")
        return
    out.print(
        f"{number(outcome.sent)} of {number(outcome.matched)} sent, {number(outcome.primary)} of them to the primary, "
        f"{number(outcome.backlog)} to the backlog; {number(outcome.matched - outcome.sent)} left in quarantine."
    )
    if outcome.stopped:
        out.print("Stopped by a signal: what was sent is noted, and the same command goes on with the rest.")
