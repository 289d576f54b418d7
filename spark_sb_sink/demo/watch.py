"""Looks at the board and at the backlog queues some times a second, and tells the scene."""

import threading
from collections.abc import Callable

from spark_sb_sink.board import Board
from spark_sb_sink.broker import NamespaceHandle
from spark_sb_sink.demo.scene import Scene

EVERY = 0.25


def depth_of(secondary: NamespaceHandle, folder: str) -> int:
    """Messages in all backlog queues, as the broker counts them."""
    return sum(
        counts["active"] + counts["deferred"]
        for name, entity in secondary.overview()["entities"].items()
        if name.startswith(folder)
        for counts in [entity["stores"][name]]
    )


class Watch:
    """A thread; `error` is what ended it before its time."""

    def __init__(self, scene: Scene, board: Board, depth: Callable[[], int]) -> None:
        self._scene = scene
        self._board = board
        self._depth = depth
        self._stop = threading.Event()
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="demo-watch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.wait(EVERY):
                self.look()
        except Exception as error:  # noqa: BLE001 - the story asks for it
            self.error = error

    def look(self) -> None:
        snapshot = self._board.snapshot()
        for entity in snapshot.entities:
            self._scene.believe(entity.entity, entity.health)
        for noted in snapshot.noted:
            self._scene.change(noted.change.entity, noted.change.after, noted.wall_time)
        self._scene.measure(self._depth())

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._board.close()
