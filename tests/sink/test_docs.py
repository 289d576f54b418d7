"""The tables of docs/sink.md name what the code has. What the page shows is run by tests/docs."""

import re
from pathlib import Path

import pytest

from spark_sb_sink import delta_state, events
from spark_sb_sink.pipeline_options import QueryOptions, SourceOptions

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "sink.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("prefix", "model"), [("source", SourceOptions), ("query", QueryOptions)])
def test_every_key_of_a_pipeline_stands_on_the_page(prefix: str, model: type[SourceOptions | QueryOptions]) -> None:
    assert set(re.findall(rf"`{prefix}\.(\w+)`", PAGE)) == set(model.model_fields)


def test_every_column_of_the_delta_tables_stands_on_the_page() -> None:
    rows = [line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    for table in ("overflow", "quarantine", "ledger"):
        assert delta_state._COLUMNS[table].keys() <= named


def test_every_event_of_the_sink_stands_on_the_page() -> None:
    names = [event.__name__ for event in events.Event.__args__]  # type: ignore[attr-defined]
    for name in names:
        assert f"| `{name}` |" in PAGE or name.startswith("Syphon")
