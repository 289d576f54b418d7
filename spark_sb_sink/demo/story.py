"""The script: what is broken and mended, in which order, and what each step waits for.

Runs in a thread of its own (`Performance`): Spark's start cannot be interrupted, but all that it waits for can be taken
away. What is shown goes through the scene.
"""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pyspark import SparkFiles
from pyspark.sql import SparkSession

from spark_sb_sink.board import Board
from spark_sb_sink.broker import BrokerProcess, NamespaceHandle
from spark_sb_sink.demo.pipeline import Pipeline
from spark_sb_sink.demo.reckoning import Books, Outage, Reckoning, reckon
from spark_sb_sink.demo.scene import Scene, Target, View, names
from spark_sb_sink.demo.watch import Watch, depth_of
from spark_sb_sink.durations import format_duration
from spark_sb_sink.failover import Health
from spark_sb_sink.options import Options
from spark_sb_sink.sessions import local_session
from spark_sb_sink.syphon.query import Syphon

TARGETS = (Target("orders", "queue"), Target("invoices", "queue"), Target("events", "topic"))
SUBSCRIPTION = "audit"
RATE = 200
"""Messages a second: some 15,000 in all, where the journal holds 2,000,000 entries."""
SHORT = {"failover_interval": "3s", "ping_interval": "1s", "settle_time": "1s"}
AT_MOST = 90.0
"""Seconds for a step that takes a few; after that something is wrong."""


class InterruptedStoryError(Exception):
    """Somebody wants it to end."""


class StuckError(Exception):
    """A step did not come about; the text says which."""


class Performance(threading.Thread):
    """Plays the story; afterwards there is either a reckoning or an error."""

    def __init__(self, folder: Path, state: Path, scene: Scene) -> None:
        super().__init__(name="demo-story", daemon=True)
        self._folder = folder
        self._state = state
        self._scene = scene
        self._over = threading.Event()
        self.reckoning: Reckoning | None = None
        self.error: BaseException | None = None

    def interrupt(self) -> None:
        """To be called before its processes are ended."""
        self._over.set()

    def run(self) -> None:
        try:
            self.reckoning = self._play()
        except BaseException as error:  # noqa: BLE001 - the main thread tells of it
            self.error = error

    def _play(self) -> Reckoning:
        self._go_on()
        with BrokerProcess("primary", "secondary") as broker:
            primary, secondary = broker["primary"], broker["secondary"]
            _make_entities(primary)
            options = _options(primary, secondary, self._state)
            self._go_on()
            self._scene.tell(
                "The embedded broker hosts two namespaces, primary and secondary. Spark starts; the very first time it "
                "downloads Delta's jars.",
                "Spark is starting",
            )
            spark = _session(self._folder)
            self._go_on()
            board = Board.for_executor(SparkFiles.getRootDirectory(), options)
            watch = Watch(self._scene, board, lambda: depth_of(secondary, options.backlog_path))
            try:
                act = _Acts(self._scene, spark, primary, secondary, options, watch, self._go_on)
                return act.play(self._folder)
            finally:
                watch.stop()
                spark.stop()

    def _go_on(self) -> None:
        if self._over.is_set():
            raise InterruptedStoryError


