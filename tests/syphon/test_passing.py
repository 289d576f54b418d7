"""A mountain of messages for a dead entity does not hold up those for a healthy one behind it."""

import time

from spark_sb_sink.broker.faults import Refuse
from spark_sb_sink.failover import Health
from tests.paired.ground import health
from tests.syphon.field import Field

DEAD = 20_000
WELL = 1_000


def test_those_behind_a_dead_entity_pass_at_a_third_of_the_rate_at_least(field: Field) -> None:
    dead, well = field.entities(2)
    drain = field.drain(failover_interval="1s", ping_interval="1s")

    def passed(tag: str) -> float:
        """Seconds until those behind have arrived."""
        field.backlog_for(dead, DEAD, tag=tag)
        field.backlog_for(well, WELL, tag=tag)
        goal = field.accepted(well) + WELL
        begun = time.monotonic()
        drain.run(120, until=lambda: field.accepted(well) >= goal)
        assert field.accepted(well) == goal
        return time.monotonic() - begun

    undisturbed = passed("a")
    field.until_empty(drain)
    # Rates are compared, so the failover interval in which it is found dead is no part of it.
    hung = field.primary.hang(Refuse(), dead)
    field.backlog_for(dead, 1, tag="first")
    drain.run(60, until=lambda: health(drain.factory, dead) is Health.FAILED_OVER and drain.at_rest)
    disturbed = passed("b")
    print(f"undisturbed {undisturbed:.2f} s, behind a dead entity {disturbed:.2f} s")
    assert disturbed <= 3 * undisturbed
    assert field.accepted(dead) == DEAD
    field.primary.undo(hung)
    field.until_empty(drain, within=120)
    assert field.accepted(dead) == 2 * DEAD + 1
