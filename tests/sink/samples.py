"""Rows with every column of the contract, and what the plain SDK has to find for each."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from azure.servicebus import ServiceBusReceivedMessage

PROPERTIES = pa.struct(
    [
        ("text", pa.string()),
        ("small", pa.int32()),
        ("large", pa.int64()),
        ("tiny", pa.int8()),
        ("short", pa.int16()),
        ("single", pa.float32()),
        ("real", pa.float64()),
        ("flag", pa.bool_()),
        ("moment", pa.timestamp("us", "UTC")),
        ("raw", pa.binary()),
    ]
)
SCHEMA = pa.schema(
    [
        ("body", pa.binary()),
        ("entity", pa.string()),
        ("message_id", pa.string()),
        ("session_id", pa.string()),
        ("partition_key", pa.string()),
        ("correlation_id", pa.string()),
        ("subject", pa.string()),
        ("content_type", pa.string()),
        ("reply_to", pa.string()),
        ("reply_to_session_id", pa.string()),
        ("to", pa.string()),
        ("time_to_live", pa.int64()),
        ("scheduled_enqueue_time", pa.timestamp("us", "UTC")),
        ("application_properties", PROPERTIES),
    ]
)
DDL = (
    "body binary, entity string, message_id string, session_id string, partition_key string, "
    "correlation_id string, subject string, "
    "content_type string, reply_to string, reply_to_session_id string, `to` string, time_to_live bigint, "
    "scheduled_enqueue_time timestamp, application_properties struct<text:string,small:int,large:bigint,"
    "tiny:tinyint,short:smallint,single:float,real:double,flag:boolean,moment:timestamp,raw:binary>"
)
MOMENT = datetime(2026, 3, 1, 12, 30, 15, 250_000, UTC)


def row(entity: str, number: int, *, session: bool = False, scheduled: datetime | None = None) -> dict[str, Any]:
    """One row; every third has no properties, every second no time to live."""
    return {
        "body": f"body {number} of {entity} ✓".encode(),
        "entity": entity,
        "message_id": f"{entity}-{number}",
        "session_id": f"s{number % 3}" if session else None,
        "partition_key": f"s{number % 3}" if session else f"k{number % 2}",
        "correlation_id": f"c{number}",
        "subject": "order",
        "content_type": "text/plain",
        "reply_to": "answers",
        "reply_to_session_id": "r1",
        "to": "somewhere",
        "time_to_live": 3600 + number if number % 2 else None,
        "scheduled_enqueue_time": scheduled,
        "application_properties": None
        if number % 3 == 2
        else {
            "text": f"ü{number}",
            "small": number,
            "large": 2**40 + number,
            "tiny": -number,
            "short": 300 + number,
            "single": number / 8,
            "real": number / 4,
            "flag": bool(number % 2),
            "moment": MOMENT + timedelta(seconds=number),
            "raw": bytes([number % 256, 0, 255]),
        },
    }


def table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, SCHEMA)


def plain(rows: list[tuple[str, str]]) -> pa.Table:
    """Rows of entity and message id alone."""
    return pa.table(
        {
            "entity": [entity for entity, _ in rows],
            "message_id": [message for _, message in rows],
            "body": [f"body of {message}" for _, message in rows],
        }
    )


PLAIN_DDL = "entity string, message_id string, body string"


def assert_as_sent(message: ServiceBusReceivedMessage, sent: dict[str, Any]) -> None:
    """Every field of the message is that of the row."""
    assert b"".join(message.body) == sent["body"]
    for name in (
        "message_id",
        "session_id",
        "partition_key",
        "correlation_id",
        "subject",
        "content_type",
        "reply_to",
        "reply_to_session_id",
        "to",
    ):
        assert getattr(message, name) == sent[name], name
    ttl = sent["time_to_live"]
    assert message.time_to_live == (None if ttl is None else timedelta(seconds=ttl))
    if sent["scheduled_enqueue_time"] is not None:
        assert message.scheduled_enqueue_time_utc == sent["scheduled_enqueue_time"]
    found = {key.decode(): value for key, value in (message.application_properties or {}).items()}
    wanted = dict(sent["application_properties"] or {})
    if wanted:
        assert found.pop("text").decode() == wanted.pop("text")
        moment = found.pop("moment")
        sent_moment = wanted.pop("moment")
        assert moment == int(sent_moment.timestamp() * 1000) or moment == sent_moment
    assert found == wanted
