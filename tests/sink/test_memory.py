"""Memory: a worker's stays flat over many micro-batches, and an outage collects nothing on the driver."""

from pathlib import Path

import pytest

from spark_sb_sink.broker.faults import Reject
from tests.sink import samples
from tests.sink.app import SinkApp
from tests.sink.support import SinkGround


def resident(pid: int) -> int:
    """Bytes of its own that a process holds."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("Private_Dirty", "Private_Clean")))


@pytest.mark.timeout(600)
def test_the_memory_of_a_worker_is_flat_over_200_micro_batches(ground: SinkGround) -> None:
    entity = ground.entity(discard=True)
    conf = {"spark.test.partitions": "0"}
    options = ground.plain_options(failover_interval="60s", send_timeout="30s")
    with SinkApp(ground.folder, options, samples.PLAIN_DDL, "local[1]", **conf) as app:
        app.start()
        batch = samples.plain([(entity, f"m{number}") for number in range(2000)])
        for _ in range(40):
            app.put(batch)
        app.await_told("BatchSent", 40, within=200)
        [worker] = app.python_workers()
        early = resident(worker)
        for _ in range(160):
            app.put(batch)
        app.await_told("BatchSent", 200, within=400)
        assert app.python_workers() == [worker], "it is another worker"
        assert resident(worker) < early * 1.15 + 2**20


@pytest.mark.timeout(400)
def test_a_total_outage_of_more_than_the_driver_may_collect_goes_to_overflow(ground: SinkGround) -> None:
    entity = ground.entity()
    rows, size = 3000, 20_000
    conf = {"spark.driver.maxResultSize": "4m"}  # Spark itself ends the job if more comes to the driver
    options = ground.plain_options(failover_interval="0s", ping_interval="30m", state=str(ground.folder / "state"))
    with SinkApp(ground.folder, options, samples.PLAIN_DDL, "local[2]", **conf) as app:
        app.start()
        app.send(samples.plain([(entity, "first")]))
        ground.primary.hang(Reject(), entity)
        for number in range(2):
            ground.secondary.disable(ground.queue(number))
        table = samples.plain([(entity, f"m{number}") for number in range(rows)])
        bodies = table.column("body").to_pylist()
        app.send(table.set_column(2, "body", [[body.ljust(size, "x") for body in bodies]]), within=200)
        [sent] = [event for event in app.of("BatchSent") if event["rows"] == rows]
        assert sent["entities"][0]["overflow"] == rows
    stored = ground.spark.read.format("delta").load(str(ground.folder / "state" / "overflow"))
    assert stored.selectExpr("count(DISTINCT message_id) AS n", "min(length(body)) AS size").first() == (rows, size)
