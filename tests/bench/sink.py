"""Messages through Spark to a broker that takes and forgets them: the sink, and what a user would write instead.

Ours, foreachPartition with SDK batches, foreachPartition with single sends, and the same job with the send left out;
200 bytes and 4 KB, 1 and 20 entities. The processor time is that of Spark's Python workers, read from /proc before and
after, the same way for all. Ratios count; the machine is shared by Spark, its workers and the broker.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame

from spark_sb_sink.sink import ServiceBusSink
from tests.bench.ground import Ground, ground
from tests.bench.harness import Given, Row, Samples, arguments, finish, interleaved
from tests.bench.plain import count_rows, send_in_batches, send_singly


@dataclass(frozen=True)
class Size:
    """How many messages of a size: enough for some seconds of the SDK, and for memory."""

    bytes: int
    messages: int
    single: int


FULL = (Size(200, 200_000, 8_000), Size(4096, 40_000, 2_000))
QUICK = (Size(200, 2_000, 200),)


def measured(on: Ground, count: int, work: Callable[[], object]) -> Mapping[str, float]:
    before, start = on.processes.worker_times(), time.perf_counter()
    work()
    wall = time.perf_counter() - start
    return {"per_s": count / wall, "cpu_us": on.processes.worker_seconds_since(before) / count * 1e6}


def run_case(on: Ground, sink: ServiceBusSink, size: Size, entities: int, rounds: int) -> Row:
    names = on.entities(entities, discard=True)
    connection = on.primary.connection_string
    samples = Samples()
    with on.rows(names, size.bytes, size.messages) as df, on.rows(names, size.bytes, size.single) as few:
        variants: dict[str, Callable[[], Mapping[str, float]]] = {
            "ours": lambda: measured(on, size.messages, lambda: sink.write(df)),
            "sdk_batch": lambda: measured(on, size.messages, lambda: df.foreachPartition(send_in_batches(connection))),
            "sdk_single": lambda: measured(on, size.single, lambda: few.foreachPartition(send_singly(connection))),
            "noop": lambda: measured(on, size.messages, lambda: left_out(df, size.messages)),
        }
        for plain in (send_in_batches(connection), send_singly(connection)):
            few.limit(100).foreachPartition(plain)
        interleaved(rounds, variants, samples, before=lambda: keep_warm(sink, few))
    for name in names:
        on.primary.delete(name)
    return {
        "bytes": size.bytes,
        "entities": entities,
        **samples.row(),
        "ratio_vs_sdk_batch": round(samples.median("ours_per_s") / samples.median("sdk_batch_per_s"), 1),
        "cpu_ratio": round(samples.median("sdk_batch_cpu_us") / max(samples.median("ours_cpu_us"), 0.01), 1),
    }


def left_out(df: DataFrame, count: int) -> None:
    found = df.mapInArrow(count_rows, "rows long").collect()
    assert sum(row[0] for row in found) == count


def keep_warm(sink: ServiceBusSink, few: DataFrame) -> None:
    """As in a stream that runs: Spark ends workers that are idle for a minute, and the SDK's turns can take longer."""
    sink.write(few)
    few.mapInArrow(count_rows, "rows long").collect()


def run(given: Given) -> Iterator[Row]:
    with ground() as on, on.sink() as sink:
        for size in QUICK if given.quick else FULL:
            for entities in (1, 3) if given.quick else (1, 20):
                if given.wants(f"{size.bytes} B, {entities} entities"):
                    yield run_case(on, sink, size, entities, given.rounds)


def main(words: Sequence[str]) -> int:
    given = arguments("sink", words, __doc__, rounds=5)
    return finish(run(given), given)
