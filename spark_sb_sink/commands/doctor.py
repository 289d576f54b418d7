"""`spark-sb-sink doctor`: will it work here? The checks are in `doctor` and what it calls."""

from typing import Annotated

import typer
from rich.text import Text

from spark_sb_sink import findings as verdicts
from spark_sb_sink.commands.common import AsJson, ConfFile, console, load, print_json, table, told_errors, verdict
from spark_sb_sink.commands.spark import session
from spark_sb_sink.driver_loop import DriverLoop
from spark_sb_sink.errors import SparkSbSinkError
from spark_sb_sink.findings import Finding


def doctor(
    conf_file: ConfFile,
    entity: Annotated[
        list[str] | None, typer.Option("--entity", help="An entity of the primary to look at. Repeatable.")
    ] = None,
    no_spark: Annotated[bool, typer.Option("--no-spark", help="Do not start Spark to try the Delta tables.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check this machine and both namespaces: each check a line, with what to do about it.

    Sends nothing and makes nothing. Exit code 1 where a check failed.

    Example: spark-sb-sink doctor --conf-file conf/connection-strings.toml --entity orders
    """
    from spark_sb_sink import doctor as checks

    options = load(conf_file)
    with told_errors():
        found = checks.machine(options)
        loop = DriverLoop("spark-sb-sink-doctor")
        try:
            found += loop.run(checks.service(options, tuple(entity or ())))
        finally:
            loop.close()
    if options.state is not None and not no_spark:
        found.append(_state(options.state))
    if as_json:
        print_json(
            {
                "ok": not verdicts.failed(found),
                "checks": [
                    {"check": each.check, "verdict": each.verdict.value, "found": each.found, "cure": each.cure}
                    for each in found
                ],
            }
        )
    else:
        _show(found)
    raise typer.Exit(1 if verdicts.failed(found) else 0)


def _state(state: str) -> Finding:
    """The one check that starts Spark: whether Delta's jars load and its tables can be reached."""
    try:
        with session("doctor") as spark:
            from spark_sb_sink.delta_state import DeltaState

            DeltaState(spark, state).check()
    except SparkSbSinkError as error:
        return verdicts.fail("state", str(error), "see docs/deploying.md; without state, set none")
    return verdicts.ok("state", f"Delta can be used at {state}")


def _show(found: list[Finding]) -> None:
    out = console()
    shown = table("", "check", "found")
    for each in found:
        told = Text(each.found)
        if each.cure:
            told.append(f"\n→ {each.cure}")
        shown.add_row(verdict(each.verdict.value), each.check, told)
    out.print(shown)
    bad = sum(each.verdict is verdicts.Verdict.FAIL for each in found)
    doubtful = sum(each.verdict is verdicts.Verdict.WARN for each in found)
    out.print(f"\n{len(found)} checks, {bad} failed, {doubtful} to think about.")
