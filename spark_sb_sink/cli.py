"""The command `spark-sb-sink`. Each command stands in a module of its own; this one only puts them together."""

import typer

from spark_sb_sink.commands import broker, cost, demo, doctor, pair, quarantine, replay, status, syphon

app = typer.Typer(
    name="spark-sb-sink",
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
