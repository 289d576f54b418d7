"""Where options come from: TOML files, dictionaries, Spark's flat map, and ${NAME} from the environment.

Gives plain dictionaries; whether what is in them is right is the business of `options`.
"""

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spark_sb_sink.errors import OptionError
from spark_sb_sink.option_texts import FromEnvironment

_REFERENCE = re.compile(r"\$\$\{|\$\{([^}]*)\}?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SIDES = ("primary", "secondary")
PIPELINE_TABLES = ("source", "query")
"""Tables of a TOML file that say what to send and how often, not how."""
_SECRETS = tuple(f"{side}{key}" for side in _SIDES for key in ("", ".connection_string", ".client_secret"))
# Spark passes a writer's own options on with ours.
_SPARKS_OWN = frozenset(
    {
        "path",
        "checkpointlocation",
        "queryname",
        "asyncprogresstrackingenabled",
        "asyncprogresstrackingcheckpointintervalms",
    }
)


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The tables of a TOML file as they stand there."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"The options file {os.fspath(path)} could not be read: {error.strerror}.") from None
    except ValueError as error:  # not TOML, or not UTF-8; tomllib tells the place, not the text
        told = str(error) if isinstance(error, tomllib.TOMLDecodeError) else "it is not UTF-8 text"
        raise OptionError(f"The options file {os.fspath(path)} is no TOML: {told}.") from None


def unflatten(options: Mapping[str, str]) -> dict[str, Any]:
    """Spark's flat map as tables. Refuses secrets in plain text: Spark writes options into plans and event logs."""
    tables: dict[str, Any] = {}
    for raw_key, value in options.items():
        key = raw_key.lower()
        if key in _SPARKS_OWN:
            continue
        if key in _SECRETS and _is_plain_secret(key, value):
            name = key.upper().replace(".", "_")
            raise OptionError(
                f"{key} got a secret in plain text, which Spark writes into its plans and event logs, but takes a "
                f"reference to the environment, such as ${{{name}}}."
            )
        side, dot, rest = key.partition(".")
        if not dot or side not in _SIDES:
            if isinstance(tables.get(key), dict):
                raise OptionError(f"{key} got a value of its own and options below it, but takes only one of the two.")
            tables[key] = value
            continue
        table = tables.setdefault(side, {})
        if not isinstance(table, dict):
            raise OptionError(f"{side} got a value of its own and options below it, but takes only one of the two.")
        table[rest] = value
    return tables


def _is_plain_secret(key: str, value: str) -> bool:
    if _REFERENCE.search(value):
        return False
    if key.endswith(".client_secret"):
        return True
    # The emulator's key is the same for everybody, and printed in its documentation.
    emulator = "usedevelopmentemulator=true" in value.lower()
    return re.search(r"SharedAccess(?:Key|Signature)\s*=", value, re.I) is not None and not emulator


def resolve(data: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The data with each ${NAME} replaced by its value in the environment; $${ stands for a plain ${."""
    environ = os.environ if environ is None else environ
    resolved = {str(key): _resolved(value, str(key), environ) for key, value in data.items()}
    for side in _SIDES:
        table = resolved.get(side)
        if isinstance(table, dict) and table.get("identity") == "client_secret":
            for name in ("client_id", "tenant_id", "client_secret"):
                variable = f"AZURE_{name.upper()}"
                if name not in table and environ.get(variable):
                    table[name] = FromEnvironment(environ[variable], (variable,))
    return resolved


def _resolved(value: Any, key: str, environ: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _resolved(inner, f"{key}.{name}", environ) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_resolved(inner, key, environ) for inner in value]
    if not isinstance(value, str):
        return value
    variables: list[str] = []

    def look_up(match: re.Match[str]) -> str:
        name = match[1]
        if name is None:
            return "${"
        if not match[0].endswith("}") or not _VARIABLE.fullmatch(name):
            raise OptionError(
                f"{key} got a ${{ that names no environment variable, but takes ${{NAME}}, or $${{ for a plain ${{."
            )
        if name not in environ:
            raise OptionError(f"{key} takes its value from the environment variable {name}, which is not set.")
        variables.append(name)
        return environ[name]

    text = _REFERENCE.sub(look_up, value)
    return FromEnvironment(text, tuple(variables)) if variables else text
