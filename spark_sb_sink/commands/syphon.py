"""`spark-sb-sink syphon`: the syphon on this machine, in local Spark."""

from typing import Annotated

import typer

from spark_sb_sink.commands.common import told_errors
from spark_sb_sink.commands.spark import require_spark, start


def syphon(
    conf_file: Annotated[str, typer.Option("--conf-file", help="A TOML file with the options.")],
    until_empty: Annotated[bool, typer.Option("--until-empty", help="End once nothing is left.")] = False,
    within: Annotated[
        str | None, typer.Option(help='With --until-empty: a time limit such as "10m"; exit code 3 when it passes.')
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome of --until-empty as JSON.")] = False,
) -> None:
    """Bring what waits in the backlog queues and in the overflow home to its entities.

    Example: spark-sb-sink syphon --conf-file conf/connection-strings.toml --until-empty --within 30m
    """
    with told_errors():
        require_spark("syphon")
        from spark_sb_sink.syphon.job import run

        code = run(
            conf_file,
            until_empty=until_empty,
            within=within,
            as_json=as_json,
            # Not quiet: what Java has to say of a syphon that runs for days belongs on standard error.
            session=lambda options: start("syphon", delta=options.state is not None, cores=options.syphon_tasks + 2),
            program="spark-sb-sink",
        )
    raise typer.Exit(code)
