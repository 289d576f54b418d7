"""What the sink adds to a micro-batch with one row for each entity, over a bare mapInArrow().collect().

Healthy, failed over, and both with Delta tables for what cannot be sent; 1 and 50 entities. The micro-batches of the
sink and the bare jobs take turns, each with a DataFrame of its own, as foreachBatch brings one; the overhead is the
difference between neighbours.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_sb_sink.broker.faults import Refuse
from spark_sb_sink.sink import ServiceBusSink
from tests.bench.ground import CORES, Ground, ground
from tests.bench.harness import Given, Row, Samples, arguments, finish, interleaved
from tests.bench.plain import count_rows

RUN = "bench"
"""One query for all micro-batches, as in a stream."""
WARM_UP = 40
CASES = {
    "healthy": (False, False),
    "healthy, with Delta": (False, True),
    "failed over": (True, False),
    "failed over, with Delta": (True, True),
}


def cases(quick: bool) -> list[tuple[str, int]]:
    """Case and number of entities."""
    return [(case, entities) for case in CASES for entities in ((1,) if quick else (1, 50))]


def one_row_each(on: Ground, entities: Sequence[str]) -> DataFrame:
    names = F.array(*map(F.lit, entities))
    return on.spark.range(0, len(entities), numPartitions=CORES).select(
        F.element_at(names, (F.col("id") + 1).cast("int")).alias("entity"), F.lit("a body").alias("body")
    )


def timed(work: Callable[[DataFrame], object], df: DataFrame) -> Mapping[str, float]:
    """A DataFrame keeps the plan that was made for it, so the next measurement takes another one."""
    start = time.perf_counter()
    work(df)
    return {"ms": (time.perf_counter() - start) * 1000}


def run_case(on: Ground, case: str, entities: int, rounds: int, before: int) -> Row:
    """`before`: rounds that are not counted."""
    failed_over, delta = CASES[case]
    samples = Samples()
    settings = {"failover_interval": "0s", "ping_interval": "30m"}
    if delta:
        settings["state"] = str(on.folder / f"state-{entities}-{failed_over}")
    with contextlib.ExitStack() as stack:
        names = on.entities(entities, discard=True)
        sink = stack.enter_context(on.sink(**settings))
        if failed_over:
            stack.enter_context(on.primary.fault(Refuse()))
        variants = {
            "ours": lambda: timed(lambda df: sink.write(df, run_id=RUN), one_row_each(on, names)),
            "bare": lambda: timed(lambda df: bare(df, entities), one_row_each(on, names)),
        }
        interleaved(before, variants, Samples())
        interleaved(rounds, variants, samples)
        check(sink, entities * (rounds + before), failed_over)
    samples.derive("overhead_ms", lambda ours, plain: ours - plain, "ours_ms", "bare_ms")
    return {"case": case, "entities": entities, **samples.row()}


def bare(df: DataFrame, count: int) -> None:
    found = df.mapInArrow(count_rows, "rows long").collect()
    assert sum(row[0] for row in found) == count


def check(sink: ServiceBusSink, rows: int, failed_over: bool) -> None:
    """That it measured what it says."""
    counts = [view.counts for view in sink.state().entities]
    assert sum(each.backlog if failed_over else each.primary for each in counts) == rows


def warm_up(on: Ground, times: int) -> None:
    """A JVM compiles what it has run some dozens of times; a stream has that behind it after a minute."""
    with on.sink() as sink:
        names = on.entities(1, discard=True)
        for _ in range(times):
            sink.write(one_row_each(on, names), run_id=RUN)
            bare(one_row_each(on, names), 1)


def run(given: Given) -> Iterator[Row]:
    with ground(delta=True) as on:
        warm_up(on, 2 if given.quick else WARM_UP)
        for case, entities in cases(given.quick):
            if given.wants(f"{case}, {entities} entities"):
                rounds = max(1, given.rounds // 5) if CASES[case] == (True, True) else given.rounds
                yield run_case(on, case, entities, rounds, 0 if given.quick else 2)


def main(words: Sequence[str]) -> int:
    given = arguments("batch", words, __doc__, rounds=40)
    return finish(run(given), given)
