"""The thread that looks after the overflow, beside the syphon's turns. What it does there is up to `overflow_drain`."""

import threading
from collections.abc import Callable

from spark_sb_sink.syphon.overflow_drain import OverflowDrain

AGAIN_AFTER = 4.0
"""Seconds between tries at the least, however soon somebody wants the overflow to be empty."""
STOP_WITHIN = 30.0
"""Seconds for all of a stop. Spark kills a Python task two seconds after it was cancelled."""


class OverflowThread:
    """Looks after the overflow now and then, beside the syphon's turns."""

    def __init__(self, drain: OverflowDrain, every: float, failed: Callable[[Exception], None]) -> None:
        self._drain = drain
        self._every = every
        self._failed = failed
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spark-sb-sink-overflow", daemon=True)
        self.drained = threading.Event()
        """Set while the last look found nothing left."""
        self.looks = 0

    def start(self) -> None:
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Begin to stop: a micro-batch has some seconds to end, then it is cut off, and sent again by the next one."""
        self._stop.set()

    def stop(self, within: float = STOP_WITHIN) -> bool:
        """Stop and wait for that; whether it came to its end in time."""
        self._stop.set()
        self._thread.join(within)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stop.is_set():
            pause = self._every
            try:
                if self._drain.pending():
                    self.drained.clear()
                    if self._drain.drain(self._stop) and not self._drain.pending():
                        self.drained.set()
                else:
                    self.drained.set()
                self.looks += 1
            except Exception as error:  # noqa: BLE001 - told, and tried again: an outage must not end it
                self.drained.clear()
                self._failed(error)
                pause = max(pause, AGAIN_AFTER)
            self._stop.wait(pause)
