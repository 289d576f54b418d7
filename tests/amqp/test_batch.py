"""Batches: the payload that the SDK would have sent for the same messages."""

import pytest
from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._pyamqp.message import BatchMessage
from hypothesis import given
from hypothesis import strategies as st

from spark_sb_sink.amqp import (
    BATCH_FORMAT,
    batch_payload,
    batch_prefix,
    decode_message,
    encode_message,
    size_in_batch,
    split_sections,
)
from tests.amqp.sdk import sdk_bytes, sdk_message
from tests.amqp.strategies import row_fields


@given(st.lists(row_fields(sdk=True), min_size=1, max_size=3))
def test_the_payload_is_that_of_the_sdks_batch(rows):
    batch = ServiceBusMessageBatch()
    for row in rows:
        row["ttl_ms"] = None  # its times would be read from two clocks
        batch._add(sdk_message(row))
    theirs = bytes(encode_payload(bytearray(), BatchMessage(*batch._message)))
    messages = [sdk_bytes(sdk_message(row)) for row in rows]
    assert batch_payload(batch_prefix(messages[0]), messages) == theirs
    assert BatchMessage._code == BATCH_FORMAT


@pytest.mark.parametrize("size", [0, 249, 250, 251, 252, 300, 70_000])
def test_a_message_takes_the_bytes_in_a_batch_that_were_counted(size):
    message = encode_message(b"x" * size)
    assert len(batch_payload(b"", [message])) == size_in_batch(len(message))


def test_each_data_section_of_a_batch_is_one_message():
    messages = [encode_message(b"x" * size, message_id=f"m{size}") for size in (0, 10, 500)]
    payload = batch_payload(batch_prefix(messages[0]), messages)
    assert [data for _, data in decode_message(payload).body] == messages


@pytest.mark.parametrize("first", [encode_message(b""), encode_message(b"", message_id="", partition_key="")])
def test_a_first_message_without_id_and_keys_gives_no_prefix(first):
    assert batch_prefix(first) == b""


def test_the_prefix_names_the_first_messages_id_session_and_partition():
    first = encode_message(b"", message_id="m", session_id="s", partition_key="s", subject="not this")
    prefix = decode_message(batch_prefix(first))
    assert (prefix.message_id, prefix.session_id, prefix.partition_key) == ("m", "s", "s")
    assert prefix.subject is None
    assert len(split_sections(batch_prefix(first))) == 2
