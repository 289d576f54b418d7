"""Values of every AMQP type to bytes and back."""

import pickle
from collections import OrderedDict
from datetime import UTC, datetime, timedelta, timezone
from enum import IntEnum

import pytest
from azure.servicebus._pyamqp._decode import _DECODE_BY_CONSTRUCTOR
from hypothesis import given
from hypothesis import strategies as st

from spark_sb_sink.amqp import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal128,
    Described,
    ElementType,
    Float,
    Long,
    MalformedMessageError,
    Map,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UnencodableValueError,
    UShort,
    decode_value,
    encode_value,
    timestamp_ms,
)
from spark_sb_sink.amqp.layout import value_end
from tests.amqp.strategies import SOME_UUID, at, typed, values


class Colour(IntEnum):
    RED = 7


class Name(str):
    __slots__ = ()


@given(values)
def test_every_value_comes_back_with_its_type(value):
    encoded = encode_value(value)
    assert typed(decode_value(encoded)) == typed(value)
    assert value_end(encoded, 0, len(encoded)) == len(encoded)


@given(values)
def test_what_was_decoded_encodes_to_the_same_bytes(value):
    encoded = encode_value(value)
    assert encode_value(decode_value(encoded)) == encoded


@pytest.mark.parametrize(
    ("value", "decoded"),
    [
        (None, None),
        (True, True),
        (5, 5),
        (2**31 - 1, 2**31 - 1),
        (2**31, Long(2**31)),
        (-(2**31) - 1, Long(-(2**31) - 1)),
        (Colour.RED, 7),
        (1.5, 1.5),
        ("text", "text"),
        (Name("text"), "text"),
        (b"bytes", b"bytes"),
        (bytearray(b"bytes"), b"bytes"),
        (memoryview(b"bytes"), b"bytes"),
        (SOME_UUID, SOME_UUID),
        (datetime(1970, 1, 1, 0, 0, 1, 999, UTC), Timestamp(1000)),
        (datetime(1969, 12, 31, 23, 59, 59, 999_500, UTC), Timestamp(-1)),
        (datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), Timestamp(0)),
        ([1, "a"], (1, "a")),
        ({"a": 1}, Map((("a", 1),))),
        (OrderedDict(a=1), Map((("a", 1),))),
    ],
)
def test_a_plain_python_value_gets_its_documented_type(value, decoded):
    assert typed(decode_value(encode_value(value))) == typed(decoded)


@pytest.mark.parametrize(
    ("encoded", "value"),
    [
        ("40", None),
        ("41", True),
        ("42", False),
        ("5601", True),
        ("43", UInt(0)),
        ("52ff", UInt(255)),
        ("70ffffffff", UInt(2**32 - 1)),
        ("44", ULong(0)),
        ("53ff", ULong(255)),
        ("80ffffffffffffffff", ULong(2**64 - 1)),
        ("50ff", UByte(255)),
        ("51ff", Byte(-1)),
        ("60ffff", UShort(65535)),
        ("61ffff", Short(-1)),
        ("54ff", -1),
        ("71ffffffff", -1),
        ("55ff", Long(-1)),
        ("81ffffffffffffffff", Long(-1)),
        ("723fc00000", Float(1.5)),
        ("823ff8000000000000", 1.5),
        ("730001f600", Char("😀")),
        ("7401020304", Decimal32(b"\1\2\3\4")),
        ("94" + "01" * 16, Decimal128(b"\1" * 16)),
        ("830000000000000001", Timestamp(1)),
        ("9800112233445566778899aabbccddeeff", SOME_UUID),
        ("a00161", b"a"),
        ("b00000000161", b"a"),
        ("a10161", "a"),
        ("b10000000161", "a"),
        ("a30161", Symbol("a")),
        ("b30000000161", Symbol("a")),
        ("45", ()),
        ("c00100", ()),
        ("c0020140", (None,)),
        ("d0000000050000000140", (None,)),
        ("c10100", Map()),
        ("c1050241a10161", Map(((True, "a"),))),
        ("d100000006000000024142", Map(((True, False),))),
        ("e0020055", Array(ElementType.LONG)),
        ("e00402550102", Array(ElementType.LONG, (Long(1), Long(2)))),
        ("e0020240", Array(ElementType.NULL, (None, None))),
        ("e0020241", Array(ElementType.BOOLEAN, (True, True))),
        ("f00000000700000001a10161", Array(ElementType.STRING, ("a",))),
        ("e0060100a3016140", Array(ElementType.NULL, (None,), (Symbol("a"),))),
        ("00a301615505", Described(Symbol("a"), Long(5))),
    ],
)
def test_every_form_that_the_specification_has_is_read(encoded, value):
    assert typed(decode_value(bytes.fromhex(encoded))) == typed(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (object(), "no type for a Python object"),
        ({1, 2}, "no type for a Python set"),
        (2**63, "needs more"),
        ("\ud800", "not Unicode text"),
        (datetime(2024, 1, 1), "needs a time zone"),
        (Array(ElementType.LONG, (1,)), "an array of long cannot hold 1"),
        (Array(ElementType.STRING, (Symbol("a"),)), "an array of string cannot hold"),
    ],
)
def test_a_value_that_amqp_cannot_carry_is_refused_with_a_reason(value, text):
    with pytest.raises(UnencodableValueError, match=text):
        encode_value(value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: UByte(256),
        lambda: UInt(-1),
        lambda: Long(2**63),
        lambda: Long(True),
        lambda: Short("1"),
        lambda: Float(1e300),
        lambda: Char("ab"),
        lambda: Char("\ud800"),
        lambda: Symbol("é"),
        lambda: Decimal32(b"123"),
    ],
)
def test_a_wrapper_refuses_what_its_type_cannot_hold(make):
    with pytest.raises(UnencodableValueError):
        make()


