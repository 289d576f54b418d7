"""The envelope on and off: what goes through a backlog queue is what would have gone to the entity."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_sb_sink.amqp import (
    CodecError,
    Described,
    Long,
    MalformedMessageError,
    Map,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    UnrestorableMessageError,
    UnwrappableMessageError,
    decode_message,
    encode_message,
    encode_value,
)
from spark_sb_sink.amqp.sections import (
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    section_prefix,
)
from spark_sb_sink.envelope import restore, restoring, wrap
from tests.amqp.strategies import foreign_messages, row_fields, typed, typed_message

paths = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)
HOUR = 3_600_000
T0 = 1_700_000_000_000
DATA_SECTION = section_prefix(DATA) + b"\xa0\x01x"


def message_of(*sections: tuple[int, object]) -> bytes:
    return b"".join(section_prefix(kind) + encode_value(value) for kind, value in sections) + DATA_SECTION


def backlogged(application_properties: dict, **annotations: object) -> bytes:
    """A message in a backlog queue, as some sender put it there."""
    pairs = tuple((Symbol(name.replace("_", "-")), value) for name, value in annotations.items())
    return message_of((MESSAGE_ANNOTATIONS, Map(pairs)), (APPLICATION_PROPERTIES, application_properties))


def through_the_broker(wrapped: bytes, enqueued: int) -> bytes:
    """The message as Service Bus delivers it: with a header and annotations of its own, and times of the queue."""
    message = decode_message(wrapped)
    added = (
        (Symbol("x-opt-enqueued-time"), Timestamp(enqueued)),
        (Symbol("x-opt-sequence-number"), Long(7)),
        (Symbol("x-opt-enqueue-sequence-number"), Long(7)),
        (Symbol("x-opt-locked-until"), Timestamp(enqueued + 60_000)),
        (Symbol("x-opt-message-state"), 0),
        (Symbol("x-opt-deadletter-source"), "queue"),
        (Symbol("x-opt-partition-id"), 3),
        (Symbol("x-opt-scheduled-enqueue-time"), Timestamp(1)),
    )
    properties = list(message.properties)
    properties[8] = Timestamp(253_402_243_199_000)
    while properties and properties[-1] is None:
        properties.pop()
    sections = [
        (HEADER, [message.header[0], message.header[1], UInt(2**32 - 1), True, UInt(0)]),
        (
            DELIVERY_ANNOTATIONS,
            Map((*message.delivery_annotations.pairs, (Symbol("x-opt-lock-token"), b"0" * 16))),
        ),
        (MESSAGE_ANNOTATIONS, Map((*added, *message.message_annotations.pairs))),
        (PROPERTIES, properties),
        (APPLICATION_PROPERTIES, message.application_properties),
        *message.body,
    ]
    return b"".join(section_prefix(kind) + encode_value(value) for kind, value in sections)


@given(row_fields(), paths)
def test_our_own_messages_come_back_byte_for_byte(fields, path):
    message = encode_message(**fields)
    restored = restore(wrap(message, path))
    assert (restored.path, restored.message, restored.expired) == (path, message, False)


@given(foreign_messages(), paths)
def test_any_valid_message_comes_back_with_every_value_and_type(message, path):
    restored = restore(wrap(message, path))
    assert restored.path == path
    assert typed_message(decode_message(restored.message)) == typed_message(decode_message(message))


@given(row_fields(), st.integers(0, 2**45))
def test_what_the_broker_added_is_dropped_and_the_rest_is_as_it_was(fields, enqueued):
    message = encode_message(**fields)
    restored = restore(through_the_broker(wrap(message, "orders"), enqueued))
    assert typed_message(decode_message(restored.message)) == typed_message(decode_message(message))


@given(foreign_messages() | row_fields().map(lambda fields: encode_message(**fields)), paths)
def test_a_backlog_queue_sees_no_session_no_lifetime_and_no_schedule(message, path):
    wrapped, original = decode_message(wrap(message, path)), decode_message(message)
    assert wrapped.session_id is None
    assert wrapped.ttl_ms is None
    assert wrapped.absolute_expiry_time is None
    assert wrapped.message_annotations.get("x-opt-scheduled-enqueue-time") is None
    assert wrapped.message_id == original.message_id
    assert wrapped.partition_key == original.partition_key
    assert typed(list(wrapped.body)) == typed(list(original.body))


def test_the_aliases_have_the_documented_names_and_types():
    message = encode_message(b"", session_id="s", ttl_ms=1500, created_ms=T0, scheduled_ms=T0, message_id="m")
    stored = decode_message(wrap(message, "orders")).application_properties.pairs
    assert {name: typed(value) for name, value in stored} == {
        "x-ms-path": typed("orders"),
        "x-ms-sessionid": typed("s"),
        "x-ms-timetolive": typed(Long(15_000_000)),
        "x-ms-scheduledenqueuetimeutc": typed(Timestamp(T0)),
    }


def test_what_is_not_set_is_not_stored():
    stored = decode_message(wrap(encode_message(b"x", message_id="m"), "orders")).application_properties
    assert stored == Map((("x-ms-path", "orders"),))


def test_what_needs_no_change_is_forwarded_byte_for_byte():
    unduly_wide = b"\xd1\x00\x00\x00\x0f\x00\x00\x00\x02" + b"\xb3\x00\x00\x00\x01k" + b"\x70\x00\x00\x00\x01"
    annotations = section_prefix(MESSAGE_ANNOTATIONS) + unduly_wide
    message = annotations + DATA_SECTION * 2
    wrapped = wrap(message, "orders")
    assert wrapped.startswith(annotations)
    assert wrapped.endswith(DATA_SECTION * 2)
    assert restore(wrapped).message == message


@pytest.mark.parametrize(
    "name",
    ["x-ms-path", "x-ms-sessionid", "x-ms-timetolive", "x-ms-scheduledenqueuetimeutc", "x-ms-absoluteexpirytimeutc"],
)
def test_a_message_that_uses_an_alias_is_a_bad_message(name):
    with pytest.raises(UnwrappableMessageError, match=f"application property {name} is the envelope's own"):
        wrap(encode_message(b"", application_properties={"a": 1, name: "mine"}), "orders")


def test_a_property_that_only_resembles_an_alias_is_no_alias():
    message = encode_message(b"", application_properties={"x-ms-other": "x-ms-path", "X-MS-PATH": 1})
    assert restore(wrap(message, "orders")).message == message


def test_a_path_must_be_there():
    with pytest.raises(UnwrappableMessageError, match="path of an entity"):
        wrap(encode_message(b""), "")


@pytest.mark.parametrize(
    "message",
    [
        message_of((HEADER, [None, None, 5])),
        message_of((PROPERTIES, [None] * 10 + [Symbol("s")])),
        message_of((PROPERTIES, [None] * 8 + [5])),
        message_of((MESSAGE_ANNOTATIONS, Map(((Symbol("x-opt-scheduled-enqueue-time"), Long(5)),)))),
        b"\x00\x53\x70",
    ],
)
def test_fields_of_the_wrong_type_cannot_be_wrapped(message):
    with pytest.raises(MalformedMessageError):
        wrap(message, "orders")


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        ({"other": 1}, "no application property x-ms-path"),
        ({"x-ms-path": Symbol("orders")}, "x-ms-path must be a string .* but is Symbol"),
        ({"x-ms-path": ""}, "x-ms-path must be a string"),
        ({"x-ms-path": None}, "x-ms-path must be a string"),
        ({"x-ms-path": "orders", "x-ms-sessionid": 5}, "x-ms-sessionid must be a string, but is a int"),
        ({"x-ms-path": "orders", "x-ms-timetolive": 5}, "x-ms-timetolive must be a long of 100-ns ticks"),
        ({"x-ms-path": "orders", "x-ms-timetolive": Long(-5)}, "x-ms-timetolive must be a long of 100-ns ticks, 0"),
        (
            {"x-ms-path": "orders", "x-ms-timetolive": Described(Symbol("com.microsoft:other"), Long(5))},
            "x-ms-timetolive must be a long",
        ),
        ({"x-ms-path": "orders", "x-ms-scheduledenqueuetimeutc": Long(5)}, "must be a timestamp, but is Long"),
        ({"x-ms-path": "orders", "x-ms-absoluteexpirytimeutc": "x"}, "must be a timestamp or null, but is a str"),
        ({"x-ms-path": "orders", Symbol("x-ms-path"): "other"}, "x-ms-path is there twice"),
    ],
)
def test_a_message_that_can_never_be_moved_says_why(properties, text):
    with pytest.raises(UnrestorableMessageError, match=text):
        restore(backlogged(properties))


def test_a_message_without_any_application_properties_has_no_path():
    with pytest.raises(UnrestorableMessageError, match="no application property x-ms-path"):
        restore(encode_message(b"x", message_id="m"))


@pytest.mark.parametrize(("ticks", "ttl"), [(15_000_000, 1500), (15_000_001, 1501), (1, 1), (0, 0)])
def test_the_time_to_live_of_the_net_sdk_is_read(ticks, ttl):
    timespan = Described(Symbol("com.microsoft:timespan"), Long(ticks))
    restored = restore(backlogged({"x-ms-path": "orders", "x-ms-timetolive": timespan}))
    assert decode_message(restored.message).ttl_ms == ttl


def test_the_longest_timespan_means_no_time_to_live():
    restored = restore(backlogged({"x-ms-path": "orders", "x-ms-timetolive": Long(2**63 - 1)}))
    assert decode_message(restored.message).ttl_ms is None


def in_backlog(ttl: int, enqueued: int = T0, scheduled: int | None = None) -> bytes:
    message = encode_message(b"", message_id="m", ttl_ms=ttl, created_ms=T0 - 5, scheduled_ms=scheduled)
    return through_the_broker(wrap(message, "orders"), enqueued)


def lifetime(message: bytes) -> tuple:
    decoded = decode_message(message)
    return decoded.ttl_ms, decoded.creation_time.value, decoded.absolute_expiry_time.value


def test_the_time_to_live_is_restored_in_full_and_its_times_lie_ahead():
    restored = restore(in_backlog(HOUR), now_ms=T0 + 5 * HOUR)
    assert not restored.expired
    assert lifetime(restored.message) == (HOUR, T0 - 5 + 5 * HOUR, T0 - 5 + 6 * HOUR)


def test_deducting_takes_off_the_time_in_the_backlog_and_keeps_the_expiry_time():
    restored = restore(in_backlog(3 * HOUR), ttl="deduct", now_ms=T0 + HOUR)
    assert not restored.expired
    assert lifetime(restored.message) == (2 * HOUR, T0 - 5 + HOUR, T0 - 5 + 3 * HOUR)


@pytest.mark.parametrize(("spent", "expired"), [(HOUR - 1, False), (HOUR, True), (9 * HOUR, True), (-HOUR, False)])
def test_deducting_tells_when_nothing_is_left(spent, expired):
    assert restore(in_backlog(HOUR), ttl="deduct", now_ms=T0 + spent).expired is expired


def test_a_scheduled_messages_time_to_live_counts_from_its_scheduled_time():
    message = in_backlog(HOUR, scheduled=T0 + 10 * HOUR)
    assert lifetime(restore(message, ttl="deduct", now_ms=T0 + 9 * HOUR).message)[0] == HOUR
    assert lifetime(restore(message, ttl="deduct", now_ms=T0 + 10 * HOUR + 1000).message)[0] == HOUR - 1000
    assert restore(message, ttl="deduct", now_ms=T0 + 11 * HOUR).expired


def test_a_scheduled_time_in_the_past_is_restored_as_it_was():
    restored = restore(in_backlog(HOUR, scheduled=T0), now_ms=T0 + HOUR)
    assert decode_message(restored.message).scheduled_ms == T0


def test_a_time_to_live_over_49_days_survives_and_is_deducted_from():
    message = in_backlog(2000 * HOUR)
    assert lifetime(restore(message).message) == (2**32 - 1, T0 - 5, T0 - 5 + 2000 * HOUR)
    ttl, created, expires = lifetime(restore(message, ttl="deduct", now_ms=T0 + 500 * HOUR).message)
    assert (ttl, expires - created) == (2**32 - 1, 1500 * HOUR)


def test_deducting_leaves_a_message_without_a_time_to_live_alone():
    message = encode_message(b"", message_id="m")
    restored = restore(through_the_broker(wrap(message, "orders"), T0), ttl="deduct", now_ms=T0 + 900 * HOUR)
    assert not restored.expired
    assert typed_message(decode_message(restored.message)) == typed_message(decode_message(message))


def test_an_expiry_time_without_time_to_live_is_deducted_from_too():
    own = message_of((PROPERTIES, [None] * 8 + [Timestamp(T0 + HOUR), Timestamp(T0)]))
    message = through_the_broker(wrap(own, "orders"), T0)
    assert not restore(message, ttl="deduct", now_ms=T0 + HOUR - 1).expired
    assert restore(message, ttl="deduct", now_ms=T0 + HOUR).expired
    assert not restore(message, now_ms=T0 + 2 * HOUR).expired


def test_deducting_needs_the_time():
    with pytest.raises(ValueError, match="needs now_ms"):
        restore(in_backlog(HOUR), ttl="deduct")


def test_durability_and_priority_are_the_senders_own():
    message = message_of((HEADER, [True, UByte(7), UInt(5000)]))
    assert decode_message(wrap(message, "orders")).header[:3] == (True, UByte(7), None)
    restored = restore(through_the_broker(wrap(message, "orders"), T0))
    assert decode_message(restored.message).header == (True, UByte(7), UInt(5000), None, None)


@given(foreign_messages().filter(len), st.data())
def test_mutated_messages_are_wrapped_and_restored_or_give_a_documented_error(message, data):
    mutated = bytearray(data.draw(st.sampled_from([message, wrap(message, "orders")])))
    for _ in range(data.draw(st.integers(1, 3))):
        mutated[data.draw(st.integers(0, len(mutated) - 1))] = data.draw(st.integers(0, 255))
    for attempt in (
        lambda: restore(wrap(bytes(mutated), "orders"), ttl="deduct", now_ms=T0),
        lambda: restore(bytes(mutated), now_ms=T0),
    ):
        try:
            attempt()
        except CodecError:
            continue


@given(st.binary(max_size=120))
def test_arbitrary_bytes_are_restored_or_give_a_documented_error(message):
    for attempt in (lambda: restore(message), lambda: wrap(message, "orders")):
        try:
            attempt()
        except CodecError:
            continue


PLAIN = encode_message(b"x", message_id="m@@@@@@@@@@@@")
# As most deliveries have it: numbers of the broker's, and nothing else.
USUAL = {
    "x_opt_sequence_number": Long(2**40),
    "x_opt_enqueued_time": Timestamp(T0),
    "x_opt_message_state": 0,
    "x_opt_locked_until": Timestamp(T0 + 60_000),
}


def delivered(**annotations: object) -> bytes:
    """A plain message out of a backlog queue, with these annotations and a header that counts deliveries."""
    pairs = tuple((Symbol(name.replace("_", "-")), value) for name, value in annotations.items())
    header = section_prefix(HEADER) + encode_value([None, None, None, None, UInt(3)])
    return header + section_prefix(MESSAGE_ANNOTATIONS) + encode_value(Map(pairs)) + wrap(PLAIN, "orders")


def test_the_usual_annotations_of_the_broker_are_dropped_and_the_enqueued_time_is_told():
    restored = restore(delivered(**USUAL), now_ms=T0 + HOUR)
    assert (restored.path, restored.message, restored.enqueued_ms) == ("orders", PLAIN, T0)
    assert restore(delivered(x_opt_sequence_number=Long(1))).enqueued_ms is None


@pytest.mark.parametrize(
    "own", [{"x_opt_mine": Long(1)}, {"x_opt_partition_key": "k"}, {"mine": "x-opt-enqueued-time"}]
)
def test_an_annotation_of_the_senders_among_them_is_kept(own):
    restored = restore(delivered(**USUAL, **own), now_ms=T0 + HOUR)
    [(name, value)] = own.items()
    kept = section_prefix(MESSAGE_ANNOTATIONS) + encode_value(Map(((Symbol(name.replace("_", "-")), value),)))
    assert (restored.message, restored.enqueued_ms) == (kept + PLAIN, T0)


def test_annotations_that_claim_another_number_than_they_have_are_malformed():
    raw = delivered(**USUAL)
    at = raw.index(section_prefix(MESSAGE_ANNOTATIONS)) + 5
    assert raw[at - 2] == 0xC1
    assert raw[at] == 2 * len(USUAL)
    with pytest.raises(MalformedMessageError):
        restore(raw[:at] + bytes((2 * len(USUAL) + 2,)) + raw[at + 1 :])


def test_of_two_messages_with_the_same_properties_each_has_its_own_session_and_times():
    first, second = (encode_message(b"x", message_id="m", session_id=session) for session in ("a", "b"))
    assert [restore(wrap(each, "orders")).message for each in (first, second, first)] == [first, second, first]


def slowly(message: bytes, **asked: object) -> object:
    """What `restore` makes of it without its shortcuts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(restoring, "_ONLY_BROKER_KEYS", re.compile(b"(?!)"))
        patch.setattr(restoring, "_only_an_id", lambda encoded, section: False)
        patch.setattr(restoring, "_SHORT", -1)
        patch.setattr(restoring, "_header", restoring._header.__wrapped__)
        return outcome(message, **asked)


