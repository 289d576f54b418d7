"""`spark-sb-sink pair`: the backlog queues made, or only looked at. How they are found and made is in `pairing`."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from spark_sb_sink.backlog_queues import names
from spark_sb_sink.commands import fail
from spark_sb_sink.commands.common import AsJson, ConfFile, console, load, print_json, table, told_errors, verdict
from spark_sb_sink.options import Pairing

if TYPE_CHECKING:
    from spark_sb_sink.pairing import Paired


def pair(
    conf_file: ConfFile,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Make nothing; exit code 1 where a queue is missing or differs.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make the backlog queues that are missing in the secondary namespace, and show those that are not as expected.

    A queue that exists is never changed. Needs the Manage claim there.

    Example: spark-sb-sink pair --conf-file conf/connection-strings.toml --dry-run
    """
    options = load(conf_file)
    if options.pairing is Pairing.ASSUME:
        if not dry_run:
            fail('pairing is "assume", so the queues are made by somebody else; with --dry-run they are looked at.')
        options = options.model_copy(update={"pairing": Pairing.REQUIRED})
    from spark_sb_sink import pairing

    with told_errors():
        paired = pairing.pair(options, dry_run=dry_run)
    complete = not paired.missing and not paired.differing
    if as_json:
        print_json({**asdict(paired), "dry_run": dry_run, "as_expected": complete})
    else:
        _show(paired, options.backlog_queue_count)
    raise typer.Exit(1 if dry_run and not complete else 0)


def _show(paired: "Paired", count: int) -> None:
    out = console()
    out.print(f"Backlog queues of {paired.path} in {paired.namespace}\n")
    shown = table("queue", "", "what")
    for name in names(paired.path, count):
        differing = [d for d in paired.differing if d.queue == name]
        if name in paired.created:
            word, what = "ok", "made"
        elif name in paired.missing:
            word, what = "warn", "missing; would be made"
        elif differing:
            word, what = "warn", "\n".join(f"{d.property} is {d.got}, expected {d.expected}" for d in differing)
        else:
            word, what = "ok", "there, as expected"
        shown.add_row(name.removeprefix(paired.path), verdict(word), what)
    for name in paired.extra:
        shown.add_row(name.removeprefix(paired.path), "extra", "not used, and left alone")
    out.print(shown)
    told = [f"{len(paired.found)} found", f"{len(paired.created)} made"]
    told += [f"{len(paired.missing)} missing"] if paired.missing else []
    used = " What differs is used as it is: a queue that exists is never changed." if paired.differing else ""
    out.print(f"\n{', '.join(told)}.{used}")