def test_a_list_that_holds_itself_is_refused():
    endless: list = []
    endless.append(endless)
    with pytest.raises(UnencodableValueError, match="64 levels"):
        encode_value(endless)


@pytest.mark.parametrize(
    ("encoded", "offset"),
    [
        ("", 0),
        ("3f", 0),
        ("4040", 1),
        ("a1", 0),
        ("a105", 0),
        ("b1ffffffff61", 0),
        ("b100", 0),
        ("71ffff", 0),
        ("a101ff", 1),
        ("a301ff", 1),
        ("5602", 1),
        ("730000d800", 1),
        ("7300110000", 1),
        ("c00101", 1),
        ("c00100" + "40", 3),
        ("c0020040", 3),
        ("c1020140", 1),
        ("c000", 1),
        ("d000000000", 1),
        ("e00100", 3),
        ("e002013f", 3),
        ("e002ff55", 4),
        ("f000000005ffffffff40", 10),
        ("00", 1),
        ("0040", 2),
    ],
)
def test_malformed_bytes_give_an_error_with_the_offset(encoded, offset):
    with pytest.raises(MalformedMessageError) as caught:
        decode_value(bytes.fromhex(encoded))
    assert caught.value.offset == offset
    assert f"at byte {offset}: expected" in str(caught.value)


@pytest.mark.parametrize(
    "encoded",
    [
        b"\x00" * 100_000,
        b"\x00\x40" * 50_000 + b"\x40",
        b"\xd0\xff\xff\xff\xff\xff\xff\xff\xff" * 10_000,
        b"\xd0\x00\x00\x00\x04\xff\xff\xff\xff",
        b"\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x45",
    ],
)
def test_hostile_lengths_and_nesting_end_in_the_error(encoded):
    with pytest.raises(MalformedMessageError):
        decode_value(encoded)


def test_nesting_is_bounded_both_ways_at_the_same_depth():
    value: object = 1
    for _ in range(64):
        value = [value]
    assert typed(decode_value(encode_value(value))) == typed(value)
    with pytest.raises(UnencodableValueError):
        encode_value([value])
    encoded = b"\x40"
    for _ in range(65):
        encoded = b"\xd0" + (len(encoded) + 4).to_bytes(4, "big") + b"\0\0\0\1" + encoded
    with pytest.raises(MalformedMessageError, match="64 levels"):
        decode_value(encoded)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_decode_or_give_the_documented_error(encoded):
    try:
        value = decode_value(encoded)
    except MalformedMessageError:
        return
    assert typed(decode_value(encode_value(value))) == typed(value)


@given(values.map(encode_value), st.data())
def test_mutated_bytes_decode_or_give_the_documented_error(encoded, data):
    mutated = bytearray(encoded)
    for _ in range(data.draw(st.integers(1, 3))):
        mutated[data.draw(st.integers(0, len(mutated) - 1))] = data.draw(st.integers(0, 255))
    cut_to = data.draw(st.integers(0, len(mutated)))
    for candidate in (bytes(mutated), bytes(mutated[:cut_to])):
        try:
            decode_value(candidate)
        except MalformedMessageError:
            continue


def test_the_error_survives_the_way_between_processes():
    error = MalformedMessageError(3, "a value", "the end")
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.offset, str(copy)) == (3, str(error))


@given(st.integers(0, 2**45))
def test_a_timestamp_is_the_milliseconds_of_its_moment(milliseconds):
    assert timestamp_ms(at(milliseconds)) == milliseconds


@given(st.lists(st.text("abc") | st.binary(max_size=9) | st.booleans() | st.integers(-(2**31), 2**31 - 1), max_size=9))
def test_the_sdk_reads_what_we_write(items):
    encoded = memoryview(encode_value(items))
    rest, decoded = _DECODE_BY_CONSTRUCTOR[encoded[0]](encoded[1:])
    assert not rest
    assert decoded == [item.encode() if isinstance(item, str) else item for item in items]
