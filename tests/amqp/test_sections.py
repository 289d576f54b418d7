"""A message's bytes as its sections."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_sb_sink.amqp import MalformedMessageError, Symbol, ULong, decode_message, encode_value, split_sections
from spark_sb_sink.amqp.sections import (
    _NAMES,
    APPLICATION_PROPERTIES,
    DATA,
    FOOTER,
    HEADER,
    PROPERTIES,
    SEQUENCE,
    VALUE,
)
from tests.amqp.strategies import foreign_messages, typed_message

EMPTY = {
    HEADER: b"\x00\x53\x70\x45",
    PROPERTIES: b"\x00\x53\x73\x45",
    APPLICATION_PROPERTIES: b"\x00\x53\x74\xc1\x01\x00",
    DATA: b"\x00\x53\x75\xa0\x00",
    SEQUENCE: b"\x00\x53\x76\x45",
    VALUE: b"\x00\x53\x77\x40",
    FOOTER: b"\x00\x53\x78\xc1\x01\x00",
}


@given(foreign_messages())
def test_sections_follow_each_other_without_a_gap_to_the_end(message):
    sections = split_sections(message)
    assert b"".join(message[section.start : section.end] for section in sections) == message


def test_sections_may_be_described_by_a_long_number_or_by_name():
    small = b"".join(EMPTY[kind] for kind in (HEADER, PROPERTIES, DATA, DATA, FOOTER))
    for describe in (
        lambda kind: b"\x00\x80" + kind.to_bytes(8, "big"),
        lambda kind: b"\x00" + encode_value(Symbol(_NAMES[kind])),
        lambda kind: b"\x00\xb3" + len(_NAMES[kind]).to_bytes(4, "big") + _NAMES[kind].encode(),
    ):
        message = b"".join(describe(kind) + EMPTY[kind][3:] for kind in (HEADER, PROPERTIES, DATA, DATA, FOOTER))
        assert [section.descriptor for section in split_sections(message)] == [HEADER, PROPERTIES, DATA, DATA, FOOTER]
        assert typed_message(decode_message(message)) == typed_message(decode_message(small))


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (EMPTY[PROPERTIES] + EMPTY[HEADER], "in order, found amqp:header:list after amqp:properties:list"),
        (EMPTY[HEADER] * 2, "each section once"),
        (EMPTY[VALUE] * 2, "each section once"),
        (EMPTY[DATA] + EMPTY[SEQUENCE], "a body of one kind"),
        (EMPTY[DATA] + EMPTY[VALUE], "a body of one kind"),
        (EMPTY[FOOTER] + EMPTY[DATA], "in order"),
        (b"\x00\x53\x79\x40", "a message section, found the descriptor 0x79"),
        (b"\x00\x53\x00\x40", "the descriptor 0x0"),
        (b"\x00" + encode_value(ULong(2**40)) + b"\x40", "a message section"),
        (b"\x00" + encode_value(Symbol("amqp:nothing:list")) + b"\x45", "the name of a message section"),
        (b"\x00" + encode_value("amqp:header:list") + b"\x45", "the descriptor of a message section"),
        (b"\x40", "a message section, found the byte 0x40"),
        (b"\x00\x53\x70\x40", "amqp:header:list, found the type 0x40"),
        (b"\x00\x53\x75\xa1\x00", "amqp:data:binary"),
        (b"\x00\x53\x74\x45", "amqp:application-properties:map"),
        (b"\x00\x53", "a value"),
        (b"\x00", "a value"),
        (b"\x00\x53\x75", "a value, found the end"),
        (b"\x00\x53\x75\xb0\xff\xff\xff\xff", "within its bounds"),
    ],
)
def test_what_is_no_message_is_refused_with_a_reason(message, text):
    with pytest.raises(MalformedMessageError, match=text):
        split_sections(message)


@given(st.binary(max_size=200) | st.binary(max_size=60).map(lambda rest: b"\x00\x53\x73" + rest))
def test_arbitrary_bytes_are_a_message_or_give_the_documented_error(message):
    try:
        decode_message(message)
    except MalformedMessageError:
        return


@given(foreign_messages().filter(len), st.data())
def test_mutated_messages_are_messages_or_give_the_documented_error(message, data):
    mutated = bytearray(message)
    for _ in range(data.draw(st.integers(1, 3))):
        mutated[data.draw(st.integers(0, len(mutated) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode_message(bytes(mutated))
    except MalformedMessageError:
        return


def test_more_fields_than_the_section_has_are_refused():
    with pytest.raises(MalformedMessageError, match="at most 5 fields"):
        decode_message(b"\x00\x53\x70" + encode_value([None] * 6))
