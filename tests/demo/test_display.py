"""What one sees: plain lines in a pipe and on a dumb terminal, a live table on a terminal that can do it."""

import io
import os
import pty
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest
from rich.console import Console
from typer.testing import CliRunner

from spark_sb_sink.cli import app
from spark_sb_sink.demo.display import LiveDisplay, PlainDisplay, bar, clock, display_for, numbers, picture, sentence
from spark_sb_sink.demo.ending import NEXT, NO_JARS, failure_lines, next_lines
from spark_sb_sink.demo.scene import Line, Scene, Target, names
from spark_sb_sink.errors import OptionError
from spark_sb_sink.events import BatchSent, Moved, RouteCounts, SyphonTurn, Warned
from spark_sb_sink.failover import Health

ROOT = Path(__file__).resolve().parents[2]
TARGETS = (Target("orders", "queue"), Target("invoices", "queue"), Target("events", "topic"))


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def ticks() -> Clock:
    return Clock()


@pytest.fixture
def scene(ticks: Clock) -> Scene:
    made = Scene(TARGETS, ticks)
    made.tell("All is well.", "all is well")
    bad = RouteCounts("invoices", overflow=4, quarantine=2)
    counts = (RouteCounts("orders", primary=10, backlog=40), RouteCounts("events", primary=50), bad)
    made.hear(BatchSent("q", 0, 106, 1.0, counts))
    made.hear(SyphonTurn("s", 0, (Moved("0", "orders", 15, 0, 0, 0, 0, None, 0),)))
    made.believe("orders", Health.FAILED_OVER)
    made.measure(50)
    made.measure(25)
    return made


@pytest.fixture
def terminal() -> Iterator[TextIO]:
    outer, inner = pty.openpty()
    with os.fdopen(inner, "w") as stream:
        yield stream
    os.close(outer)


@pytest.mark.parametrize("term", ["dumb", "unknown", ""])
def test_a_terminal_that_can_do_nothing_gets_plain_lines(term: str, scene: Scene, terminal: TextIO) -> None:
    assert isinstance(display_for(terminal, scene, {"TERM": term}), PlainDisplay)


def test_a_terminal_gets_the_live_table(scene: Scene, terminal: TextIO) -> None:
    assert isinstance(display_for(terminal, scene, {"TERM": "xterm-256color"}), LiveDisplay)


def test_a_pipe_gets_plain_lines_whatever_is_forced(scene: Scene) -> None:
    assert isinstance(display_for(io.StringIO(), scene, {"TERM": "xterm", "FORCE_COLOR": "1"}), PlainDisplay)


def test_plain_lines_are_the_story_and_now_and_then_the_numbers(scene: Scene, ticks: Clock) -> None:
    stream = io.StringIO()
    with PlainDisplay(stream, scene) as display:
        display.update()
        display.update()
        ticks.now += 5
        display.update()
        display.update()
    assert stream.getvalue().splitlines() == [
        "0:00  All is well.",
        "0:05  ... sent 106: primary 60, backlog 40, overflow 4, quarantine 2; depth",
        "      25, 21/s; orders failed over",
    ]


