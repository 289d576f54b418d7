"""The check for Java, with `java` programs of our own that say what many a real one says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark_sb_sink.java import JavaMissingError, java_program, major_version, require_java

VERSIONS = {
    'java version "1.8.0_402"\nJava(TM) SE Runtime Environment (build 1.8.0_402-b08)': 8,
    'openjdk version "11.0.22" 2024-01-16': 11,
    'openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment (build 17.0.15+6)': 17,
    'openjdk version "17" 2021-09-14': 17,
    'openjdk version "21.0.2" 2024-01-16 LTS': 21,
    'openjdk version "25-ea" 2025-09-16': 25,
    'Picked up _JAVA_OPTIONS: -Xmx1g\nopenjdk version "21.0.2" 2024-01-16': 21,
}


def a_java(folder: Path, says: str, *, mode: int = 0o755) -> Path:
    """A `java` that prints this, to standard error as the real one does."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{says}\nEND\n")
    program.chmod(mode)
    return program


@pytest.fixture(autouse=True)
def _no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but the shell on the PATH, and no JAVA_HOME."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")


def on_path(monkeypatch: pytest.MonkeyPatch, program: Path) -> None:
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}/bin{os.pathsep}/usr/bin")


def is_one_sentence_and_a_cure(text: str) -> bool:
    cure = "Install a JDK or JRE 17 or newer and put it on the PATH, or set JAVA_HOME."
    return text.startswith("Spark needs Java 17 or newer, but ") and text.endswith(cure) and "\n" not in text


@pytest.mark.parametrize(("says", "version"), VERSIONS.items())
def test_the_major_version_is_read_from_what_java_says(says: str, version: int) -> None:
    assert major_version(says) == version


@pytest.mark.parametrize("says", ["", "command not found", "version seventeen", 'version "x"'])
def test_there_is_no_version_in_what_is_none(says: str) -> None:
    assert major_version(says) is None


@pytest.mark.parametrize(("says", "version"), [(s, v) for s, v in VERSIONS.items() if v >= 17])
def test_a_java_that_is_new_enough_is_taken(
    says: str, version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path(monkeypatch, a_java(tmp_path, says))
    assert require_java() == version


@pytest.mark.parametrize(("says", "version"), [(s, v) for s, v in VERSIONS.items() if v < 17])
def test_a_java_that_is_too_old_is_named_with_its_version(
    says: str, version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = a_java(tmp_path, says)
    on_path(monkeypatch, program)
    with pytest.raises(JavaMissingError) as caught:
        require_java()
    assert is_one_sentence_and_a_cure(str(caught.value))
    assert f"{program} is Java {version}" in str(caught.value)


def test_no_java_on_the_path_is_said() -> None:
    assert java_program() is None
    with pytest.raises(JavaMissingError, match="there is no java on the PATH") as caught:
        require_java()
    assert is_one_sentence_and_a_cure(str(caught.value))


def test_a_java_home_without_java_is_named_even_if_there_is_one_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path(monkeypatch, a_java(tmp_path / "good", 'openjdk version "21"'))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    with pytest.raises(JavaMissingError, match="gone', which has no bin/java") as caught:
        require_java()
    assert is_one_sentence_and_a_cure(str(caught.value))


def test_the_java_of_java_home_comes_before_the_one_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path(monkeypatch, a_java(tmp_path / "old", 'openjdk version "11.0.22"'))
    home = a_java(tmp_path / "new", 'openjdk version "21.0.2"').parent.parent
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert require_java() == 21


def test_a_java_that_says_garbage_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = a_java(tmp_path, "Segmentation fault")
    on_path(monkeypatch, program)
    with pytest.raises(JavaMissingError, match="does not tell its version") as caught:
        require_java()
    assert is_one_sentence_and_a_cure(str(caught.value))


def test_a_java_that_says_what_is_no_text_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = a_java(tmp_path, "")
    program.write_text("#!/bin/sh\nprintf '\\377\\376\\200' >&2\n")
    on_path(monkeypatch, program)
    with pytest.raises(JavaMissingError, match="does not tell its version"):
        require_java()


def test_a_java_that_cannot_be_run_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = a_java(tmp_path, "", mode=0o644).parent.parent
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(JavaMissingError, match="did not run") as caught:
        require_java()
    assert is_one_sentence_and_a_cure(str(caught.value))


def test_the_demo_without_java_says_so_in_one_line_and_exits_with_2(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "JAVA_HOME"} | {"PATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "spark_sb_sink.cli", "demo"], capture_output=True, text=True, env=environment, timeout=60
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("spark-sb-sink: Spark needs Java 17 or newer, but there is no java on the PATH.")
