"""The rows of a run as the tables of docs/performance.md. Numbers come from the rows, and from nowhere else."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tests.bench.harness import Row

Column = tuple[str, Callable[[Row], str]]


def table(columns: Sequence[Column], rows: Iterable[Row]) -> str:
    lines = [[head for head, _ in columns], ["---"] * len(columns)]
    lines += [[make(row) for _, make in columns] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def number(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, int | float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def just(key: str) -> Callable[[Row], str]:
    return lambda row: number(row.get(key))


def spread(key: str, *, bold: bool = False) -> Callable[[Row], str]:
    """The median, with the least and the most of all rounds beside it."""

    def make(row: Row) -> str:
        text = f"**{number(row[key])}**" if bold else number(row[key])
        least_and_most = row.get(f"{key}_spread")
        return f"{text} ({' to '.join(map(number, least_and_most))})" if least_and_most else text

    return make


def sink(rows: list[Row]) -> str:
    case = [("bytes", just("bytes")), ("entities", just("entities"))]
    rates = [
        *case,
        ("messages", just("messages")),
        ("ours /s", spread("ours_per_s")),
        ("SDK batches /s", spread("sdk_batch_per_s")),
        ("SDK batches, links kept /s", spread("sdk_batch_kept_per_s")),
        ("SDK single /s", spread("sdk_single_per_s")),
        ("send left out /s", spread("noop_per_s")),
        ("**ratio to batches**", spread("ratio_vs_sdk_batch", bold=True)),
        ("**with links kept**", spread("ratio_vs_sdk_batch_kept", bold=True)),
        ("of the rate of one entity", spread("ratio_vs_one_entity")),
    ]
    times = [
        *case,
        ("ours µs", spread("ours_cpu_us")),
        ("SDK batches µs", spread("sdk_batch_cpu_us")),
        ("links kept µs", spread("sdk_batch_kept_cpu_us")),
        ("SDK single µs", spread("sdk_single_cpu_us")),
        ("send left out µs", spread("noop_cpu_us")),
        ("**ratio to batches**", spread("cpu_ratio", bold=True)),
        ("**with links kept**", spread("cpu_ratio_kept", bold=True)),
        ("one link of the SDK, ms", spread("sdk_link_ms")),
    ]
    single = ", ".join(f"{number(row['sdk_single_messages'])} of {number(row['bytes'])} B" for row in _sizes(rows))
    return f"{table(rates, rows)}\n\n{table(times, rows)}\n\nSingle sends: {single}."


def _sizes(rows: list[Row]) -> list[Row]:
    return list({row["bytes"]: row for row in rows}.values())


def sink_limits(rows: list[Row]) -> str:
    """Where the time of a message goes: all processor time there is, and who had it."""
    return table(
        [
            ("bytes", just("bytes")),
            ("entities", just("entities")),
            ("µs of the clock for a message", lambda row: number(1e6 / row["ours_per_s"])),
            ("workers' processor time, µs", just("ours_cpu_us")),
            ("of that Spark's own (send left out), µs", just("noop_cpu_us")),
            ("the broker's processor time, µs", spread("broker_cpu_us")),
            ("the broker's share of a core", lambda row: f"{row['broker_cpu_us'] * row['ours_per_s'] / 1e4:.0f} %"),
            ("MB/s", lambda row: number(row["ours_per_s"] * row["bytes"] / 1e6)),
        ],
        rows,
    )


def syphon(rows: list[Row]) -> str:
    return table(
        [
            ("round trip, ms", just("rtt_ms")),
            ("depth", just("depth")),
            ("ours /s", spread("ours_per_s")),
            ("SDK loop /s", spread("sdk_per_s")),
            ("SDK loop, lists /s", spread("sdk_list_per_s")),
            ("**ratio**", spread("ratio", bold=True)),
            ("ratio to lists", spread("ratio_vs_list")),
            ("moved by the SDK", just("sdk_messages")),
        ],
        rows,
    )


def syphon_limits(rows: list[Row]) -> str:
    return table(
        [
            ("round trip, ms", just("rtt_ms")),
            ("depth", just("depth")),
            ("µs of the clock for a message", lambda row: number(1e6 / row["ours_per_s"])),
            ("our processor time, µs", spread("ours_cpu_us")),
            ("the broker's, µs", spread("broker_cpu_us")),
            ("the SDK loop's, µs", spread("sdk_cpu_us")),
            ("the broker's with it, µs", spread("sdk_broker_cpu_us")),
            ("**processor ratio**", spread("cpu_ratio", bold=True)),
        ],
        rows,
    )


def batch(rows: list[Row]) -> str:
    return table(
        [
            ("case", just("case")),
            ("entities", just("entities")),
            ("with the sink, ms", spread("ours_ms")),
            ("bare, ms", spread("bare_ms")),
            ("**overhead, ms**", spread("overhead_ms", bold=True)),
        ],
        rows,
    )


def failover(rows: list[Row]) -> str:
    return table(
        [
            ("fault", just("fault")),
            ("interval, s", just("interval_s")),
            ("to the backlog, s", spread("failover_s")),
            ("back to the primary, s", spread("failback_s")),
            ("before /s", just("before_per_s")),
            ("during /s", just("during_per_s")),
            ("after /s", just("after_per_s")),
        ],
        rows,
    )


def scale(rows: list[Row]) -> str:
    def case(row: Row) -> str:
        if row["case"] == "depth":
            return f"backlog of {number(row['depth'])}"
        entities = f"{row['entities']} entit{'y' if row['entities'] == 1 else 'ies'}"
        return f"{number(row['bytes'])} B, {entities}"

    return table(
        [
            ("", case),
            ("messages", just("messages")),
            ("messages /s", spread("ours_per_s")),
            ("processor time, µs", spread("ours_cpu_us")),
            ("of that Spark's own, µs", just("noop_cpu_us")),
            ("the broker's, µs", just("broker_cpu_us")),
            ("ns for a byte", lambda row: number(row["ours_cpu_us"] / row["bytes"] * 1000)),
            ("most memory of a worker, MB", just("worker_peak_mb")),
            ("of the driver's Python, MB", just("driver_peak_mb")),
            ("of the driver's JVM, MB", just("driver_jvm_peak_mb")),
            ("growth, MB", just("growth_mb")),
        ],
        rows,
    )


def aims(found: Mapping[str, list[Row]]) -> str:
    """What is to be shown, and what the runs show."""

    def row_of(program: str, **case: object) -> Row:
        for row in found.get(program, []):
            if all(row.get(key) == value for key, value in case.items()):
                return row
        return {}

    one, many = row_of("sink", bytes=200, entities=1), row_of("sink", bytes=200, entities=20)
    near, far = row_of("syphon", rtt_ms=0, depth=100_000), row_of("syphon", rtt_ms=10, depth=100_000)
    empty = row_of("batch", case="healthy", entities=1)
    refused = row_of("failover", fault="connections refused", interval_s=0.0)
    silent = row_of("failover", fault="black hole", interval_s=0.0)
    wanted: list[tuple[str, Row, str, bool, float]] = [
        ("sink, 200 B, one entity: messages/s against SDK batches, at least", one, "ratio_vs_sdk_batch", True, 8),
        ("the same against SDK batches over kept links", one, "ratio_vs_sdk_batch_kept", True, 8),
        ("the same in processor time", one, "cpu_ratio", True, 8),
        ("20 entities against one, at least", many, "ratio_vs_one_entity", True, 0.8),
        ("syphon against the SDK loop on loopback, at least", near, "ratio", True, 5),
        ("the same with a round trip of 10 ms", far, "ratio", True, 20),
        ("overhead of an empty healthy micro-batch in ms, at most", empty, "overhead_ms", False, 50),
        ("to the backlog after a refused connection in s, interval 0, at most", refused, "failover_s", False, 1),
        (
            "the same after a black hole: one send deadline and 1 s",
            silent,
            "failover_s",
            False,
            silent.get("send_timeout_s", 0) + 1,
        ),
    ]

    def line(aim: tuple[str, Row, str, bool, float]) -> Row:
        what, row, key, at_least, bound = aim
        if key not in row:
            return {"aim": what, "bound": bound, "met": "not in this run"}
        met = row[key] >= bound if at_least else row[key] <= bound
        return {"aim": what, "bound": bound, "found": spread(key)(row), "met": "yes" if met else "**no**"}

    columns = [("aim", just("aim")), ("bound", just("bound")), ("found", just("found")), ("met", just("met"))]
    return table(columns, map(line, wanted))
