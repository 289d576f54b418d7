"""The overflow's sending core without Spark: it keeps its share of the rate, and what cannot be sent is quarantined."""

import time
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from spark_sb_sink.broker.faults import Refuse
from spark_sb_sink.factory import factory_for
from spark_sb_sink.options import Options
from spark_sb_sink.receipts import REPORT, read_report, unpack
from spark_sb_sink.syphon.overflow import EXPIRED, send
from spark_sb_sink.syphon.overflow_drain import bytes_moved
from spark_sb_sink.syphon.rate import OVERFLOW_SHARE
from tests.syphon.field import Field, message


def rows(entity: str, messages: list[bytes], stored_at: datetime | None = None) -> pa.RecordBatch:
    moments = pa.array([stored_at or datetime.now(UTC)] * len(messages), pa.timestamp("us", "UTC"))
    columns = [pa.array([entity] * len(messages)), pa.array(messages, pa.binary()), moments]
    return pa.RecordBatch.from_arrays(columns, names=["entity", "message", "stored_at"])


def sent(field: Field, options: Options, *batches: pa.RecordBatch) -> list[pa.RecordBatch]:
    try:
        return list(send(options, 0, batches, str(field.folder)))
    finally:
        factory = factory_for(options, field.folder)
        factory.close()
        factory.board.close()


def test_no_more_than_its_share_of_the_rate_goes_out(field: Field) -> None:
    entity, rate = field.entity(), 40
    begun = time.monotonic()
    sent(field, field.options(max_rate=rate), rows(entity, [message(n) for n in range(50)]))
    elapsed = time.monotonic() - begun
    assert field.accepted(entity) == 50
    assert rate * OVERFLOW_SHARE * (elapsed + 1) >= 50


def test_what_nobody_takes_is_left_for_later_and_the_rest_arrives(field: Field) -> None:
    dead, well = field.entities(2)
    options = field.options(failover_interval="0s", ping_interval="30m")
    field.primary.hang(Refuse(), dead)
    for number in range(options.backlog_queue_count):
        field.secondary.disable(field.queue(number))
    *_, told = sent(field, options, rows(dead, [message(n) for n in range(5)]), rows(well, [message("good")]))
    report = read_report(told.column(REPORT)[0].as_py())
    assert {each.entity: (each.primary, each.overflow) for each in report.entities} == {dead: (0, 5), well: (1, 0)}
    assert report.rows == report.total == 6


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
