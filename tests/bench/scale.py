"""What a message costs as there are more entities, as messages grow, and as the backlog gets deeper.

Entities 1 to 200 and sizes 100 B to 200 KB through Spark and the sink to a broker that keeps nothing, in turns with the
same job with the send left out; depths 1,000 to 200,000 through the syphon's core. Processor time is that of the side
which sends or moves. Memory is the most that was resident: of a worker (for the depths, the process that drains: a
fresh one each time), of the driver's Python process, and of its JVM.
"""

import os
from collections.abc import Iterator, Sequence
from typing import Any

from tests.bench.depth import from_backlog
from tests.bench.ground import Ground, ground
from tests.bench.harness import Given, Row, Samples, arguments, finish, interleaved
from tests.bench.pair import pair_ground
from tests.bench.processes import forget_peak, peak_memory
from tests.bench.sink import keep_warm, left_out, measured

MIB = 2**20
ENTITIES = (1, 5, 20, 50, 200)
SIZES = (100, 1_000, 10_000, 50_000, 200_000)
DEPTHS = (1_000, 20_000, 200_000)
MOST = 200_000
MAX_LINKS = 256
Case = dict[str, Any]


def cases(quick: bool) -> list[Case]:
    """What names each row."""
    entities, sizes, depths = ((2,), (10_000,), (500,)) if quick else (ENTITIES, SIZES, DEPTHS)
    return [
        *({"case": "entities", "entities": count, "bytes": 200} for count in entities),
        *({"case": "size", "entities": 1, "bytes": size} for size in sizes),
        *({"case": "depth", "depth": depth, "bytes": 200} for depth in depths),
    ]


def through_spark(on: Ground, entities: int, size: int, count: int, rounds: int) -> Row:
    on.fresh_workers()
    names = on.entities(entities, discard=True)
    samples = Samples()
    with (
        on.sink(max_links=MAX_LINKS) as sink,
        on.rows(names, size, count) as df,
        on.rows(names, size, max(entities * 2, min(count, 2_000))) as few,
    ):

        def ours() -> dict[str, float]:
            on.processes.forget_peaks()
            forget_peak(os.getpid())
            figures = dict(measured(on, count, lambda: sink.write(df)))
            samples.add(
                worker_peak_mb=on.processes.worker_peak() / MIB,
                driver_peak_mb=peak_memory(os.getpid()) / MIB,
                driver_jvm_peak_mb=peak_memory(on.processes.driver) / MIB,
                broker_cpu_us=figures.pop("broker_cpu_us"),
            )
            return figures

        def noop() -> dict[str, float]:
            return {"cpu_us": measured(on, count, lambda: left_out(df, count))["cpu_us"]}

        keep_warm(sink, few)
        interleaved(rounds, {"ours": ours, "noop": noop}, samples, before=lambda: keep_warm(sink, few))
    for name in names:
        on.primary.delete(name)
    return {"messages": count, **samples.row()}


def run(given: Given) -> Iterator[Row]:
    wanted = [case for case in cases(given.quick) if given.wants(str(case["case"]))]
    most = 1_000 if given.quick else MOST
    spark = [case for case in wanted if case["case"] != "depth"]
    if spark:
        with ground() as on:
            for case in spark:
                count = min(most, 200 * MIB // case["bytes"])
                yield {**case, **through_spark(on, case["entities"], case["bytes"], count, given.rounds)}
    if wanted != spark:
        with pair_ground() as pair:
            for case in wanted[len(spark) :]:
                yield {**case, **from_backlog(pair, case["depth"], given.rounds)}


def main(words: Sequence[str]) -> int:
    given = arguments("scale", words, __doc__, rounds=3)
    return finish(run(given), given)
