"""Values and messages of every AMQP type, for Hypothesis; and equality that tells AMQP types apart."""

import struct
from datetime import UTC, datetime, timedelta
from uuid import UUID

from hypothesis import strategies as st

from spark_sb_sink.amqp import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    ElementType,
    Float,
    Long,
    Map,
    Message,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    encode_value,
)
from spark_sb_sink.amqp.sections import (
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SEQUENCE,
    VALUE,
    section_prefix,
)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
ascii_texts = st.text(st.characters(max_codepoint=127), max_size=300)
int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
uint32s = st.integers(0, 2**32 - 1)
# Up to here the SDK's floating point gets milliseconds right. Ours are exact; later years would show the difference.
moments = st.datetimes(
    min_value=datetime(1970, 1, 1), max_value=datetime(2200, 1, 1), timezones=st.just(UTC)
)  # fmt: skip

# Hypothesis knows the names in the code under test, and finds the envelope's own soon enough.
property_names = texts.filter(lambda name: not name.startswith("x-ms-"))

BY_TYPE: dict[ElementType, st.SearchStrategy] = {
    ElementType.NULL: st.none(),
    ElementType.BOOLEAN: st.booleans(),
    ElementType.UBYTE: st.integers(0, 2**8 - 1).map(UByte),
    ElementType.USHORT: st.integers(0, 2**16 - 1).map(UShort),
    ElementType.UINT: (uint32s | st.integers(0, 300)).map(UInt),
    ElementType.ULONG: (st.integers(0, 2**64 - 1) | st.integers(0, 300)).map(ULong),
    ElementType.BYTE: st.integers(-(2**7), 2**7 - 1).map(Byte),
    ElementType.SHORT: st.integers(-(2**15), 2**15 - 1).map(Short),
    ElementType.INT: int32s | st.integers(-200, 200),
    ElementType.LONG: (int64s | st.integers(-200, 200)).map(Long),
    ElementType.FLOAT: st.floats(width=32, allow_nan=False).map(Float),
    ElementType.DOUBLE: st.floats(),
    ElementType.DECIMAL32: st.binary(min_size=4, max_size=4).map(Decimal32),
    ElementType.DECIMAL64: st.binary(min_size=8, max_size=8).map(Decimal64),
    ElementType.DECIMAL128: st.binary(min_size=16, max_size=16).map(Decimal128),
    ElementType.CHAR: st.characters(exclude_categories=["Cs"]).map(Char),
    ElementType.TIMESTAMP: int64s.map(Timestamp),
    ElementType.UUID: st.uuids(),
    ElementType.BINARY: st.binary(max_size=300),
    ElementType.STRING: texts,
    ElementType.SYMBOL: ascii_texts.map(Symbol),
}
simple_values = st.one_of(*BY_TYPE.values())


def _arrays(inner: st.SearchStrategy) -> st.SearchStrategy:
    compound = {
        ElementType.LIST: st.lists(inner, max_size=3).map(tuple),
        ElementType.MAP: st.lists(st.tuples(inner, inner), max_size=2).map(lambda pairs: Map(tuple(pairs))),
        ElementType.ARRAY: st.lists(st.integers(0, 9).map(Long), max_size=3).map(
            lambda items: Array(ElementType.LONG, tuple(items))
        ),
    }
    return st.sampled_from(ElementType).flatmap(
        lambda of: st.builds(
            Array,
            st.just(of),
            st.lists((BY_TYPE | compound)[of], max_size=4).map(tuple),
            st.lists(ascii_texts.map(Symbol) | st.none(), max_size=2).map(tuple),
        )
    )


values = st.recursive(
    simple_values,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(tuple),
        st.lists(st.tuples(inner, inner), max_size=4).map(lambda pairs: Map(tuple(pairs))),
        st.builds(Described, inner, inner),
        _arrays(inner),
    ),
    max_leaves=12,
)


def typed(value: object) -> object:
    """A value that is unequal to what AMQP tells apart from it (1, 1.0, True), and equal to the rest (NaN, NaN)."""
    if isinstance(value, float):
        return "double", struct.pack(">d", value)
    if isinstance(value, tuple | list):
        return "list", [typed(item) for item in value]
    if isinstance(value, Map):
        return "map", [(typed(key), typed(item)) for key, item in value.pairs]
    if isinstance(value, Array):
        return "array", value.of, typed(value.items), typed(value.descriptors)
    if isinstance(value, Described):
        return "described", typed(value.descriptor), typed(value.value)
    return type(value).__name__, value


def typed_message(message: Message) -> object:
    """A message likewise; the order of annotations, of which AMQP gives no meaning, does not count."""
    return (
        typed(message.header),
        sorted(repr(pair) for pair in typed(message.delivery_annotations)[1]),
        sorted(repr(pair) for pair in typed(message.message_annotations)[1]),
        typed(message.properties),
        typed(message.application_properties),
        [(kind, typed(value)) for kind, value in message.body],
        typed(message.footer),
    )


