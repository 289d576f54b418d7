"""What stands where: the library knows nothing of the broker, and the root holds nothing but what the design names."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import spark_sb_sink

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path(spark_sb_sink.__file__).parent
AT_THE_ROOT = {
    ".ci",
    ".gitignore",
    "CHANGELOG.md",
    "LICENSE",
    "README.md",
    "conf",
    "docs",
    "jobs",
    "pyproject.toml",
    "spark_sb_sink",
    "tests",
}
DEMO_COMMAND = "python -m venv .venv && .venv/bin/pip install -e '.[demo]' && .venv/bin/spark-sb-sink demo"
TEST_COMMAND = "python -m venv .venv && .venv/bin/pip install -e '.[test]' && .venv/bin/pytest"


def library_files() -> list[Path]:
    """All modules but the broker, the command that runs it, the demo on it, and the fixtures that give it to tests."""
    apart = {PACKAGE / "commands" / "broker.py", PACKAGE / "testing.py"}
    folders = {PACKAGE / "broker", PACKAGE / "demo"}
    return [path for path in sorted(PACKAGE.rglob("*.py")) if path not in apart and not folders & {*path.parents}]


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[str]:
    package = module_name(path) if path.name == "__init__.py" else module_name(path).rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level - 1)[0] + "." if node.level else ""
            base = f"{above}{node.module or ''}".rstrip(".")
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def is_forbidden(name: str) -> bool:
    return name.split(".")[0] in ("proton", "cproton") or (name + ".").startswith("spark_sb_sink.broker.")


@pytest.mark.parametrize("path", library_files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nothing_in_the_library_names_the_broker_or_proton_in_an_import(path: Path) -> None:
    assert [name for name in imports(path) if is_forbidden(name)] == []


def test_no_module_of_the_library_brings_the_broker_or_proton_in_when_imported() -> None:
    # cli and commands put the broker's command beside the others: they import its module, and that imports nothing.
    names = [module_name(path) for path in library_files()]
    code = (
        "import importlib, json, sys\n"
        f"for name in {names!r}:\n"
        "    importlib.import_module(name)\n"
        "print(json.dumps(sorted(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    loaded = json.loads(done.stdout)
    assert set(names) <= set(loaded)
    assert [name for name in loaded if is_forbidden(name)] == []


PURE = (
    "amqp",
    "backlog_queues",
    "durations",
    "envelope",
    "errors",
    "failover",
    "faults",
    "filling",
    "keys",
    "options",
    "pair_life",
    "reports",
    "rotation",
    "rows",
)


def test_the_pure_core_imports_neither_spark_nor_azure_nor_anything_else_that_is_large() -> None:
    names = [f"spark_sb_sink.{name}" for name in PURE]
    code = f"import sys, {', '.join(names)}; print(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert {"azure", "delta", "proton", "py4j", "pyarrow", "pyspark"} & set(done.stdout.split()) == set()


@pytest.fixture(scope="module")
def tracked() -> list[str]:
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip("this is no git working tree")
    return done.stdout.splitlines()


def test_the_root_holds_nothing_but_what_the_design_names(tracked: list[str]) -> None:
    top = {name.split("/")[0] for name in tracked}
    assert top - AT_THE_ROOT == set()
    assert {"pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", ".ci", "spark_sb_sink", "tests"} <= top


def test_nothing_that_is_made_is_kept(tracked: list[str]) -> None:
    made = re.compile(r"(^|/)(__pycache__|node_modules|\.venv|spark-warehouse|metastore_db)/|\.pyc$|\.egg-info/")
    assert [name for name in tracked if made.search(name)] == []


@pytest.mark.parametrize("command", [DEMO_COMMAND, TEST_COMMAND])
def test_the_readme_has_the_command_in_a_block_of_its_own(command: str) -> None:
    blocks = re.findall(r"```sh\n(.*?)\n```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert command in blocks


def test_the_ci_runs_the_test_command_of_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    (pattern,) = re.findall(r'grep -m1 -E "([^"]+)" README\.md', script)
    found = [line for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines() if re.search(pattern, line)]
    assert found == [TEST_COMMAND]
    assert '-c "$command"' in script
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