def test_the_live_table_shows_states_routes_depth_and_rate(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = io.StringIO()
    stream.fileno = lambda: -1  # type: ignore[method-assign]
    with LiveDisplay(stream, scene) as display:
        display.update()
    shown = stream.getvalue()
    for text in (
        "0:00",
        "All is well.",
        "orders",
        "failed over",
        "healthy",
        "quarantine",
        "sent 106",
        "21/s",
        "depth 25",
    ):
        assert text in shown
    assert "#" * 15 in shown
    assert "#" * 16 not in shown, "half of the deepest"
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l"), "the cursor is back"


@pytest.mark.parametrize(("width", "shown"), [(120, 4), (80, 4), (60, 2)])
def test_the_table_has_every_route_that_there_is_room_for(scene: Scene, width: int, shown: int) -> None:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(picture(scene.view(), width))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(map(len, lines)) <= width
    [head] = [line for line in lines if "entity" in line]
    assert head.split()[2:] == [*("primary", "backlog", "overflow", "quarantine")[:shown], "drained"]
    assert any("topic" in line for line in lines) == (width == 120)
    [invoices] = [line for line in lines if line.startswith("invoices")]
    assert invoices.split()[-shown - 1 :] == [*("0", "0", "4", "2")[:shown], "0"]


def test_the_rate_is_that_of_the_last_seconds(scene: Scene, ticks: Clock) -> None:
    assert scene.view().rate == 21.2
    ticks.now += 6
    assert scene.view().rate == 0


def test_entities_of_one_state_are_told_together(scene: Scene) -> None:
    for target in TARGETS[1:]:
        scene.believe(target.name, Health.FAILED_OVER)
    assert numbers(scene.view()).endswith("orders, invoices and events failed over")
    assert names(["one"]) == "one"
    assert names(["one", "two"]) == "one and two"


def test_a_warning_is_part_of_the_story_once(scene: Scene, ticks: Clock) -> None:
    scene.lines()
    ticks.now += 3
    for text in ("one", "one", "two"):
        scene.hear(Warned(text))
    assert scene.lines() == [Line(3, "Warning: one"), Line(3, "Warning: two")]


def test_sentences_are_broken_below_their_beginning() -> None:
    assert sentence(Line(61, "one two three four"), 20) == ["1:01  one two three", "      four"]
    assert clock(600) == "10:00"


@pytest.mark.parametrize(("depth", "deepest", "shown"), [(0, 0, ""), (0, 9, ""), (1, 1000, "#"), (9, 9, "#" * 20)])
def test_the_bar_is_as_long_as_the_backlog_is_deep(depth: int, deepest: int, shown: str) -> None:
    assert bar(depth, deepest, 20) == shown


def test_each_line_of_what_to_type_next_is_a_command_that_there_is() -> None:
    _, title, *lines = next_lines(None, "spark-sb-sink")
    assert len(lines) == len(NEXT) == 3
    assert all(len(line) <= 79 for line in (title, *lines))
    for line in lines:
        program, command, *options = shlex.split(line)
        assert program == "spark-sb-sink"
        told = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"})
        assert told.exit_code == 0, f"there is no {command}"
        for option in options:
            if option.startswith("--"):
                assert option in told.output
            elif option.endswith(".toml"):
                assert (ROOT / option).is_file()


def test_what_was_kept_is_told_before() -> None:
    assert next_lines(Path("/some/where"), "x")[1] == "The Delta tables are kept in /some/where."


class TestFailureLines:
    def test_an_error_of_ours_says_it_all(self) -> None:
        assert failure_lines(OptionError("state is wrong."), "ERROR something") == ["state is wrong."]

    def test_any_other_comes_with_what_the_log_has_and_without_its_noise(self) -> None:
        log = (
            "WARN something Error\n\tat org.Error.main(Error.java)\n"
            "::          UNRESOLVED DEPENDENCIES\nunresolved dependency: io.delta#delta-spark: not found\n"
            "Exception in thread main: java.lang.RuntimeException: unresolved dependency\n"
        )
        assert failure_lines(RuntimeError("[JAVA_GATEWAY_EXITED] Java exited.\nmore"), log) == [
            "[JAVA_GATEWAY_EXITED] Java exited.",
            "  | unresolved dependency: io.delta#delta-spark: not found",
            "  | Exception in thread main: java.lang.RuntimeException: unresolved dependency",
            NO_JARS,
        ]

    def test_a_long_log_is_shown_by_its_beginning_and_its_end(self) -> None:
        lines = failure_lines(RuntimeError("x"), "".join(f"Error {number}\n" for number in range(100)))
        assert len(lines) < 20
        assert lines[1] == "  | Error 0"
        assert lines[-1] == "  | Error 99"

    def test_no_secret_is_shown(self) -> None:
        told = failure_lines(
            RuntimeError("x"), "Error: SharedAccessKey=abcdefghijklmnop0123456789abcdefghijklmnop0123=\n"
        )
        assert "abcdefghijklmnop" not in "".join(told)
