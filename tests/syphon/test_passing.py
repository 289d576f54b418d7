"""A mountain of messages for a dead entity does not hold up those for a healthy one behind it.

In full size by hand: SYPHON_DEAD=20000 SYPHON_WELL=1000 pytest tests/syphon/test_passing.py
"""

import os
import time

from spark_sb_sink.broker.faults import Refuse
from tests.syphon.field import Field

DEAD = int(os.environ.get("SYPHON_DEAD", "6000"))
WELL = int(os.environ.get("SYPHON_WELL", "1000"))


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
    hung = field.primary.hang(Refuse(), dead)
    disturbed = passed("b")
    print(f"undisturbed {undisturbed:.2f} s, behind a dead entity {disturbed:.2f} s")
    # A dead entity is known as such after one failover interval; what is compared is the rate, so that is allowed.
    assert disturbed <= 3 * undisturbed + 2.0
    field.primary.undo(hung)
    field.until_empty(drain, within=120)
    assert field.accepted(dead) == 2 * DEAD
