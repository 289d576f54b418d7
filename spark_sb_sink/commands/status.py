"""`spark-sb-sink status`: how the pair stands. What is looked at is in `backlog_look` and `state_look`."""

import time
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from spark_sb_sink.commands.common import (
    AsJson,
    ConfFile,
    console,
    duration,
    heading,
    load,
    moment,
    number,
    print_json,
    size,
    table,
    told_errors,
)
from spark_sb_sink.commands.spark import session
from spark_sb_sink.driver_loop import DriverLoop
from spark_sb_sink.durations import spoken_duration
from spark_sb_sink.errors import SparkSbSinkError
from spark_sb_sink.options import Options
from spark_sb_sink.status import Status
from spark_sb_sink.status import status as put_together

if TYPE_CHECKING:
    from spark_sb_sink.backlog_look import BacklogLook, QueueLook
    from spark_sb_sink.state_look import StateLook

_STYLES = {"healthy": "green", "suspect": "yellow", "probation": "yellow", "failed over": "bold red"}


def status(
    conf_file: ConfFile,
    peek: Annotated[
        int, typer.Option(min=0, help="Peek at so many messages of a queue at most, to count what is deferred.")
    ] = 1000,
    look_again: Annotated[
        str | None, typer.Option(help='Look twice, so far apart, to tell the rate of the drain; such as "10s".')
    ] = None,
    no_state: Annotated[bool, typer.Option("--no-state", help="Do not read the Delta tables: no Spark.")] = False,
    as_json: AsJson = False,
) -> None:
    """How the pair stands: backlog queues, entities, overflow, quarantine, and how long the drain will take.

    Takes no message and changes nothing. With only Listen or Send it shows what that allows. Exit code 1 where nothing
    of the backlog could be seen, or none of its queues exists.

    Example: spark-sb-sink status --conf-file conf/connection-strings.toml --look-again 10s
    """
    options = load(conf_file)
    apart = duration("--look-again", look_again)
    with told_errors():
        before, backlog = _look(options, peek, apart)
    state, note = None, ""
    if options.state is not None and not no_state:
        try:
            state = _state(options.state)
        except SparkSbSinkError as error:
            note = f"Entity states, overflow and quarantine are not known: {error}"
    found = put_together(backlog, state, before, note)
    if as_json:
        print_json(_json(found))
    else:
        _show(found, options)
    raise typer.Exit(1 if backlog.blind else 0)


def _look(options: Options, peek: int, apart: float | None) -> "tuple[BacklogLook | None, BacklogLook]":
    from spark_sb_sink.backlog_look import look

    loop = DriverLoop("spark-sb-sink-status")
    try:
        before = None
        if apart is not None:
            before = loop.run(look(options, peek))
            time.sleep(apart)
        return before, loop.run(look(options, peek))
    finally:
        loop.close()


def _state(state: str) -> "StateLook":
    with session("status") as spark:
        from spark_sb_sink import state_look

        return state_look.look(spark, state)


def _json(found: Status) -> dict[str, Any]:
    def queue(each: "QueueLook") -> dict[str, Any]:
        return {**asdict(each), "fill": each.fill}

    return {
        "namespace": found.backlog.namespace,
        "path": found.backlog.path,
        "active": found.backlog.active,
        "queues": [queue(each) for each in found.backlog.queues],
        "extra": [queue(each) for each in found.backlog.extra],
        "drain": {
            "seconds": found.drain.seconds,
            "rate": found.drain.rate,
            "from": found.drain.source.value,
            "told": found.drain.told,
        },
        "state": None if found.state is None else asdict(found.state),
        "notes": list(found.notes),
    }


def _show(found: Status, options: Options) -> None:
    out = console()
    backlog = found.backlog
    out.print(heading(f"Backlog queues of {backlog.path} in {backlog.namespace}"))
    _queues(out, backlog)
    if found.drain.seconds:
        out.print(f"\nTime to drain: {spoken_duration(found.drain.seconds)} {found.drain.told}.")
    else:
        out.print(f"\nTime to drain: {found.drain.told}.")
    if found.state is not None:
        out.print()
        _delta(out, found.state)
    elif options.state is None:
        out.print("\nThe option state is not set: entity states, overflow and quarantine are not kept anywhere.")
    for note in found.notes:
        out.print(f"\nNote: {note}")


def _queues(out: Console, backlog: "BacklogLook") -> None:
    numbers = ("active", "deferred", "dead", "fill")
    shown = table("queue", *numbers, "oldest", right=numbers)
    now = datetime.now(UTC)
    for queue in (*backlog.queues, *backlog.extra):
        name = queue.name.removeprefix(backlog.path)
        marks = [*(["extra"] if queue in backlog.extra else []), *([] if queue.enabled else [str(queue.status)])]
        name = f"{name} ({', '.join(marks)})" if marks else name
        if queue.missing:
            shown.add_row(name, "missing", "", "", "", "")
            continue
        fill = "?" if queue.fill is None else f"{queue.fill:.1%} of {size(queue.max_bytes)}"
        shown.add_row(
            name,
            f"{'≥' if queue.active_at_least else ''}{number(queue.active)}",
            "" if queue in backlog.extra else f"{'≥' if queue.deferred_at_least else ''}{number(queue.deferred)}",
            number(queue.dead_lettered),
            fill,
            "" if queue.oldest is None else f"{spoken_duration((now - queue.oldest).total_seconds())} ago",
        )
    out.print(shown)


def _delta(out: Console, state: "StateLook") -> None:
    if state.entities:
        shown = table("entity", "state", "since", "why")
        for each in state.entities:
            state_of = Text(each.state, style=_STYLES.get(each.state, ""))
            shown.add_row(each.entity, state_of, moment(each.since), each.reason)
        out.print(shown)
    else:
        out.print("The ledger knows of no entity that ever changed its state.")
    if state.last_batch is not None:
        ended = "finished" if state.last_batch.finished else f"failed: {state.last_batch.error}"
        out.print(f"\nLast batch told: {moment(state.last_batch.at)}, {number(state.last_batch.rows)} rows, {ended}.")
    most = "" if state.overflow_exact else "at most "
    out.print(f"Overflow: {most}{number(state.overflow)} waiting. Quarantine: {number(state.quarantine)} waiting.")
