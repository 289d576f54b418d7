"""`spark-sb-sink quarantine list|show`: what no namespace took, and why. Reads only."""

import base64
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spark_sb_sink.commands import fail
from spark_sb_sink.commands.common import (
    AsJson,
    ConfFile,
    console,
    load,
    moment,
    number,
    print_json,
    table,
    told_errors,
)
from spark_sb_sink.commands.spark import require_state, session
from spark_sb_sink.durations import spoken_duration

if TYPE_CHECKING:
    from spark_sb_sink.quarantine import Filter

Where = Annotated[
    str | None, typer.Option(help='A condition in Spark SQL over the table\'s columns, such as "batch_id = 7".')
]
Entities = Annotated[list[str] | None, typer.Option("--entity", help="Only for this entity. Repeatable.")]
MessageIds = Annotated[list[str] | None, typer.Option("--message-id", help="Only this message. Repeatable.")]
Reason = Annotated[str | None, typer.Option(help="Only where the reason has this text.")]

group = typer.Typer(
    name="quarantine", help="What no namespace took, and why.", no_args_is_help=True, add_completion=False
)


def filter_of(
    where: str | None, entity: list[str] | None, message_id: list[str] | None, reason: str | None
) -> "Filter":
    """The flags as a filter."""
    from spark_sb_sink.quarantine import Filter

    return Filter(where, tuple(entity or ()), tuple(message_id or ()), reason)


@group.command("list")
def list_(
    conf_file: ConfFile,
    where: Where = None,
    entity: Entities = None,
    message_id: MessageIds = None,
    reason: Reason = None,
    limit: Annotated[int, typer.Option(min=1, help="So many at most, the newest first.")] = 50,
    as_json: AsJson = False,
) -> None:
    """What waits in quarantine: entity, message id, since when, and why. Without what was replayed.

    Example: spark-sb-sink quarantine list --conf-file conf/topics-with-sessions.toml --entity orders
    """
    state = require_state(load(conf_file), "quarantine list")
    with told_errors(), session("quarantine list") as spark:
        from spark_sb_sink.quarantine import Quarantine

        quarantine, wanted = Quarantine(spark, state), filter_of(where, entity, message_id, reason)
        found, total = quarantine.newest(wanted, limit), quarantine.count(wanted)
    if as_json:
        print_json({"total": total, "rows": [asdict(each) for each in found]})
        return
    out = console()
    if not found:
        out.print("Nothing waits in quarantine." if not wanted.given else "Nothing of the kind waits in quarantine.")
        return
    shown = table("since", "entity", "message id", "why")
    now = datetime.now(UTC)
    for each in found:
        named = each.message_id or f"(none; {each.digest[:12]})"
        why = each.reason if each.replayable else f"{each.reason} (never became a message)"
        since = spoken_duration((now - each.stored_at.astimezone(UTC)).total_seconds())
        shown.add_row(since, each.entity or "(none)", named, why)
    out.print(shown)
    out.print(f"\n{number(total)} in all{f', of which {len(found)} are shown' if total > len(found) else ''}.")


@group.command("show")
def show(
    conf_file: ConfFile,
    name: Annotated[str, typer.Argument(metavar="ID", help="A message id, or the first letters of a digest.")],
    as_json: AsJson = False,
) -> None:
    """Everything about one quarantined message: its properties, its body, the reason, the micro-batch.

    Example: spark-sb-sink quarantine show --conf-file conf/topics-with-sessions.toml order-4711
    """
    state = require_state(load(conf_file), "quarantine show")
    with told_errors(), session("quarantine show") as spark:
        from spark_sb_sink.quarantine import Quarantine

        found = Quarantine(spark, state).find(name)
    if not found:
        fail(f"there is no message {name!r} in quarantine; `spark-sb-sink quarantine list` shows what there is.")
    if as_json:
        print_json([{key: _plain(value) for key, value in row.items()} for row in found])
        return
    out = console()
    for at, row in enumerate(found):
        if at:
            out.print()
        shown = table("", "")
        shown.show_header = False
        for key, value in row.items():
            if value is not None and key != "message":
                shown.add_row(key, _text(value))
        out.print(shown)


def _text(value: Any) -> str:
    if isinstance(value, bytes | bytearray):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return f"{len(value)} bytes: {bytes(value[:64]).hex(' ')}{' …' if len(value) > 64 else ''}"
    if isinstance(value, datetime):
        return moment(value)
    if isinstance(value, dict):
        return "\n".join(f"{key} = {inner}" for key, inner in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)


def _plain(value: Any) -> Any:
    return {"base64": base64.b64encode(bytes(value)).decode()} if isinstance(value, bytes | bytearray) else value
