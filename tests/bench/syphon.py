"""A backlog queue emptied into its entity: the syphon's core against the loop that the SDK's examples show.

The loop receives, sends and completes message by message (`sdk`); a better one sends what it received as one list and
then completes message by message (`sdk_list`). 200-byte messages, with no round trip and with one of 10 ms, from a
depth of 2,000 and of 100,000. Ours empties the queue, its receiver's opening included; the SDK's links are open before
its clock starts, and it moves as many as take some seconds.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceivedMessage

from spark_sb_sink.broker import NamespaceHandle
from spark_sb_sink.broker.faults import Shape
from spark_sb_sink.factory import PairedFactory
from spark_sb_sink.syphon import Drain
from tests.bench.harness import Given, Row, Samples, arguments, finish, interleaved, ratio
from tests.bench.pair import PairGround, pair_ground, wrapped_batches
from tests.bench.processes import cpu_seconds

SIZE = 200
AT_ONCE = 100
"""What the loop asks for at a time."""


def cases(quick: bool) -> list[tuple[int, int, int]]:
    """Round trip in ms, depth, and how many of them the SDK moves."""
    depths = (500,) if quick else (2_000, 100_000)
    return [(rtt, depth, 50 if quick else 200 if rtt else 2_000) for rtt in (0, 10) for depth in depths]


def restored(message: ServiceBusReceivedMessage) -> ServiceBusMessage:
    """As far as the SDK's objects can: without the envelope's own properties."""
    own = {key: value for key, value in (message.application_properties or {}).items() if b"x-ms-" not in key}
    return ServiceBusMessage(b"".join(message.body), message_id=message.message_id, application_properties=own)


def sdk_loop(on: PairGround, queue: str, entity: str, count: int, *, as_list: bool) -> float:
    """Messages a second."""
    with (
        ServiceBusClient.from_connection_string(on.secondary.connection_string) as backlog,
        ServiceBusClient.from_connection_string(on.primary.connection_string) as primary,
        backlog.get_queue_receiver(queue) as receiver,
        primary.get_queue_sender(entity) as sender,
    ):
        moved = 0
        start = time.perf_counter()
        while moved < count:
            messages = receiver.receive_messages(max_message_count=min(AT_ONCE, count - moved), max_wait_time=20)
            assert messages, f"{moved} of {count} messages came"
            if as_list:
                sender.send_messages([restored(message) for message in messages])
            for message in messages:
                if not as_list:
                    sender.send_messages(restored(message))
                receiver.complete_message(message)
            moved += len(messages)
        return moved / (time.perf_counter() - start)


def ours(secondary: NamespaceHandle, factory: PairedFactory, queue: str, depth: int) -> float:
    drain = Drain(factory, [queue])
    looks = itertools.count()
    ended = 0.0

    def empty() -> bool:
        nonlocal ended
        # Asking costs the broker time; the drain asks this every 20 ms.
        if next(looks) % 3 == 0 and not any(secondary.counts(queue).values()):
            ended = time.perf_counter()
            return True
        return False

    start = time.perf_counter()
    report = drain.run(300, until=empty)
    drain.close()
    assert report.moved == depth, f"{report.moved} of {depth} moved"
    return depth / (ended - start)


def run_case(on: PairGround, rtt_ms: int, depth: int, sample: int, rounds: int) -> Row:
    entity = on.entity(discard=True)
    payloads = wrapped_batches(entity, depth, SIZE)
    samples = Samples()
    with on.factory(long_poll="20s") as factory:
        queue = f"{factory.options.backlog_path}0"

        def filled(work: Callable[[], float]) -> Callable[[], Mapping[str, float]]:
            def measured() -> Mapping[str, float]:
                on.secondary.delete(queue)
                on.secondary.create_queue(queue, max_size_mb=5120, lock_duration=300)
                on.fill(queue, payloads)
                shapes = [
                    (side, side.hang(Shape(latency=rtt_ms / 1000))) for side in (on.primary, on.secondary) if rtt_ms
                ]
                moved, cpu, broker = (
                    depth if work is drained else sample,
                    time.process_time(),
                    cpu_seconds(on.broker.pid),
                )
                try:
                    per_s = work()
                    return {
                        "per_s": per_s,
                        "cpu_us": (time.process_time() - cpu) / moved * 1e6,
                        "broker_cpu_us": (cpu_seconds(on.broker.pid) - broker) / moved * 1e6,
                    }
                finally:
                    for side, hung in shapes:
                        side.undo(hung)

            return measured

        def drained() -> float:
            return ours(on.secondary, factory, queue, depth)

        variants = {
            "ours": filled(drained),
            "sdk": filled(lambda: sdk_loop(on, queue, entity, sample, as_list=False)),
            "sdk_list": filled(lambda: sdk_loop(on, queue, entity, sample, as_list=True)),
        }
        interleaved(rounds, variants, samples)
    on.primary.delete(entity)
    samples.by_name["broker_cpu_us"] = samples.by_name.pop("ours_broker_cpu_us")
    samples.derive("cpu_ratio", ratio, "sdk_cpu_us", "ours_cpu_us")
    samples.derive("ratio", ratio, "ours_per_s", "sdk_per_s")
    samples.derive("ratio_vs_list", ratio, "ours_per_s", "sdk_list_per_s")
    return {"rtt_ms": rtt_ms, "depth": depth, "sdk_messages": sample, **samples.row()}


def run(given: Given) -> Iterator[Row]:
    with pair_ground() as on:
        for rtt_ms, depth, sample in cases(given.quick):
            if given.wants(f"{rtt_ms} ms, depth {depth}"):
                yield run_case(on, rtt_ms, depth, sample, given.rounds)


def main(words: Sequence[str]) -> int:
    given = arguments("syphon", words, __doc__, rounds=3)
    return finish(run(given), given)
