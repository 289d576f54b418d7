"""Batches as full as the link allows, in order, whatever the sizes; and the names that no message may have."""

from collections import deque
from itertools import chain, pairwise

from hypothesis import given
from hypothesis import strategies as st

from spark_sb_sink.amqp import encode_message, size_in_batch
from spark_sb_sink.amqp.batch import batch_prefix
from spark_sb_sink.filling import Filler
from spark_sb_sink.reports import Tally
from spark_sb_sink.transport import LinkLimits, members

SMALL = LinkLimits(max_message_size=4000, max_batch_size=3000)


def message(number: int, size: int, **fields: object) -> bytes:
    return encode_message(b"x" * size, message_id=f"m{number}", **fields)


class OneByOne(Filler):
    """Looks at each message, always."""

    def _plain(self, *_: object) -> None:
        return None


def filled(
    messages: list[bytes], limits: LinkLimits, *, partitioned: bool = False, made: type[Filler] = Filler
) -> tuple[list[list[bytes]], Tally]:
    """All of them in batches, each as its messages were read back from its payload."""
    tally = Tally("orders")
    filler = made("orders", tally, partitioned=partitioned, left=lambda size: None)
    waiting = deque(enumerate(messages))
    found = []
    while waiting:
        batch = filler.fill(waiting, limits, wrapped=False)
        if batch.messages:
            payload = batch.payload()
            several = len(batch.messages) > 1
            assert not several or len(payload) <= limits.max_batch_size
            found.append(members(payload) if several else [payload])
            assert found[-1] == [each for _, each in batch.messages]
    return found, tally


@given(st.lists(st.integers(0, 4200), max_size=40))
def test_batches_are_full_and_in_order_and_what_is_too_large_is_put_aside(sizes: list[int]) -> None:
    messages = [message(number, size) for number, size in enumerate(sizes)]
    found, tally = filled(messages, SMALL)
    fit = [each for each in messages if len(each) <= SMALL.max_message_size]
    assert [each for batch in found for each in batch] == fit
    assert [unsent.message for unsent in tally.rejected] == [each for each in messages if each not in fit]
    for batch, after in pairwise(found):
        used = len(batch_prefix(batch[0])) + sum(size_in_batch(len(each)) for each in batch)
        assert used + size_in_batch(len(after[0])) > SMALL.max_batch_size


IN_LIMITS = [LinkLimits(most, batch) for most in (30, 400, 4000) for batch in (60, 300, 3000)]
any_message = st.one_of(
    st.just(b""),
    st.builds(message, st.integers(0, 99), st.integers(0, 600)),
    st.builds(message, st.integers(0, 99), st.just(5), partition_key=st.sampled_from("ab")),
    st.builds(message, st.integers(0, 99), st.just(5), application_properties=st.just({"x-ms-path": "bills"})),
    st.just(encode_message(b"in-ms-words")),
)


@given(st.lists(any_message, max_size=30), st.sampled_from(IN_LIMITS))
def test_many_at_a_time_become_what_they_become_one_by_one(messages: list[bytes], limits: LinkLimits) -> None:
    (found, tally), (expected, same) = filled(messages, limits), filled(messages, limits, made=OneByOne)
    assert tally == same
    assert list(chain.from_iterable(found)) == list(chain.from_iterable(expected))
    # One that is put aside may be found before the batch is full, or after it.
    assert found == expected or tally.rejected


def test_empty_messages_go_in_a_batch_with_others() -> None:
    assert filled([b"", b"", message(1, 5)], SMALL)[0] == [[b"", b"", message(1, 5)]]


def test_a_batch_takes_no_more_than_4500_messages_however_small() -> None:
    found, _ = filled([message(number, 0) for number in range(9_001)], LinkLimits(2**30, 2**30))
    assert [len(batch) for batch in found] == [4500, 4500, 1]


def test_the_one_message_with_a_name_of_the_envelope_is_put_aside_and_the_others_go_together() -> None:
    messages = [message(number, 20) for number in range(10)]
    messages[4] = message(4, 20, application_properties={"x-ms-path": "bills"})
    found, tally = filled(messages, SMALL)
    assert found == [[*messages[:4], *messages[5:]]]
    assert [unsent.position for unsent in tally.rejected] == [4]
    assert "x-ms-path" in tally.rejected[0].reason


def test_a_body_that_only_speaks_of_such_a_name_is_sent() -> None:
    messages = [encode_message(b'{"x-ms-path": 1}', message_id=str(number)) for number in range(3)]
    assert filled(messages, SMALL)[0] == [messages]


def test_on_a_partitioned_entity_a_batch_has_one_session() -> None:
    messages = [message(number, 20, session_id=session) for number, session in enumerate("aabba")]
    assert filled(messages, SMALL, partitioned=True)[0] == [messages[:2], messages[2:4], messages[4:]]
