"""`spark-sb-sink broker`: the embedded broker on the command line."""

import asyncio
import json
import os
import re
import signal
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from spark_sb_sink.commands import fail

if TYPE_CHECKING:
    from spark_sb_sink.broker.server import Spec

# The service's rule for namespace names, but for the least length: letters, digits and hyphens, a letter first.
_NAME = re.compile(r"[A-Za-z](?:[A-Za-z0-9-]{0,48}[A-Za-z0-9])?")


def parse_namespace(text: str) -> tuple[str, int]:
    """`NAME` or `NAME=PORT`; raises ValueError with one sentence."""
    name, equals, port = text.partition("=")
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} is no namespace name; "
            "it takes 1 to 50 letters, digits and hyphens, a letter first, no hyphen last"
        )
    if not equals:
        return name, 0
    if not (port.isascii() and port.isdecimal()) or not 1 <= int(port) <= 65535:
        raise ValueError(f"namespace {name!r} asks for port {port!r}; it takes a number from 1 to 65535")
    return name, int(port)


def parse_tiers(texts: list[str], names: list[str]) -> dict[str, str]:
    """The tier of each namespace, from `TIER` for all and `NAME=TIER` for one; raises ValueError with one sentence."""
    tiers = dict.fromkeys(names, "standard")
    for text in sorted(texts, key=lambda text: "=" in text):
        name, equals, tier = text.rpartition("=")
        if not equals:
            tiers = dict.fromkeys(names, tier)
        elif name in tiers:
            tiers[name] = tier
        else:
            raise ValueError(f"tier {text!r} is for a namespace that is not hosted; there are {', '.join(names)}")
    return tiers


def broker(
    namespace: Annotated[
        list[str], typer.Option(help="A namespace to host, NAME or NAME=PORT; any free port without one. Repeatable.")
    ],
    tier: Annotated[
        list[str] | None,
        typer.Option(help="standard (256 KB messages) or premium (1 MB); NAME=premium for one namespace. Repeatable."),
    ] = None,
    tls: Annotated[
        bool, typer.Option("--tls", help="Connection strings for TLS: port 5671, a loopback address per namespace.")
    ] = False,
    host: Annotated[str | None, typer.Option(help="Listen here instead of on loopback.")] = None,
    control_port: Annotated[int, typer.Option(help="Port of the control API on 127.0.0.1; 0 is any free one.")] = 0,
    ready_json: Annotated[
        bool, typer.Option("--ready-json", help="Print one line of JSON once it serves, and nothing else.")
    ] = False,
    until_stdin_closes: Annotated[bool, typer.Option("--until-stdin-closes", hidden=True)] = False,
) -> None:
    """Run the embedded broker until SIGTERM or SIGINT.

    Example: spark-sb-sink broker --namespace primary=5672 --namespace secondary=5673
    """
    try:
        from spark_sb_sink.broker.server import Spec
    except ImportError as error:
        fail(f"the broker needs {error.name}; install it from a clone of the project: pip install '.[broker]'")
    try:
        names = [parse_namespace(text) for text in namespace]
        tiers = parse_tiers(tier or [], [name for name, _ in names])
        specs = [Spec(name, port, tiers[name], host) for name, port in names]
    except ValueError as error:
        fail(str(error))
    raise typer.Exit(asyncio.run(_serve(specs, tls, control_port, ready_json, until_stdin_closes)))


async def _serve(specs: "list[Spec]", tls: bool, control_port: int, ready_json: bool, until_stdin_closes: bool) -> int:
    from spark_sb_sink.broker.server import Broker, BrokerError

    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.set)
    server = Broker()
    try:
        await server.start(specs, tls=tls, control_port=control_port)
    except BrokerError as error:
        print(f"spark-sb-sink: {error}", file=sys.stderr)
        return 2
    try:
        _announce(server.ready(), ready_json)
        if until_stdin_closes:
            stdin = sys.stdin.fileno()
            loop.add_reader(stdin, lambda: over.set() if not os.read(stdin, 65536) else None)
        await over.wait()
    finally:
        await server.close()
    return 0


def _announce(ready: dict[str, dict[str, str]], as_json: bool) -> None:
    if as_json:
        print(json.dumps(ready), flush=True)
        return
    for name, data in ready.items():
        print(f"{name}\n  {data['connection_string']}\n  CA      {data['ca_file']}\n  control {data['control_url']}")
    print("Serving. Stop with Ctrl-C.", flush=True)
