"""Messages through Spark to a broker that takes and forgets them: the sink, and what a user would write instead.

Ours; foreachPartition with SDK batches, whose links are opened for each micro-batch, or kept by the worker; with single
sends over kept links; and the same job with the send left out. 200 bytes and 4 KB, 1 and 20 entities, which take turns
within each round. The processor time is that of Spark's Python workers, and of the broker, read from /proc before and
after, the same way for all. Ratios count; the machine is shared by Spark, its workers and the broker.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from pyspark.sql import DataFrame

from spark_sb_sink.sink import ServiceBusSink
from tests.bench.ground import Ground, ground
from tests.bench.harness import Given, Row, Samples, arguments, finish, one_round, ratio, turned
from tests.bench.plain import count_rows, send_in_batches, send_in_batches_kept, send_singly
from tests.bench.processes import cpu_seconds


@dataclass(frozen=True)
class Size:
    """How many messages of a size: enough for some seconds of the SDK, and for memory."""

    bytes: int
    messages: int
    single: int


FULL = (Size(200, 150_000, 2_000), Size(4096, 30_000, 1_000))
QUICK = (Size(200, 2_000, 200),)


def cases(quick: bool) -> list[tuple[Size, int]]:
    """Size and number of entities."""
    return list(product(QUICK, (1, 2)) if quick else product(FULL, (1, 20)))


@dataclass
class Case:
    """One of the numbers of entities that take turns."""

    on: Ground
    sink: ServiceBusSink
    size: Size
    names: list[str]
    df: DataFrame
    few: DataFrame
    samples: Samples = field(default_factory=Samples)

    def measure(self, number: int) -> None:
        connection = self.on.primary.connection_string
        many, single = self.size.messages, self.size.single
        df, few = self.df, self.few
        variants: dict[str, Callable[[], Mapping[str, float]]] = {
            "ours": lambda: measured(self.on, many, lambda: self.sink.write(df)),
            "sdk_batch": lambda: measured(self.on, many, lambda: df.foreachPartition(send_in_batches(connection))),
            "sdk_batch_kept": lambda: measured(
                self.on, many, lambda: df.foreachPartition(send_in_batches_kept(connection))
            ),
            "sdk_single": lambda: measured(self.on, single, lambda: few.foreachPartition(send_singly(connection))),
            "noop": lambda: measured(self.on, many, lambda: left_out(df, many)),
        }
        one_round(number, variants, self.samples, before=self.warm)

    def warm(self) -> None:
        """As in a stream that runs. Spark ends idle workers after a minute, and has other ones for foreachPartition."""
        keep_warm(self.sink, self.few)
        self.few.foreachPartition(send_in_batches_kept(self.on.primary.connection_string))

    def row(self, one: "Case") -> Row:
        samples, entities, messages = self.samples, len(self.names), self.size.messages
        samples.by_name["broker_cpu_us"] = samples.by_name.pop("ours_broker_cpu_us")
        samples.derive("ratio_vs_sdk_batch", ratio, "ours_per_s", "sdk_batch_per_s")
        samples.derive("ratio_vs_sdk_batch_kept", ratio, "ours_per_s", "sdk_batch_kept_per_s")
        samples.derive("cpu_ratio", ratio, "sdk_batch_cpu_us", "ours_cpu_us")
        samples.derive("cpu_ratio_kept", ratio, "sdk_batch_kept_cpu_us", "ours_cpu_us")
        # A task opens its links one after the other; the tasks do so side by side.
        samples.derive(
            "sdk_link_ms",
            lambda opened, kept: (messages / opened - messages / kept) / entities * 1000,
            "sdk_batch_per_s",
            "sdk_batch_kept_per_s",
        )
        samples.by_name["ratio_vs_one_entity"] = [
            ratio(mine, of_one)
            for mine, of_one in zip(samples.by_name["ours_per_s"], one.samples.by_name["ours_per_s"], strict=True)
        ]
        counts = {"messages": messages, "sdk_single_messages": self.size.single}
        return {"bytes": self.size.bytes, "entities": entities, **counts, **samples.row()}


def measured(on: Ground, count: int, work: Callable[[], object]) -> Mapping[str, float]:
    workers, broker, start = on.processes.worker_times(), cpu_seconds(on.broker.pid), time.perf_counter()
    work()
    wall = time.perf_counter() - start
    return {
        "per_s": count / wall,
        "cpu_us": on.processes.worker_seconds_since(workers) / count * 1e6,
        "broker_cpu_us": (cpu_seconds(on.broker.pid) - broker) / count * 1e6,
    }


def left_out(df: DataFrame, count: int) -> None:
    found = df.mapInArrow(count_rows, "rows long").collect()
    assert sum(row[0] for row in found) == count


def keep_warm(sink: ServiceBusSink, few: DataFrame) -> None:
    """The workers of mapInArrow, with their links."""
    sink.write(few)
    few.mapInArrow(count_rows, "rows long").collect()


def of_size(on: Ground, sink: ServiceBusSink, size: Size, counts: Sequence[int], rounds: int) -> list[Row]:
    """All numbers of entities within each round, so that they can be compared."""
    with contextlib.ExitStack() as stack:
        found = []
        for entities in counts:
            names = on.entities(entities, discard=True)
            df, few = (stack.enter_context(on.rows(names, size.bytes, each)) for each in (size.messages, size.single))
            found.append(Case(on, sink, size, names, df, few))
            few.limit(2).foreachPartition(send_in_batches(on.primary.connection_string))
        for number in range(rounds):
            for case in turned(found, number):
                case.measure(number)
        rows = [case.row(found[0]) for case in found]
        for name in (name for case in found for name in case.names):
            on.primary.delete(name)
        return rows


def run(given: Given) -> Iterator[Row]:
    counts: dict[Size, list[int]] = {}
    for size, entities in cases(given.quick):
        counts.setdefault(size, []).append(entities)
    with ground() as on, on.sink() as sink:
        for size, entities_of in counts.items():
            if given.wants(f"{size.bytes} B"):
                yield from of_size(on, sink, size, entities_of, given.rounds)


def main(words: Sequence[str]) -> int:
    given = arguments("sink", words, __doc__, rounds=3)
    return finish(run(given), given)
