"""How the scene is shown: a live table below the story in a terminal, plain lines everywhere else.

Plain lines have no control characters. Which of the two it is depends on the stream alone, whatever the environment
forces upon colours.
"""

import os
import textwrap
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Protocol, Self, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from spark_sb_sink.demo.scene import Line, Scene, View, names
from spark_sb_sink.failover import Health

PLAIN_EVERY = 5.0
"""Seconds between lines of numbers where nothing can be drawn."""
PLAIN_WIDTH = 78
WIDEST = 100
ROOM_FOR_ALL = 76
ROOM_FOR_KINDS = 84
_STYLES = {
    Health.HEALTHY: "green",
    Health.SUSPECT: "yellow",
    Health.FAILED_OVER: "bold red",
    Health.PROBATION: "cyan",
}


class Display(Protocol):
    """Shows what is new whenever `update` is called. For one thread."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def update(self) -> None: ...

    def say(self, lines: Iterable[str]) -> None:
        """Lines that stay, below all that was shown."""
        ...


def display_for(stream: TextIO, scene: Scene, environ: dict[str, str] | None = None) -> Display:
    """The live one where the stream is a terminal that can do it."""
    term = (os.environ if environ is None else environ).get("TERM", "")
    if stream.isatty() and term not in ("", "dumb", "unknown"):
        return LiveDisplay(stream, scene)
    return PlainDisplay(stream, scene)


class PlainDisplay:
    """Each sentence when it is told, and the numbers now and then."""

    def __init__(self, stream: TextIO, scene: Scene) -> None:
        self._stream = stream
        self._scene = scene
        self._next = PLAIN_EVERY

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def update(self) -> None:
        for line in self._scene.lines():
            self.say(sentence(line, PLAIN_WIDTH))
        view = self._scene.view()
        if view.at >= self._next:
            self._next = view.at + PLAIN_EVERY
            if view.acknowledged.rows:
                self.say(wrapped(numbers(view), PLAIN_WIDTH))

    def say(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._stream.write(f"{line}\n")
        self._stream.flush()


class LiveDisplay:
    """The story scrolls by, the table stays below it."""

    def __init__(self, stream: TextIO, scene: Scene) -> None:
        self._stream = stream
        self._scene = scene
        self._console = Console(file=stream, force_terminal=True, highlight=False, emoji=False, markup=False)
        self._live = Live(
            console=self._console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )

    def __enter__(self) -> Self:
        self._fit()
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def _fit(self) -> None:
        """Standard output leads elsewhere, so the console cannot find the size by itself."""
        try:
            size = os.get_terminal_size(self._stream.fileno())
        except OSError:
            return
        if size.columns and size.lines:
            self._console.size = size

    def update(self) -> None:
        self._fit()
        for line in self._scene.lines():
            first, *rest = sentence(line, min(WIDEST, self._console.width - 1))
            self._console.print(Text(first[:6], "dim") + Text(first[6:]))
            for more in rest:
                self._console.print(Text(more))
        self._live.update(picture(self._scene.view(), self._console.width), refresh=True)

    def say(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._console.print(Text(line), soft_wrap=True)


def sentence(line: Line, width: int) -> list[str]:
    """With the time before it, and broken where the screen ends."""
    return wrapped(f"{clock(line.at)}  {line.text}", width)


def wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(20, width), subsequent_indent=" " * 6)


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def numbers(view: View) -> str:
    """All that the table says, in one line."""
    routes = view.acknowledged
    unwell: dict[Health, list[str]] = {line.health: [] for line in view.entities if line.health is not Health.HEALTHY}
    for line in view.entities:
        if line.health in unwell:
            unwell[line.health].append(line.target.name)
    states = "; ".join(f"{names(found)} {health.value}" for health, found in unwell.items()) or "all healthy"
    return (
        f"{clock(view.at)}  ... sent {routes.rows:,}: primary {routes.primary:,}, backlog {routes.backlog:,}, "
        f"overflow {routes.overflow:,}, quarantine {routes.quarantine:,}; depth {view.depth:,}, {view.rate:,.0f}/s; "
        f"{states}"
    )


def picture(view: View, width: int) -> RenderableType:
    """What stays below the story."""
    head = Rule(Text(f"{clock(view.at)}  {view.doing}", "bold"), align="left", style="dim")
    if not view.acknowledged.rows:
        return Group(Text(""), head)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("entity", no_wrap=True)
    if width >= ROOM_FOR_KINDS:
        table.add_column("", style="dim")
    table.add_column("state", min_width=11)
    routes = ["primary", "backlog", *(["overflow", "quarantine"] if width >= ROOM_FOR_ALL else [])]
    for name in (*routes, "drained"):
        table.add_column(name, justify="right", min_width=8)
    for line in view.entities:
        table.add_row(
            line.target.name,
            *([line.target.kind] if width >= ROOM_FOR_KINDS else []),
            Text(line.health.value, _STYLES[line.health]),
            *(f"{getattr(line.counts, route):,}" for route in routes),
            f"{line.drained:,}",
        )
    foot = Text(f"sent {view.acknowledged.rows:,}   {view.rate:,.0f}/s   backlog depth {view.depth:,} ")
    foot.append(bar(view.depth, view.deepest, max(1, min(30, width - len(foot) - 1))), "yellow")
    return Group(Text(""), head, table, foot)


def bar(depth: int, deepest: int, width: int) -> str:
    """As long as the backlog is deep, the deepest so far being the whole width; at least one mark if there is any."""
    if not depth or not deepest:
        return ""
    return "#" * max(1, round(width * depth / deepest))


def table_of(rows: Sequence[tuple[str, str, str]]) -> list[str]:
    """Name, value, remark; values end in one column."""
    names, values = (max(len(row[at]) for row in rows) for at in (0, 1))
    return [f"  {name:<{names}}  {value:>{values}}  {remark}".rstrip() for name, value, remark in rows]
