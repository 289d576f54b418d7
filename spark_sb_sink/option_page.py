"""Writes docs/options.md from the options themselves: `python -m spark_sb_sink.option_page > docs/options.md`."""

from spark_sb_sink.option_texts import option_docs
from spark_sb_sink.options import Options

_HEAD = """# Options
Made from the code by `python -m spark_sb_sink.option_page`; a test fails when the two differ.

The same options come from a TOML file (`conf/` has examples), from a dictionary and from Spark options; there a table's
option is written with a dot, `primary.namespace`. `${NAME}` takes a value from the environment, which is where keys
belong. Durations are texts such as `"1m"`, `"15m"`, `"0s"`, `"250ms"`, or numbers of seconds. A key that is missing or
misspelt, a value out of range and options that contradict each other are each one sentence that names the key, what it
got and what it takes.

| option | takes | default | what it is for |
| --- | --- | --- | --- |
"""


def page() -> str:
    """The whole page."""
    rows = [
        f"| `{doc.key}` | {_cell(doc.takes)} | {f'`{doc.default}`' if doc.default else ''} | {_cell(doc.about)} |"
        for doc in option_docs(Options)
    ]
    return _HEAD + "\n".join(rows) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(page(), end="")
