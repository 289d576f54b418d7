"""Signals as an event: caught while the block lasts, and the second one does what it would have done."""

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from spark_sb_sink.stopping import caught


class Own:
    """Handlers that note what came to them, in place of ending the tests."""

    def __init__(self) -> None:
        self.heard: list[int] = []

    def __call__(self, number: int, frame: object) -> None:
        self.heard.append(number)


@pytest.fixture
def own() -> Iterator[Own]:
    noted = Own()
    before = {number: signal.signal(number, noted) for number in (signal.SIGTERM, signal.SIGINT)}
    yield noted
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_sets_the_event_and_the_second_does_what_it_would_have_done(own: Own, number: int) -> None:
    stop = threading.Event()
    with caught(stop, signal.SIGTERM, signal.SIGINT):
        os.kill(os.getpid(), number)
        assert stop.is_set()
        assert own.heard == []
        os.kill(os.getpid(), number)
        assert own.heard == [number]


def test_only_these_signals_are_caught_and_only_in_the_block(own: Own) -> None:
    stop = threading.Event()
    with caught(stop, signal.SIGTERM):
        os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGTERM)
    assert own.heard == [signal.SIGINT, signal.SIGTERM]
    assert not stop.is_set()


def test_one_that_is_caught_again_inside_is_given_back_step_by_step(own: Own) -> None:
    outer, inner = threading.Event(), threading.Event()
    with caught(outer, signal.SIGINT):
        with caught(inner, signal.SIGINT):
            os.kill(os.getpid(), signal.SIGINT)
        assert (inner.is_set(), outer.is_set()) == (True, False)
        os.kill(os.getpid(), signal.SIGINT)
    assert outer.is_set()
    assert own.heard == []


def test_in_another_thread_than_the_main_one_python_takes_no_signals_and_none_is_caught(own: Own) -> None:
    def enter() -> None:
        with caught(threading.Event(), signal.SIGTERM):
            assert signal.getsignal(signal.SIGTERM) is own

    with ThreadPoolExecutor(1) as pool:
        pool.submit(enter).result()
