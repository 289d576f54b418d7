"""One task's turn without Spark."""

from spark_sb_sink.syphon import drain_for
from spark_sb_sink.syphon.turn import Turn, take_turn
from tests.conftest import await_that
from tests.syphon.field import SHORT, Field


def test_a_turn_that_only_looks_receives_nothing(field: Field) -> None:
    entity, folder = field.entity(), str(field.folder)
    options = field.options(**{**SHORT, "long_poll": "1s"})
    drain = drain_for(options, folder, (0,))
    try:
        assert take_turn(options, (0,), Turn(0.1), folder).error is None
        await_that(lambda: drain.queues[0]._polling is None, 20)
        field.backlog_for(entity, 10)
        before = drain.polls
        look = Turn(0.0, count_to=100, look_only=True)
        assert take_turn(options, (0,), look, folder).left == {field.queue(0): 10}
        assert take_turn(options, (0,), look, folder).left == {field.queue(0): 10}
        assert drain.polls == before
        assert field.in_backlog()["locked"] == 0
        assert take_turn(options, (0,), Turn(5.0), folder).report.moved == 10
    finally:
        drain.close()
        drain.factory.close()
        drain.factory.board.close()
