"""The command `spark-sb-sink`. Each command stands in a module of its own; this one only puts them together."""

import contextlib
import logging
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from spark_sb_sink import __version__
from spark_sb_sink.commands import broker, cost, demo, doctor, pair, quarantine, replay, status, syphon


class OneSentence(TyperGroup):
    """What is wrong with the arguments is told as everything else that is wrong: a sentence, and exit code 2."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        try:
            code = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        except typer.Abort:
            code = 1
        except Exception as error:
            # Typer has Click inside or beside it, depending on its version: no class of Click's is named here.
            if not hasattr(error, "format_message"):
                raise
            code = _tell(error)
        sys.exit(code if isinstance(code, int) else 0)


def _tell(error: Any) -> int:
    told = " ".join(error.format_message().split()).rstrip(".")
    names, context = list[str](), getattr(error, "ctx", None)
    while context is not None and context.parent is not None:
        names.insert(0, context.info_name)
        context = context.parent
    if type(error).__name__ == "NoArgsIsHelpError":  # the help is all that it has to say, and with rich it has said it
        if told:
            error.show()
    else:
        command = " ".join(["spark-sb-sink", *names])
        print(f"spark-sb-sink: {told[:1].lower()}{told[1:]}; `{command} --help` shows what it takes.", file=sys.stderr)
    return int(error.exit_code)


app = typer.Typer(
    name="spark-sb-sink",
    cls=OneSentence,
    help="A Spark Structured Streaming sink for Azure Service Bus with paired-namespace failover.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("broker")(broker.broker)
app.command("cost")(cost.cost)
app.command("demo")(demo.demo)
app.command("doctor")(doctor.doctor)
app.command("pair")(pair.pair)
app.add_typer(quarantine.group)
app.command("replay")(replay.replay)
app.command("status")(status.status)
app.command("syphon")(syphon.syphon)


_RUN_ON = ("broker", "syphon")
"""Commands whose log is all that a person sees of them."""
_SAID_ANYWAY = {"azure": logging.CRITICAL + 1, "spark_sb_sink.pairing": logging.ERROR}
"""Loggers of what a command shows itself, in its table or in its one sentence."""


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    before = {name: logging.getLogger(name).level for name in _SAID_ANYWAY}
    for name, level in _SAID_ANYWAY.items():
        logging.getLogger(name).setLevel(level)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"spark-sb-sink {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    if context.invoked_subcommand not in _RUN_ON:
        context.with_resource(_quiet())


def main() -> None:
    app()


if __name__ == "__main__":
    main()