class _Acts:
    def __init__(
        self,
        scene: Scene,
        spark: SparkSession,
        primary: NamespaceHandle,
        secondary: NamespaceHandle,
        options: Options,
        watch: Watch,
        go_on: Callable[[], None],
    ) -> None:
        self._scene, self._spark, self._options = scene, spark, options
        self._primary, self._secondary = primary, secondary
        self._watch = watch
        self._go_on = go_on
        self._pipeline: Pipeline | None = None

    def play(self, folder: Path) -> Reckoning:
        tell = self._scene.tell
        tell(_shortened(self._options))
        tell(
            f"A streaming query sends {RATE} messages a second to the queues orders and invoices and to the topic "
            "events, whose subscription requires sessions.",
            "the pipeline starts",
        )
        self._pipeline = pipeline = Pipeline(self._spark, folder, self._options, self._scene, RATE)
        self._until(lambda: self._view().acknowledged.rows, "the first micro-batch was not sent")
        tell("All is well: every message goes to the primary, and nothing is written to Delta.", "all is well")
        self._for(5)

        outages = [
            self._outage(
                "orders",
                ["orders"],
                lambda: self._primary.disable("orders"),
                lambda: self._primary.enable("orders"),
                "The queue orders is disabled; invoices and events go on as before.",
                "The queue orders is enabled again.",
            ),
            self._outage(
                "the whole primary",
                [target.name for target in TARGETS],
                self._primary.stop,
                self._primary.start,
                "The whole primary namespace goes down: connections are cut, none is taken.",
                "The primary namespace is up again.",
            ),
        ]
        drain_s = self._drain()
        tell("The pipeline sends what is left and stops.", "the pipeline stops")
        sent = dict(pipeline.finish())
        self._watch.look()
        return reckon(
            sent,
            self._view().acknowledged,
            _books(self._primary, self._secondary),
            outages=outages,
            drain_s=drain_s,
        )

    def _outage(
        self,
        what: str,
        entities: Sequence[str],
        fail: Callable[[], None],
        heal: Callable[[], None],
        failing: str,
        healing: str,
    ) -> Outage:
        tell = self._scene.tell
        tell(failing, f"{what} is down")
        failed_at = time.time()  # before: what is down may be noticed while the call returns
        fail()
        before = self._by_backlog(entities)
        failover_s = self._all_are(entities, Health.FAILED_OVER, failed_at)
        tell(f"{names(entities)} failed over after {failover_s:.1f} s: messages go to the backlog queues.")
        self._until(
            lambda: all(now > then for now, then in zip(self._by_backlog(entities), before, strict=True)),
            f"not all of {names(entities)} had messages acknowledged by the backlog",
        )
        self._for(4)
        tell(healing, f"{what} is up again")
        healed_at = time.time()
        heal()
        failback_s = self._all_are(entities, Health.HEALTHY, healed_at)
        tell(f"{names(entities)} came back after {failback_s:.1f} s: messages go to the primary.")
        self._for(2)
        return Outage(what, failover_s, failback_s)

    def _by_backlog(self, entities: Sequence[str]) -> list[int]:
        return [line.counts.backlog for line in self._view().entities if line.target.name in entities]

    def _all_are(self, entities: Sequence[str], health: Health, since: float) -> float:
        """Wait until all of them are; seconds until the last one was."""

        def times() -> list[float | None]:
            return [self._scene.first_change(entity, health, since) for entity in entities]

        self._until(lambda: None not in times(), f"{names(entities)} did not become {health.value}")
        return max(at - since for at in times() if at is not None)

    def _drain(self) -> float:
        view = self._view()
        self._scene.tell(
            f"The syphon starts, a streaming query of its own, and brings {view.depth:,} messages home while the "
            "pipeline goes on.",
            "the syphon drains the backlog",
        )
        began = time.monotonic()
        drained = Syphon(self._options, listeners=[self._scene.hear], slots_taken=1).drain_until_empty(
            self._spark, within=AT_MOST
        )
        seconds = time.monotonic() - began
        self._check()
        if not drained.empty:
            raise StuckError(f"the backlog was not empty within {AT_MOST:.0f} s: {dict(drained.left)}")
        self._scene.tell(f"The backlog is empty after {seconds:.1f} s, by two looks a second apart.")
        return seconds

    def _view(self) -> View:
        return self._scene.view()

    def _for(self, seconds: float) -> None:
        """Let it run for so long, for people to see."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._check()
            time.sleep(0.05)

    def _until(self, condition: Callable[[], object], otherwise: str) -> None:
        end = time.monotonic() + AT_MOST
        while not condition():
            self._check()
            if time.monotonic() >= end:
                raise StuckError(f"{otherwise} within {AT_MOST:.0f} s")
            time.sleep(0.05)

    def _check(self) -> None:
        self._go_on()
        if self._watch.error is not None:
            raise self._watch.error
        if self._pipeline is not None:
            self._pipeline.check()


def _make_entities(primary: NamespaceHandle) -> None:
    """With duplicate detection, as recommended: a send whose acknowledgement was lost is repeated with the same id."""
    for target in TARGETS:
        make = primary.create_queue if target.kind == "queue" else primary.create_topic
        make(target.name, requires_duplicate_detection=True)
        if target.kind == "topic":
            primary.create_subscription(target.name, SUBSCRIPTION, requires_session=True)


def _options(primary: NamespaceHandle, secondary: NamespaceHandle, state: Path) -> Options:
    return Options.from_dict(
        {
            "primary": {"connection_string": primary.connection_string, "ca_file": primary.ca_file},
            "secondary": {"connection_string": secondary.connection_string, "ca_file": secondary.ca_file},
            "primary_name": "primary",
            "state": str(state),
            **SHORT,
        }
    )


def _shortened(options: Options) -> str:
    changed = [
        f"{name} {format_duration(getattr(options, name))} instead of "
        f"{format_duration(Options.model_fields[name].default)}"
        for name in SHORT
    ]
    return f"Waits are shortened for the demo: {', '.join(changed)}."


def _session(folder: Path) -> SparkSession:
    """Set for something small and short: tables of a few rows, a JVM that does not live to be optimized."""
    settings = {
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    }
    return local_session("spark_sb_sink demo", delta=True, cores=4, **settings)


def _books(primary: NamespaceHandle, secondary: NamespaceHandle) -> Books:
    entities = primary.overview()["entities"]
    counters = primary.counters(), secondary.counters()
    return Books(
        entities={target.name: primary.tally(target.name) for target in TARGETS},
        backlog=secondary.tally(),
        stored={
            target.name: sum(
                sum(counts[state] for state in ("active", "deferred", "scheduled"))
                for counts in entities[target.name]["stores"].values()
            )
            for target in TARGETS
        },
        operations_primary=counters[0]["operations"],
        operations_secondary=counters[1]["operations"],
        pings=counters[0]["pings"],
    )
