"""SIGTERM and SIGINT as an event that a job looks at between its steps."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def caught(stop: threading.Event, *numbers: int) -> Iterator[None]:
    """These signals set `stop`. A second one does what it would have done.

    A new Spark session takes SIGINT for itself: catch that one once the session is there.
    """
    before: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    def handle(number: int, frame: FrameType | None) -> None:
        stop.set()
        signal.signal(number, before[number])

    if threading.current_thread() is threading.main_thread():
        for number in numbers:
            before[number] = signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
