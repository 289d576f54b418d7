"""kill -9 in the middle of a micro-batch: of an executor, of a Python worker, of the driver. Nothing is lost."""

import os
import signal
from collections.abc import Iterator

import pytest

from spark_sb_sink.broker.faults import Reject, Shape
from tests.conftest import await_that
from tests.sink import samples
from tests.sink.app import SinkApp
from tests.sink.support import SinkGround

CLUSTER = "local-cluster[2,1,1024]"
ROWS = 20_000


class Middle:
    """A micro-batch that is held in its middle: the broker answers slowly, and has taken some of it."""

    def __init__(self, ground: SinkGround, app: SinkApp, entity: str, tag: str, *, derived: bool = False) -> None:
        """`derived`: the rows bring no ids, and the sink derives them."""
        self.ground, self.app, self.entity, self.derived = ground, app, entity, derived
        self.ids = {f"{tag}{number}" for number in range(ROWS)}
        self.known = ground.primary.tally(entity).keys()
        self.before = ground.accepted(entity)
        self.sent = len(app.of("BatchSent"))
        self.slow = ground.primary.hang(Shape(latency=0.5))
        table = samples.plain([(entity, found) for found in sorted(self.ids)])
        app.put(table.drop_columns("message_id") if derived else table)
        await_that(lambda: ground.accepted(entity) > self.before, 90)
        assert ground.accepted(entity) - self.before < ROWS, "it was not in its middle"

    def kill(self, *pids: int) -> None:
        """Kill processes below the driver, and wait until Spark has lost a task by it."""
        lost = self.app.log().count("Lost task")
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        await_that(lambda: self.app.log().count("Lost task") > lost, 60)

    def end(self) -> None:
        self.ground.primary.undo(self.slow)
        self.app.await_told("BatchSent", self.sent + 1, within=150)
        arrived = self.ground.primary.tally(self.entity)
        if self.derived:  # n rows that differ are n ids, and the second try of a task gives the same ones
            new = {found: what for found, what in arrived.items() if found not in self.known}
            assert len(new) == ROWS, f"{ROWS} rows came as {len(new)} messages"
            assert any(what.get("duplicate") for what in new.values()), "nothing was sent twice"
            return
        assert self.ids <= arrived.keys(), f"{len(self.ids - arrived.keys())} are lost"


@pytest.fixture
def app(ground: SinkGround) -> Iterator[SinkApp]:
    options = ground.plain_options(failover_interval="60s", send_timeout="30s")
    with SinkApp(ground.folder, options, samples.PLAIN_DDL, CLUSTER) as made:
        yield made.start()


@pytest.mark.timeout(600)
def test_whatever_is_killed_in_the_middle_of_a_batch_all_rows_arrive_and_duplicates_have_the_same_id(
    ground: SinkGround, app: SinkApp
) -> None:
    entity = ground.entity(requires_duplicate_detection=True)
    app.send(samples.plain([(entity, "first")]))

    middle = Middle(ground, app, entity, "worker-", derived=True)
    middle.kill(*app.python_workers())  # of all, as only one may have sent something by now
    middle.end()

    middle = Middle(ground, app, entity, "executor-")
    middle.kill(app.executors()[0])
    middle.end()

    middle = Middle(ground, app, entity, "driver-")
    app.kill()
    app.told.clear()
    middle.sent = 0
    app.start()
    middle.end()

    assert ground.primary.counts(entity)["active"] == 3 * ROWS + 1, "with duplicate detection, each is there once"
    twice = [found for found, what in ground.primary.tally(entity).items() if what.get("duplicate")]
    assert {found.partition("-")[0] for found in twice} >= {"driver"}, (
        "nothing was sent twice: it was not in its middle"
    )


@pytest.mark.timeout(400)
def test_what_one_executor_learns_the_other_is_told_and_neither_waits_an_interval_of_its_own(
    ground: SinkGround,
) -> None:
    """Rows come to one executor first; the second gets the entity's rows only when the first has it failed over."""
    entity, other = ground.entities(2)
    options = ground.plain_options(failover_interval="3s", ping_interval="30m", send_timeout="3s")
    conf = {"spark.test.partitions": "1"}
    with SinkApp(ground.folder, options, samples.PLAIN_DDL, CLUSTER, **conf) as app:
        app.start()
        boards: set[str] = set()
        ground.primary.hang(Reject(), entity)
        for number in range(1, 40):
            app.send(samples.plain([(entity, f"m{number}"), (other, f"o{number}")]))
            changes = [change for change in app.of("EntityChanged") if change["entity"] == entity]
            boards = {change["board"] for change in changes}
            if len(boards) == 2:
                break
        assert len(boards) == 2, "one executor took all micro-batches"
        first = [c["after"] for c in changes if c["board"] == changes[0]["board"]]
        second = [c["after"] for c in changes if c["board"] != changes[0]["board"]]
        assert first == ["suspect", "failed over"]
        assert second == ["failed over"], "the hint was not heeded, or believed without a ping"
        assert ground.arrived(other).total() == number
        assert ground.in_backlog().keys() == {f"m{n}" for n in range(1, number + 1)}
