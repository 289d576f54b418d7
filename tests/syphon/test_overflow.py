"""The overflow's sending core without Spark: it keeps its share of the rate, and what cannot be sent is quarantined."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_sb_sink.broker.faults import CbsAnswer, Refuse
from spark_sb_sink.delta_state import LEFT
from spark_sb_sink.factory import factory_for
from spark_sb_sink.lanes import Lanes
from spark_sb_sink.options import Options
from spark_sb_sink.receipts import KIND, REPORT, read_report, unpack
from spark_sb_sink.syphon.overflow import EXPIRED, send
from spark_sb_sink.syphon.overflow_drain import bytes_moved
from spark_sb_sink.syphon.overflow_left import Portion, in_groups
from spark_sb_sink.syphon.rate import BURST, OVERFLOW_SHARE
from tests.syphon.field import Field, message


def rows(entity: str, messages: list[bytes], stored_at: datetime | None = None) -> pa.RecordBatch:
    moments = pa.array([stored_at or datetime.now(UTC)] * len(messages), pa.timestamp("us", "UTC"))
    columns = [pa.array([entity] * len(messages)), pa.array(messages, pa.binary()), moments]
    return pa.RecordBatch.from_arrays(columns, names=["entity", "message", "stored_at"])


def sent(field: Field, options: Options, *batches: pa.RecordBatch, folder: Path | None = None) -> list[pa.RecordBatch]:
    folder = folder or field.folder
    try:
        return list(send(options, 0, batches, str(folder)))
    finally:
        factory = factory_for(options, folder)
        factory.close()
        factory.board.close()


def left(found: list[pa.RecordBatch]) -> list[dict[str, Any]]:
    """The rows that nobody took."""
    batches = [each for each in found if LEFT in each.column(KIND).to_pylist()]
    return [row for rows in unpack(batches) for row in rows.to_pylist()]


def counts(found: list[pa.RecordBatch]) -> dict[str, tuple[int, int, int]]:
    """What became of the rows of each entity: primary, overflow, quarantine."""
    report = read_report(found[-1].column(REPORT)[0].as_py())
    assert report.rows == report.total
    return {each.entity: (each.primary, each.overflow, each.quarantine) for each in report.entities}


def all_backlogs_off(field: Field, options: Options) -> None:
    for number in range(options.backlog_queue_count):
        field.secondary.disable(field.queue(number))


def test_no_more_than_its_share_of_the_rate_goes_out_and_no_more_than_a_burst_at_once(
    field: Field, monkeypatch: pytest.MonkeyPatch
) -> None:
    entity, rate = field.entity(), 40
    plain, at_once = Lanes.feed, list[int]()

    def feed(lanes: Lanes, name: str, messages: Sequence[bytes]) -> None:
        at_once.append(len(messages))
        plain(lanes, name, messages)

    monkeypatch.setattr(Lanes, "feed", feed)
    begun = time.monotonic()
    sent(field, field.options(max_rate=rate), rows(entity, [message(n) for n in range(50)]))
    elapsed = time.monotonic() - begun
    assert field.accepted(entity) == sum(at_once) == 50
    assert rate * OVERFLOW_SHARE * (elapsed + 1) >= 50
    assert max(at_once) <= rate * OVERFLOW_SHARE * BURST


def test_what_nobody_takes_is_left_as_it_was_and_the_rest_arrives(field: Field) -> None:
    dead, well = field.entities(2)
    options = field.options(failover_interval="0s", ping_interval="30m", ttl="deduct")
    field.primary.hang(Refuse(), dead)
    all_backlogs_off(field, options)
    long_ago = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    made = int(long_ago.timestamp() * 1000)
    messages = [message(n, ttl_ms=10**11, created_ms=made) for n in range(300)]
    found = sent(field, options, rows(dead, messages, long_ago), rows(well, [message("good")]))
    assert counts(found) == {dead: (0, 300, 0), well: (1, 0, 0)}
    assert sorted(row["message"] for row in left(found)) == sorted(messages), "with all of its time to live"
    assert {(row["entity"], row["stored_at"]) for row in left(found)} == {(dead, long_ago)}
    assert "backlog queues" in left(found)[0]["reason"]


def test_an_entity_that_refuses_us_leaves_what_it_did_not_take(field: Field) -> None:
    closed = field.entity()
    field.primary.hang(CbsAnswer(403, "Unauthorized access. 'Send' claim(s) are required."), closed)
    messages = [message(n) for n in range(300)]
    found = sent(field, field.options(), rows(closed, messages[:100]), rows(closed, messages[100:]))
    assert counts(found) == {closed: (0, 300, 0)}
    assert sorted(row["message"] for row in left(found)) == sorted(messages)


def test_an_entity_that_was_deleted_is_down_and_gets_its_messages_once_it_is_made_again(field: Field) -> None:
    deleted = f"{field.name}-deleted"
    options = field.options(failover_interval="0s", ping_interval="30m")
    all_backlogs_off(field, options)
    found = sent(field, options, rows(deleted, [message(n) for n in range(3)]))
    assert counts(found) == {deleted: (0, 3, 0)}
    field.primary.create_queue(deleted)
    (elsewhere := field.folder / "elsewhere").mkdir()
    again = rows(deleted, [row["message"] for row in left(found)])
    assert counts(sent(field, options, again, folder=elsewhere)) == {deleted: (3, 0, 0)}
    assert field.taken(deleted) == {"m0": 1, "m1": 1, "m2": 1}


def test_parts_are_tried_whole_and_no_more_at_once_than_fits() -> None:
    portions = [Portion(part, entity, 10) for part in "abcd" for entity in ("x", "y")]
    assert ["".join(each.part for each in group) for group in in_groups(portions, 30)] == ["aabb", "ccdd"]
    assert [len(group) for group in in_groups(portions, 1)] == [2, 2, 2, 2]
    assert list(in_groups([], 1)) == []


def test_what_is_malformed_or_has_no_time_left_is_quarantined_and_the_rest_arrives(field: Field) -> None:
    entity = field.entity()
    long_ago = datetime.now(UTC) - timedelta(hours=1)
    made = int(long_ago.timestamp() * 1000)
    messages = [message("over", ttl_ms=1000, created_ms=made), b"\x00not AMQP", message("good")]
    found = sent(field, field.options(ttl="deduct"), rows(entity, messages, long_ago))
    assert field.taken(entity) == {"mgood": 1}
    *quarantined, told = found
    reasons = [str(reason) for rows in unpack(quarantined) for reason in rows.column("reason").to_pylist()]
    assert reasons[0] == EXPIRED
    assert "cannot be sent" in reasons[1]
    report = read_report(told.column(REPORT)[0].as_py())
    assert (report.rows, report.total) == (3, 3)
    assert len(message("good")) <= bytes_moved([report])[entity] < 2 * len(message("good")), "of what was moved"
