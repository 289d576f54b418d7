"""`spark-sb-sink cost`: operations and money, idle and for an outage. The arithmetic is in `spark_sb_sink.cost`."""

import math
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from spark_sb_sink import cost as arithmetic
from spark_sb_sink.commands import fail
from spark_sb_sink.commands.common import AsJson, console, duration, heading, load, number, print_json, table
from spark_sb_sink.durations import spoken_duration
from spark_sb_sink.errors import OptionError
from spark_sb_sink.options import Options, Ping
from spark_sb_sink.sizes import format_size, parse_size


def cost(
    conf_file: Annotated[
        str | None, typer.Option("--conf-file", help="A TOML file with the options; without one, their defaults.")
    ] = None,
    queues: Annotated[int | None, typer.Option(help="Backlog queues.")] = None,
    long_poll: Annotated[str | None, typer.Option(help='How long an idle receive waits, such as "15m".')] = None,
    syphons: Annotated[int, typer.Option(min=0, help="Syphons that run at the same time.")] = 1,
    executors: Annotated[int, typer.Option(min=1, help="Executors of the sink; each pings for itself.")] = 1,
    outage: Annotated[str, typer.Option(help='How long the primary is out, such as "1h".')] = "1h",
    rate: Annotated[float, typer.Option(min=0, help="Messages a second, over all entities.")] = 100.0,
    message_size: Annotated[str, typer.Option(help='Bytes of one message as encoded, such as "1KiB".')] = "1KiB",
    entities: Annotated[int, typer.Option(min=1, help="Entities that are out.")] = 1,
    deferred: Annotated[
        float,
        typer.Option(min=0, max=1, help="Share of the messages that is deferred, as some entities are back sooner."),
    ] = 0.0,
    price_per_million: Annotated[
        float | None, typer.Option(min=0, help="Your price of a million operations; without it, no money is told.")
    ] = None,
    base_price: Annotated[
        float | None,
        typer.Option(
            min=0, help="With --price-per-million: what the secondary namespace costs in 30 days, whatever happens."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """What the pair costs, in operations and at your prices: 30 days idle, and an outage with the drain after it.

    Example: spark-sb-sink cost --outage 2h --rate 500 --message-size 4KiB --price-per-million 0.80
    """
    for flag, value in (
        ("--rate", rate),
        ("--deferred", deferred),
        ("--price-per-million", price_per_million),
        ("--base-price", base_price),
    ):
        if value is not None and not math.isfinite(value):
            fail(f"{flag} got {value}, but takes a number that can be reached.")
    if base_price is not None and price_per_million is None:
        fail("--base-price is added to what the operations cost, and takes --price-per-million with it.")
    setup, max_rate = _setup(conf_file, queues, long_poll, syphons, executors)
    try:
        size = parse_size(message_size)
    except ValueError:
        fail(f'--message-size got {message_size!r}, but takes a size such as "4KiB".')
    given = arithmetic.Outage(duration("--outage", outage) or 0.0, rate, size, entities, deferred)
    if not math.isfinite(given.rate * given.seconds):
        fail(f"--rate got {rate:g} and --outage {outage!r}, which make more messages than can be counted.")
    told = _Told(
        setup,
        given,
        arithmetic.idle(setup),
        arithmetic.outage(setup, given),
        arithmetic.drain_seconds(setup, given, max_rate),
        max_rate,
        price_per_million,
        base_price or 0.0,
    )
    if as_json:
        print_json(_json(told))
        return
    _show(told)


@dataclass(frozen=True, slots=True)
class _Told:
    """What was asked, and what it comes to."""

    setup: arithmetic.Setup
    given: arithmetic.Outage
    idle: arithmetic.Idle
    charges: arithmetic.Charges
    drain_seconds: float | None
    max_rate: float | None
    price: float | None
    base_price: float


def _setup(
    conf_file: str | None, queues: int | None, long_poll: str | None, syphons: int, executors: int
) -> tuple[arithmetic.Setup, float | None]:
    """From the file or from the defaults; flags go before both, within the limits of the options."""
    nobody = {"primary": "primary.invalid", "secondary": "secondary.invalid"}
    flags = {"backlog_queue_count": queues, "long_poll": long_poll}
    try:
        wanted = Options.from_dict({**nobody, **{key: value for key, value in flags.items() if value is not None}})
    except OptionError as error:
        fail(str(error).replace("backlog_queue_count", "--queues").replace("long_poll", "--long-poll"))
    given = wanted if conf_file is None else load(conf_file)
    setup = arithmetic.Setup(
        queues=(given if queues is None else wanted).backlog_queue_count,
        long_poll=(given if long_poll is None else wanted).long_poll,
        syphons=syphons,
        failover_interval=given.failover_interval,
        ping_interval=given.ping_interval,
        ping_messages=given.ping is Ping.MESSAGE,
        executors=executors,
    )
    return setup, given.max_rate


def _json(told: _Told) -> dict[str, Any]:
    idle, charges, price = told.idle, told.charges, told.price
    found: dict[str, Any] = {
        "idle_receives_30d": idle.receives_30d,
        "idle_peeks_30d": idle.peeks_30d,
        "idle_operations_30d": idle.operations_30d,
        "outage": {
            **asdict(charges),
            "operations": charges.operations,
            "extra": charges.extra,
            "without_outage": charges.without_outage,
            "drain_seconds": told.drain_seconds,
        },
        "given": {**asdict(told.setup), **{f"outage_{key}": value for key, value in asdict(told.given).items()}},
    }
    if price is not None:
        found["money"] = {
            "idle_30d": arithmetic.money(idle.operations_30d, price) + told.base_price,
            "outage": arithmetic.money(charges.operations, price),
            "outage_extra": arithmetic.money(charges.extra, price),
        }
    return found


def _show(told: _Told) -> None:
    setup, given, idle, charges = told.setup, told.given, told.idle, told.charges
    price, base_price = told.price, told.base_price
    out = console()
    columns = ["", "operations"] if price is None else ["", "operations", "money"]

    def row(into: Any, what: str, operations: int, base: float = 0.0) -> None:
        money = [] if price is None else [f"{arithmetic.money(operations, price) + base:,.2f}"]
        into.add_row(what, number(operations), *money)

    served = f"{setup.queues} queues, long poll {spoken_duration(setup.long_poll)}, {_some(setup.syphons, 'syphon')}"
    out.print(heading(f"30 days idle: {served}"))
    quiet = table(*columns, right=columns[1:])
    row(quiet, "receives that bring nothing", idle.receives_30d)
    row(quiet, "looks for deferred messages", idle.peeks_30d)
    if base_price and price is not None:
        quiet.add_row("the secondary namespace", "", f"{base_price:,.2f}")
    row(quiet, "in all", idle.operations_30d, base_price)
    out.print(quiet)
    out.print()
    sent = f"{given.rate:g}/s of {format_size(given.message_bytes)}, {number(charges.messages)} messages"
    out.print(heading(f"An outage of {spoken_duration(given.seconds)}: {sent}"))
    loud = table(*columns, right=columns[1:])
    row(loud, "sent to the backlog", charges.backlog_sends)
    row(loud, "received from the backlog", charges.backlog_receives)
    row(loud, "sent to the primary", charges.primary_sends)
    row(loud, "received from the primary", charges.primary_receives)
    row(loud, "pings, at most", charges.pings)
    if given.deferred:
        row(loud, "deferred messages received again", charges.deferred_receives)
        row(loud, "requests for them, about", charges.deferred_requests)
    row(loud, "in all", charges.operations)
    row(loud, "of which the outage is to blame for", charges.extra)
    out.print(loud)
    if not charges.diverted:
        interval = spoken_duration(setup.failover_interval)
        out.print(
            f"\nShorter than failover_interval ({interval}): nothing is diverted, the messages wait for the primary."
        )
    elif told.max_rate is not None and told.drain_seconds is None:
        out.print("\nWithout a syphon nothing is drained.")
    elif told.max_rate is not None and told.drain_seconds is not None:
        by = "" if setup.syphons == 1 else f" for each of {setup.syphons} syphons"
        out.print(f"\nThe drain takes {spoken_duration(told.drain_seconds)} at max_rate = {told.max_rate:g}{by}.")


def _some(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
