"""A backlog that is filled by one process and drained by another, a fresh one: what filling took is not counted."""

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from spark_sb_sink.board import Board
from spark_sb_sink.broker import NamespaceHandle
from spark_sb_sink.factory import PairedFactory
from spark_sb_sink.options import Options
from tests.bench.harness import Row, Samples
from tests.bench.pair import PairGround, fill, wrapped_batches
from tests.bench.processes import cpu_seconds, forget_peak, memory, peak_memory
from tests.bench.syphon import ours

MIB = 2**20
SIZE = 200
T = TypeVar("T")


@dataclass(frozen=True)
class Drained:
    """What the draining process tells of itself."""

    per_s: float
    cpu_us: float
    peak: int
    growth: int


def from_backlog(on: PairGround, depth: int, rounds: int) -> Row:
    entity = on.entity(discard=True)
    samples = Samples()
    for _ in range(rounds):
        with on.factory(long_poll="20s") as factory:
            options, queue = factory.options, f"{factory.options.backlog_path}0"
            in_a_process(put, on.secondary.connection_string, queue, entity, depth)
            forget_peak(os.getpid())
            broker = cpu_seconds(on.broker.pid)
            found = in_a_process(drain, options, on.secondary, queue, depth)
            samples.add(
                ours_per_s=found.per_s,
                ours_cpu_us=found.cpu_us,
                broker_cpu_us=(cpu_seconds(on.broker.pid) - broker) / depth * 1e6,
                worker_peak_mb=found.peak / MIB,
                growth_mb=found.growth / MIB,
                driver_peak_mb=peak_memory(os.getpid()) / MIB,
            )
    on.primary.delete(entity)
    return {"messages": depth, **samples.row()}


def in_a_process(work: Callable[..., T], *arguments: object) -> T:
    """In one of its own, which ends with it."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


def put(connection: str, queue: str, entity: str, depth: int) -> None:
    fill(connection, queue, wrapped_batches(entity, depth, SIZE))


def drain(options: Options, secondary: NamespaceHandle, queue: str, depth: int) -> Drained:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        factory = PairedFactory(options, Board.for_executor(folder, options))
        try:
            me = os.getpid()
            forget_peak(me)
            before, cpu = memory(me), time.process_time()
            per_s = ours(secondary, factory, queue, depth)
            peak = peak_memory(me)
            return Drained(per_s, (time.process_time() - cpu) / depth * 1e6, peak, peak - before)
        finally:
            factory.close()
            factory.board.close()
