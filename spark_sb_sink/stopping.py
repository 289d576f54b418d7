"""SIGTERM and SIGINT as an event that a job looks at between its steps."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def stop_signal() -> Iterator[threading.Event]:
    """Set by SIGTERM or SIGINT. A second one ends the process as it would have."""
    stop = threading.Event()
    before: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    def handle(number: int, frame: FrameType | None) -> None:
        stop.set()
        signal.signal(number, before[number])

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, handle)
    try:
        yield stop
    finally:
        for caught, handler in before.items():
            signal.signal(caught, handler)
