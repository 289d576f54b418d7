"""What a message costs as there are more entities, as messages grow, and as the backlog gets deeper.

Entities 1 to 200 and sizes 100 B to 200 KB through Spark and the sink to a broker that keeps nothing; depths 1,000 to
200,000 through the syphon's core. Processor time is that of the side which sends or moves; memory is the most that one
worker and the driver's JVM had, for the depths the most that the syphon's process grew by.
"""

import gc
import os
import time
from collections.abc import Iterator, Sequence

from tests.bench.ground import Ground, ground
from tests.bench.harness import Given, Row, Samples, arguments, finish
from tests.bench.pair import PairGround, pair_ground, wrapped_batches
from tests.bench.processes import forget_peak, memory, peak_memory
from tests.bench.sink import keep_warm, measured
from tests.bench.syphon import ours as drained

MIB = 2**20
ENTITIES = (1, 5, 20, 50, 100, 200)
SIZES = (100, 1_000, 10_000, 50_000, 200_000)
DEPTHS = (1_000, 10_000, 50_000, 200_000)
MAX_LINKS = 256


def through_spark(on: Ground, entities: int, size: int, count: int, rounds: int) -> Row:
    on.fresh_workers()
    names = on.entities(entities, discard=True)
    samples = Samples()
    with (
        on.sink(max_links=MAX_LINKS) as sink,
        on.rows(names, size, count) as df,
        on.rows(names, size, max(entities, min(count, 2_000))) as few,
    ):
        keep_warm(sink, few)
        for _ in range(rounds):
            keep_warm(sink, few)
            on.processes.forget_peaks()
            figures = measured(on, count, lambda: sink.write(df))
            samples.add(ours_per_s=figures["per_s"], ours_cpu_us=figures["cpu_us"])
            samples.add(
                worker_peak_mb=on.processes.worker_peak() / MIB, driver_peak_mb=peak_memory(on.processes.driver) / MIB
            )
    for name in names:
        on.primary.delete(name)
    return samples.row()


def from_backlog(on: PairGround, depth: int, rounds: int) -> Row:
    entity = on.entity(discard=True)
    payloads = wrapped_batches(entity, depth, 200)
    samples = Samples()
    for _ in range(rounds):
        with on.factory(long_poll="20s") as factory:
            queue = f"{factory.options.backlog_path}0"
            on.fill(queue, payloads)
            gc.collect()
            forget_peak(os.getpid())
            before, cpu = memory(os.getpid()), time.process_time()
            per_s = drained(on, factory, queue, depth)
            samples.add(
                ours_per_s=per_s,
                ours_cpu_us=(time.process_time() - cpu) / depth * 1e6,
                worker_peak_mb=(peak_memory(os.getpid()) - before) / MIB,
            )
    on.primary.delete(entity)
    return samples.row()


def run(given: Given) -> Iterator[Row]:
    entities, sizes, depths = ((1, 5), (100, 10_000), (500,)) if given.quick else (ENTITIES, SIZES, DEPTHS)
    most = 1_000 if given.quick else 200_000
    if given.wants("entities") or given.wants("size"):
        with ground() as on:
            for count in entities if given.wants("entities") else ():
                yield {
                    "case": "entities",
                    "entities": count,
                    "bytes": 200,
                    **through_spark(on, count, 200, most, given.rounds),
                }
            for size in sizes if given.wants("size") else ():
                count = min(most, 200 * MIB // size)
                yield {"case": "size", "entities": 1, "bytes": size, **through_spark(on, 1, size, count, given.rounds)}
    if given.wants("depth"):
        with pair_ground() as pair:
            for depth in depths:
                yield {"case": "depth", "depth": depth, "bytes": 200, **from_backlog(pair, depth, given.rounds)}


def main(words: Sequence[str]) -> int:
    given = arguments("scale", words, __doc__, rounds=3)
    return finish(run(given), given)
