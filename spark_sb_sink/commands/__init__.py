"""The commands of `spark-sb-sink`, one file each."""

import sys
from typing import NoReturn

import typer


def fail(text: str) -> NoReturn:
    """One sentence for the person at the terminal, and exit code 2."""
    print(f"spark-sb-sink: {text}", file=sys.stderr)
    raise typer.Exit(2)
