"""The command `spark-sb-sink`. Each command stands in a module of its own; this one only puts them together."""

import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

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


@app.callback()
def _root() -> None:
    """Without this, a single command would take the place of the group."""


def main() -> None:
    app()


if __name__ == "__main__":
    main()
