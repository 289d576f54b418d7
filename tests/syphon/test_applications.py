"""Sink and syphon as two Spark applications: an outage, a syphon that is killed, and in the end everything at home."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_sb_sink.amqp import decode_message
from spark_sb_sink.broker import BrokerProcess
from spark_sb_sink.broker.faults import Refuse
from tests import jvm
from tests.conftest import await_that
from tests.sink import samples
from tests.sink.app import THRIFTY_DELTA, SinkApp, processes_below
from tests.sink.support import SinkGround
from tests.sink.test_pipeline import ROOT, SUBMIT, toml
from tests.syphon.field import receive_raw

EACH = 40
SEED = int(os.environ.get("SYPHON_SEED", "6"))
DELTA = [
    "--packages=io.delta:delta-spark_4.2_2.13:4.4.0",
    "--conf=spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension",
    "--conf=spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog",
    f"--conf=spark.driver.extraJavaOptions={jvm.of_executors()}",
    *(f"--conf={key}={value}" for key, value in THRIFTY_DELTA.items()),
    "--conf=spark.ui.enabled=false",
    "--conf=spark.driver.host=127.0.0.1",
    "--master=local[3]",
]


@pytest.fixture
def ground(broker: BrokerProcess, spark: SparkSession, tmp_path: Path) -> Iterator[SinkGround]:
    with SinkGround(broker, tmp_path, spark) as made:
        yield made


def command(*arguments: str) -> list[str]:
    return [str(Path(sys.executable).parent / "spark-sb-sink"), "syphon", *arguments]


def conf_file(ground: SinkGround, **changed: Any) -> str:
    told = {**ground.plain_options(), "settle_time": "0s", "ping_interval": "1s", "failover_interval": "0s", **changed}
    file = ground.folder / "syphon.toml"
    file.write_text(toml(told))
    return str(file)


def killed_in_its_middle(ground: SinkGround, entity: str, have: int, conf: str) -> None:
    """Run the syphon as an application, and kill -9 all of it at a moment of the seed's choosing, amid its moves."""
    rng = random.Random(SEED)
    enough, delay = have + rng.randrange(EACH // 2), rng.uniform(0, 0.5)
    with (ground.folder / "killed.log").open("w") as log:
        process = subprocess.Popen(command("--conf-file", conf), stdout=log, stderr=log, cwd=ROOT)
        try:
            await_that(lambda: ground.accepted(entity) > enough or process.poll() is not None, 120)
            time.sleep(delay)
            assert process.poll() is None, (ground.folder / "killed.log").read_text()[-3000:]
        finally:
            for pid in [*processes_below(process.pid), process.pid]:
                os.kill(pid, signal.SIGKILL)
            process.wait(20)


@pytest.mark.timeout(600)
def test_after_an_outage_everything_is_where_it_was_meant_for_as_if_sent_directly(ground: SinkGround) -> None:
    direct, diverted = ground.entity(), ground.entity(requires_duplicate_detection=True)
    state = str(ground.folder / "state")
    options = ground.plain_options(failover_interval="0s", ping_interval="30m", state=state)

    past = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)

    def rows(entity: str, start: int, count: int = EACH) -> list[dict[str, Any]]:
        """The same messages whichever the entity is; every fourth was scheduled for a time that is past."""
        return [
            {
                **samples.row(entity, number, scheduled=None if number % 4 else past),
                "message_id": f"m{number}",
                "body": f"body {number}".encode(),
            }
            for number in range(start, start + count)
        ]

    def routes() -> Counter[str]:
        sent = [counts for batch in app.of("BatchSent") for counts in batch["entities"] if counts["entity"] == diverted]
        return Counter({route: sum(counts[route] for counts in sent) for route in ("primary", "backlog", "overflow")})

    with SinkApp(ground.folder, options, samples.DDL, "local[2]") as app:
        app.start()
        app.send(samples.table([*rows(direct, 0, 3 * EACH), *rows(diverted, 0)]))
        ground.primary.hang(Refuse())
        app.send(samples.table(rows(diverted, EACH)))
        for number in range(2):
            ground.secondary.disable(ground.queue(number))
        app.send(samples.table(rows(diverted, 2 * EACH)))
        assert routes() == {"primary": EACH, "backlog": EACH, "overflow": EACH}
    ground.primary.undo()
    for number in range(2):
        ground.secondary.enable(ground.queue(number))

    killed_in_its_middle(ground, diverted, EACH, conf_file(ground, max_rate=8, long_poll="5s"))
    for number in range(2):
        ground.secondary.expire_locks(ground.queue(number))
    assert EACH < ground.accepted(diverted) < 2 * EACH, f"seed {SEED}: it was not in its middle"

    conf = conf_file(ground, state=state)
    job = [SUBMIT, *DELTA, "jobs/syphon.py", "--conf-file", conf, "--until-empty", "--within", "4m", "--json"]
    done = subprocess.run(job, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert (told["empty"], told["left"], told["overflow_empty"]) == (True, {}, True)

    assert ground.primary.counts(diverted)["active"] == 3 * EACH, "each once, with duplicate detection on"
    connection = ground.primary.connection_string
    wanted, found = (_by_id(receive_raw(connection, name, 3 * EACH)) for name in (direct, diverted))
    assert found == wanted
    annotations = [each[1] for each in found.values()]
    assert {len(each) for each in annotations} == {1, 2}, "a partition key each, and some a scheduled time"
    moved = ground.spark.read.format("delta").load(f"{state}/transfers").where("queue = 'overflow'").collect()
    assert sum(row.moved for row in moved) == EACH
    assert all(row.oldest is not None and row.bytes > EACH * 100 for row in moved)


BROKERS = {
    "x-opt-enqueued-time",
    "x-opt-enqueue-sequence-number",
    "x-opt-sequence-number",
    "x-opt-locked-until",
    "x-opt-message-state",
}
"""Annotations that a queue puts on each message."""


def _by_id(messages: list[bytes]) -> dict[str, tuple[Any, ...]]:
    """What a message is, with every AMQP type; without what the broker puts on it, and when it was made."""
    found = {}
    for each in messages:
        read = decode_message(each)
        named = {getattr(key, "value", key): value for key, value in read.message_annotations.pairs}
        annotations = {key: value for key, value in named.items() if key not in BROKERS}
        properties = (*read.properties[:8], *read.properties[10:])
        rest = (properties, read.application_properties, read.body)
        found[str(read.message_id)] = (read.ttl_ms, annotations, *rest)
    assert len(found) == len(messages)
    return found