def _distinct(keys: st.SearchStrategy, items: st.SearchStrategy, max_size: int = 4) -> st.SearchStrategy:
    return st.dictionaries(keys, items, max_size=max_size).map(lambda entries: Map(tuple(entries.items())))


annotation_keys = st.text("abcxyz-", max_size=12).map(lambda name: Symbol("x-opt-own-" + name))
message_ids = st.none() | texts | st.uuids() | st.binary(max_size=30) | st.integers(0, 2**64 - 1).map(ULong)
timestamps = st.none() | st.builds(Timestamp, st.integers(0, 2**45) | int64s)
simple_or_described = simple_values | st.builds(Described, ascii_texts.map(Symbol), simple_values)


@st.composite
def foreign_messages(draw: st.DrawFn) -> bytes:
    """Any valid message that a sender may give to Service Bus, in any shape our own encoder would not choose."""

    def fields(*choices: st.SearchStrategy) -> list:
        drawn = [draw(choice) for choice in choices]
        return drawn[: draw(st.integers(0, len(drawn)))]

    sections = []
    if draw(st.booleans()):
        ttls = st.none() | st.just(2**32 - 1) | uint32s
        header = fields(
            st.none() | st.booleans(),
            st.none() | st.integers(0, 9).map(UByte),
            ttls.map(lambda ttl: None if ttl is None else UInt(ttl)),
        )
        sections.append((HEADER, header))
    if draw(st.booleans()):
        sections.append((DELIVERY_ANNOTATIONS, draw(_distinct(annotation_keys, values))))
    if draw(st.booleans()):
        annotations = list(draw(_distinct(annotation_keys, values)).pairs)
        if draw(st.booleans()):
            annotations.append((Symbol("x-opt-scheduled-enqueue-time"), Timestamp(draw(int64s))))
        if draw(st.booleans()):
            annotations.append((Symbol("x-opt-partition-key"), draw(texts)))
        sections.append((MESSAGE_ANNOTATIONS, Map(tuple(draw(st.permutations(annotations))))))
    if draw(st.booleans()):
        text = st.none() | texts
        symbol = st.none() | ascii_texts.map(Symbol)
        properties = fields(
            message_ids,
            st.none() | st.binary(max_size=20),
            text,
            text,
            text,
            message_ids,
            symbol,
            symbol,
            timestamps,
            timestamps,
            text,
            st.none() | uint32s.map(UInt),
            text,
        )
        sections.append((PROPERTIES, properties))
    if draw(st.booleans()):
        sections.append((APPLICATION_PROPERTIES, draw(_distinct(property_names, simple_or_described))))
    kind = draw(st.sampled_from([DATA, SEQUENCE, VALUE, None]))
    if kind == DATA:
        sections += [(DATA, part) for part in draw(st.lists(st.binary(max_size=300), min_size=1, max_size=3))]
    elif kind == SEQUENCE:
        lists = st.lists(values, max_size=3)
        sections += [(SEQUENCE, part) for part in draw(st.lists(lists, min_size=1, max_size=2))]
    elif kind == VALUE:
        sections.append((VALUE, draw(values)))
    if draw(st.booleans()):
        sections.append((FOOTER, draw(_distinct(annotation_keys, values))))
    return b"".join(section_prefix(kind) + encode_value(value) for kind, value in sections)


@st.composite
def row_fields(draw: st.DrawFn, sdk: bool = False) -> dict:
    """Arguments of `encode_message`; with `sdk`, only such as the SDK sends too."""
    ids = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=128)
    session_id = draw(ids)
    number = int32s if sdk else int64s
    more = st.nothing() if sdk else simple_or_described
    properties = st.dictionaries(
        property_names,
        texts | number | st.booleans() | st.floats() | moments | st.uuids() | st.none() | more,
        max_size=4,
    )
    ttl = st.integers(0, 4_294_967) if sdk else st.integers(0, 400_000_000)
    return {
        "body": draw(st.binary(max_size=600) | texts),
        "message_id": draw(ids),
        "session_id": session_id,
        "partition_key": draw(ids if session_id is None else st.sampled_from([None, session_id])),
        "correlation_id": draw(st.none() | texts),
        "subject": draw(st.none() | texts),
        "content_type": draw(st.none() | ascii_texts),
        "reply_to": draw(st.none() | texts),
        "reply_to_session_id": draw(ids),
        "to": draw(st.none() | texts),
        "ttl_ms": draw(st.none() | ttl.map(lambda seconds: seconds * 1000)),
        "created_ms": draw(st.integers(0, 2**45)),
        "scheduled_ms": draw(st.none() | st.integers(0, 2**45)),
        "application_properties": draw(st.none() | properties),
    }


def at(milliseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)


SOME_UUID = UUID("00112233-4455-6677-8899-aabbccddeeff")
