"""`spark-sb-sink demo`: checks what it needs, and leaves the rest to `spark_sb_sink.demo`."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from spark_sb_sink.commands import fail
from spark_sb_sink.java import JavaMissingError, require_java

_NEEDS = ("pyspark", "delta", "pyarrow", "proton", "cryptography")


def demo(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the reckoning as the last line, and the story to standard error.")
    ] = False,
    keep: Annotated[
        Path | None, typer.Option("--keep", metavar="DIR", help="Keep the Delta tables in this folder, new or empty.")
    ] = None,
) -> None:
    """See a region die and nothing get lost: real Spark and Delta on the embedded broker, in a minute and a half.

    Exit code 0: nothing was lost; 1: something was; 2: it cannot start; 3: it could not be played to its end.

    Example: spark-sb-sink demo --json
    """
    missing = [name for name in _NEEDS if find_spec(name) is None]
    if missing:
        fail(f"the demo needs {', '.join(missing)}; install it from a clone of the project: pip install '.[demo]'")
    folder = None if keep is None else _folder(keep)
    try:
        require_java()
    except JavaMissingError as error:
        fail(str(error))
    from spark_sb_sink.demo.run import run

    raise typer.Exit(run(as_json=as_json, keep=folder))


def _folder(keep: Path) -> Path:
    """A new or empty folder that can be written to; what an earlier demo kept would be drained by the syphon."""
    folder = keep.expanduser().absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            fail(f"--keep got {str(keep)!r}, which is not empty; it takes a folder that is new or empty.")
    except OSError as error:
        fail(f"--keep got {str(keep)!r}, which cannot be used ({error.strerror}); it takes a folder, new or empty.")
    if not os.access(folder, os.W_OK | os.X_OK):
        fail(f"--keep got {str(keep)!r}, which cannot be written to; it takes a folder, new or empty.")
    return folder
