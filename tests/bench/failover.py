"""How long it takes until messages flow again: from a fault to the first that the backlog accepts, and back.

A paired factory sends 100 messages of 200 bytes after the other, without pause, as a stream does; a fault is hung on
the primary, stays for a while, and is taken off. Times are those at which the sender knows of the acknowledgement.
Failover interval 0 and 5 s, ping interval 1 s, send deadline 3 s. For each kind of fault also the messages a second
before, during and after.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

from spark_sb_sink.amqp import encode_message
from spark_sb_sink.broker import NamespaceHandle
from spark_sb_sink.broker.faults import (
    BlackHole,
    CbsAnswer,
    CutMidBatch,
    Fault,
    FullQuota,
    LoseAck,
    Refuse,
    Reject,
    Shape,
)
from spark_sb_sink.factory import PairedFactory
from tests.bench.harness import Given, Row, Samples, arguments, finish
from tests.bench.pair import PairGround, pair_ground

SEND_TIMEOUT = 3.0
PING_INTERVAL = 1.0
AT_ONCE = 100
PHASE = 0.5
"""Seconds for which a rate is measured."""
GIVE_UP = 60.0

Strike = Callable[[NamespaceHandle, str], Callable[[], object]]
"""Puts a fault in force; what it returns heals it."""


def hung(fault: Fault, *, whole: bool = True, cut: bool = False) -> Strike:
    """`cut`: for a fault that only new links see."""

    def strike(primary: NamespaceHandle, entity: str) -> Callable[[], object]:
        number = primary.hang(fault, None if whole else entity)
        if cut:
            primary.cut()
        return lambda: primary.undo(number)

    return strike


def stopped(primary: NamespaceHandle, entity: str) -> Callable[[], object]:
    primary.stop()
    return primary.start


def disabled(primary: NamespaceHandle, entity: str) -> Callable[[], object]:
    primary.disable(entity)
    return lambda: primary.enable(entity)


def deleted(primary: NamespaceHandle, entity: str) -> Callable[[], object]:
    primary.delete(entity)
    return lambda: primary.create_queue(entity, discard=True)


FAULTS: dict[str, Strike] = {
    "connections refused": hung(Refuse()),
    "namespace stopped": stopped,
    "black hole": hung(BlackHole("accept")),
    "black hole after attach": hung(BlackHole("attach")),
    "slower than the deadline": hung(Shape(latency=30.0)),
    "$cbs answers 503": hung(CbsAnswer(503), cut=True),
    "attach refused": hung(Reject(at="attach"), whole=False, cut=True),
    "internal error": hung(Reject(), whole=False),
    "acknowledgement lost": hung(LoseAck(), whole=False),
    "cut within a batch": hung(CutMidBatch(), whole=False),
    "entity disabled": disabled,
    "entity deleted": deleted,
    "quota full": hung(FullQuota(), whole=False),
}
QUICK = ("connections refused", "internal error")
INTERVALS = (0.0, 5.0)


def cases(quick: bool) -> list[tuple[str, float]]:
    """Kind of fault and failover interval."""
    return list(product(QUICK, INTERVALS[:1]) if quick else product(FAULTS, INTERVALS))


@dataclass
class Stream:
    """Sends without pause in a thread of its own, and notes when how many were accepted where."""

    factory: PairedFactory
    entity: str
    accepted: list[tuple[float, int, int]] = field(default_factory=list)
    failure: BaseException | None = None
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> "Stream":
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(GIVE_UP)

    def _run(self) -> None:
        messages = [encode_message(b"y" * 200, message_id=f"{at:032x}") for at in range(AT_ONCE)]
        try:
            while not self._stop.is_set():
                report = self.factory.send({self.entity: messages})[self.entity]
                assert report.primary + report.backlog == AT_ONCE, report
                self.accepted.append((time.perf_counter(), report.primary, report.backlog))
        except BaseException as error:  # noqa: BLE001 - told by `first`
            self.failure = error

    def first(self, backlog: bool, since: float) -> float:
        """Seconds until the first that was accepted there."""
        seen = 0
        while time.perf_counter() - since < GIVE_UP:
            new, seen = self.accepted[seen:], seen + len(self.accepted[seen:])
            for at, primary, diverted in new:
                if at >= since and (diverted if backlog else primary):
                    return at - since
            if self.failure is not None:
                raise self.failure
            time.sleep(0.005)
        raise AssertionError(f"the {'backlog' if backlog else 'primary'} accepted nothing within {GIVE_UP} s")

    def rate(self, seconds: float) -> float:
        """Messages a second, over the next seconds."""
        start, seen = time.perf_counter(), len(self.accepted)
        time.sleep(seconds)
        return sum(primary + backlog for _, primary, backlog in self.accepted[seen:]) / (time.perf_counter() - start)


def run_once(on: PairGround, fault: str, interval: float, phase: float, samples: Samples) -> None:
    # An entity that forgets what it takes is never full.
    entity = on.entity(discard=fault != "quota full", max_size_mb=5120)
    settings = {
        "failover_interval": f"{interval:g}s",
        "ping_interval": f"{PING_INTERVAL:g}s",
        "send_timeout": f"{SEND_TIMEOUT:g}s",
    }
    with (
        on.factory(backlog_discards=True, backlog_queue_count=2, **settings) as factory,
        Stream(factory, entity) as stream,
    ):
        stream.first(backlog=False, since=time.perf_counter())
        before = stream.rate(phase)
        struck = time.perf_counter()
        heal = FAULTS[fault](on.primary, entity)
        try:
            failover = stream.first(backlog=True, since=struck)
            during = stream.rate(phase)
        finally:
            healed = time.perf_counter()
            heal()
        failback = stream.first(backlog=False, since=healed)
        after = stream.rate(phase)
    on.primary.delete(entity)
    samples.add(failover_s=failover, failback_s=failback, before_per_s=before, during_per_s=during, after_per_s=after)


def run(given: Given) -> Iterator[Row]:
    wanted = [
        (fault, interval) for fault, interval in cases(given.quick) if given.wants(f"{fault}, interval {interval:g} s")
    ]
    found = {case: Samples() for case in wanted}
    with pair_ground() as on:
        for _ in range(given.rounds):
            for fault, interval in wanted:
                run_once(on, fault, interval, 0.2 if given.quick else PHASE, found[fault, interval])
    for (fault, interval), samples in found.items():
        yield {
            "fault": fault,
            "interval_s": interval,
            "send_timeout_s": SEND_TIMEOUT,
            "ping_interval_s": PING_INTERVAL,
            **samples.row(),
        }


def main(words: Sequence[str]) -> int:
    given = arguments("failover", words, __doc__, rounds=2)
    return finish(run(given), given)
