"""Commands run in this process, as a shell would run them: arguments in, exit code and both streams out."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from spark_sb_sink.cli import app


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, which has to be one document and nothing else."""
        assert self.code in (0, 1), self.err
        return json.loads(self.out)


def run(*arguments: str | Path, columns: int = 80, **environ: str) -> Done:
    """The command with these arguments, in a terminal or pipe of so many columns."""
    env = {"COLUMNS": str(columns), "TERM": "dumb", **environ}
    done = CliRunner().invoke(app, [str(argument) for argument in arguments], env=env)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Done(done.exit_code, done.stdout, done.stderr)


def toml(options: Mapping[str, Any]) -> str:
    """Options as a file has them."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in options.items() if not isinstance(value, Mapping)]
    for key, value in options.items():
        if isinstance(value, Mapping):
            lines += [f"[{key}]", *(f"{inner} = {json.dumps(each)}" for inner, each in value.items())]
    return "\n".join(lines) + "\n"


def sentence(done: Done) -> str:
    """What a person is told when something is wrong: on standard error, with exit code 2, and no traceback."""
    assert done.code == 2, (done.code, done.out, done.err)
    assert done.out == ""
    assert done.err.startswith("spark-sb-sink: ")
    assert done.err.count("\n") == 1, done.err
    assert "Traceback" not in done.err
    return done.err