def outcome(message: bytes, **asked: object) -> object:
    try:
        restored = restore(message, **asked)
    except CodecError as error:
        return type(error), str(error)
    return restored, restored.enqueued_ms


NUMBERS = st.integers(0, 2**40).map(Long) | st.integers(-5, 5) | st.integers(0, 255).map(UByte)
BROKERS = ("x_opt_sequence_number", "x_opt_message_state", "x_opt_scheduled_enqueue_time", "x_opt_partition_id")
any_annotations = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(BROKERS, NUMBERS | st.integers(0, 2**40).map(Timestamp)),
        "x_opt_enqueued_time": st.integers(0, 2**45).map(Timestamp) | NUMBERS | st.just(b"x-opt-"),
        "x_opt_mine": NUMBERS,
        "mine": st.sampled_from(["", "x-opt-", Symbol("x-opt-enqueued-time")]),
    },
)


@given(
    any_annotations.map(lambda found: delivered(**found))
    | foreign_messages().map(lambda message: wrap(message, "orders"))
    | row_fields().map(lambda fields: through_the_broker(wrap(encode_message(**fields), "orders"), T0)),
    st.lists(st.tuples(st.integers(-200, 200), st.integers(0, 255)), max_size=2),
    st.sampled_from(["full", "deduct"]),
)
@example(delivered(), [], "full")
@example(delivered(**USUAL), [(-14, 0x06)], "full")  # the type of the path
def test_the_shortcuts_of_restore_give_what_the_long_way_gives(message, changes, ttl):
    mutated = bytearray(message)
    for at, byte in changes:
        mutated[at % len(mutated)] = byte
    for each in (message, bytes(mutated)):
        asked = {"ttl": ttl, "now_ms": T0 + HOUR}
        assert outcome(each, **asked) == outcome(each, **asked) == slowly(each, **asked)
