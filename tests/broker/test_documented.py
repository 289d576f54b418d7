"""docs/broker.md tells the truth: its program runs, its faults are all there are, its control calls are taken."""

import inspect
import json
import re
from pathlib import Path

import pytest

from spark_sb_sink.broker import BrokerProcess
from spark_sb_sink.broker.control import _ROUTES
from spark_sb_sink.broker.faults import KINDS
from spark_sb_sink.broker.settings import Settings

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "broker.md").read_text(encoding="utf-8")


def table(heading: str) -> list[list[str]]:
    """The rows of the first table below a heading, without its head."""
    section = TEXT.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [line[1:-1].split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def test_its_program_runs(capsys: pytest.CaptureFixture[str]) -> None:
    [program] = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    exec(program, {})
    assert "what='accepted'" in capsys.readouterr().out


def test_its_faults_are_those_that_there_are_with_the_fields_that_they_have() -> None:
    told: dict[str, set[str]] = {}
    for row in table("Faults"):
        for name, fields in re.findall(r"`(\w+)\((.*?)\)`", row[0]):
            told.setdefault(name, set()).update(re.findall(r"(\w+)(?:=|,|$)", re.sub(r'"\w+"', "", fields)))
    there = {kind.__name__: set(inspect.signature(kind).parameters) for kind in KINDS.values()}
    assert set(told) == set(there)
    for name, fields in told.items():
        assert fields <= there[name], name


def test_its_settings_are_those_that_there_are() -> None:
    told = [name for row in table("Entities") for name in re.findall(r"`(\w+)`", row[0])]
    assert sorted(told) == sorted(Settings.__dataclass_fields__)


def test_its_control_calls_are_all_that_there_are() -> None:
    told = set(re.findall(r"/[a-z-]+(?:/tally)?", " ".join(row[0] for row in table("The control API"))))
    below = (path.removeprefix("/{namespace}").removesuffix("/{id:[0-9]+}") for _, path, _ in _ROUTES)
    assert told == {path for path in below if path}


def test_the_bodies_of_its_control_calls_are_taken() -> None:
    taken = set()
    with BrokerProcess("own") as broker:
        namespace = broker["own"]
        namespace.create_topic("news")
        for calls, bodies, _ in table("The control API"):
            paths = re.findall(r"/[a-z-]+", calls)
            given = [json.loads(body) for body in re.findall(r"`(\{.*?\})`(?:,|$)", bodies) if "…" not in body]
            for path, body in zip(paths, given, strict=False):
                namespace.call("POST", path, body)
                taken.add(path)
        assert namespace.overview()["entities"]["orders"]["type"] == "queue"
    assert taken >= {"/faults", "/queues", "/subscriptions", "/journal", "/policies", "/bearers", "/clock", "/pings"}
