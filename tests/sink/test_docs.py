"""What docs/sink.md shows can be run, and its tables name what the code has."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

from spark_sb_sink import delta_state, events
from spark_sb_sink.pipeline_options import FORMATS, QueryOptions, SourceOptions

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "sink.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("code", blocks("python"), ids=lambda code: code.splitlines()[0])
def test_the_python_of_the_page_compiles_and_imports_what_is_there(code: str) -> None:
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom):
            assert node.module is not None
            exec(compile(ast.Module([node], []), "docs/sink.md", "exec"), {})


def test_the_toml_of_the_page_is_a_whole_pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.test_conf import ENVIRONMENT, PipelineOptions

    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    [code] = blocks("toml")
    assert tomllib.loads(code)["source"]["format"] in FORMATS
    (tmp_path / "p.toml").write_text(code)
    assert PipelineOptions.from_toml(tmp_path / "p.toml").query.trigger == 10.0


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


@pytest.mark.parametrize("page", ["docs/sink.md", "jobs/README.md"])
def test_every_link_leads_somewhere(page: str) -> None:
    path = ROOT / page
    for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), target
