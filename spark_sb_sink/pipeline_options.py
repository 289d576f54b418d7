"""What a pipeline reads, and how often: the tables `source` and `query` of a TOML file. Without Spark."""

from collections.abc import Mapping
from os import PathLike
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ValidationError, model_validator

from spark_sb_sink.durations import parse_duration
from spark_sb_sink.errors import OptionError
from spark_sb_sink.namespaces import FROZEN
from spark_sb_sink.option_loading import PIPELINE_TABLES, read_toml, resolve
from spark_sb_sink.option_texts import contradiction, option, sentences
from spark_sb_sink.options import Options

FORMATS = ("kafka", "delta", "rate", "parquet", "json", "csv", "orc", "text")
_FILES = ("parquet", "json", "csv", "orc", "text")
AVAILABLE_NOW = "available-now"


def _format(value: object) -> object:
    if value not in FORMATS:
        raise ValueError
    return value


def _trigger(value: object) -> object:
    """Seconds between micro-batches, or available-now."""
    return value if value == AVAILABLE_NOW else parse_duration(value)


def _flat(value: Any, prefix: str = "") -> Any:
    """kafka.bootstrap.servers = "…" without quotes is three tables in TOML, and one option in Spark."""
    if not isinstance(value, Mapping):
        return value
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        flat |= _flat(inner, f"{prefix}{key}.") if isinstance(inner, Mapping) else {f"{prefix}{key}": inner}
    return flat


class SourceOptions(BaseModel):
    """Where the rows come from, and how they become rows of the row contract."""

    model_config = FROZEN

    format: Annotated[str, BeforeValidator(_format)] = option(
        takes=f"one of {', '.join(FORMATS)}", about="Spark's name of the source."
    )
    path: str | None = option(
        None,
        takes="the path of a Delta table or of a folder of files",
        about="For delta and files.",
        min_length=1,
    )
    table: str | None = option(None, takes="the name of a table", about="For delta, in place of path.", min_length=1)
    columns: str | None = option(
        None,
        takes='columns as Spark writes them in DDL, such as "id long, body string"',
        about="The columns of json, csv, parquet and orc files, which a stream does not look up by itself.",
        min_length=1,
    )
    where: str | None = option(
        None, takes="a condition in SQL", about="Which rows are sent; all if not given.", min_length=1
    )
    select: tuple[str, ...] = option(
        (),
        takes="a list of SQL expressions with the columns of the row contract as names",
        about="What makes the rows messages: docs/rows.md. All columns as they are if not given.",
    )
    options: Annotated[dict[str, Any], BeforeValidator(_flat)] = option(
        {}, takes="a table of Spark options of that source", about="Passed on to Spark, such as subscribe for kafka."
    )

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        if self.format in _FILES and self.path is None:
            raise contradiction(f"needs path with format = {self.format!r}, the folder that the files come to")
        if self.format in _FILES and self.format != "text" and self.columns is None:
            raise contradiction(f"needs columns with format = {self.format!r}, as a stream does not guess them")
        if self.format == "delta" and (self.path is None) == (self.table is None):
            raise contradiction("needs either path or table with format = 'delta'")
        if self.format in ("kafka", "rate") and (self.path or self.table or self.columns):
            raise contradiction(f"takes no path, table or columns with format = {self.format!r}")
        return self


class QueryOptions(BaseModel):
    """How the streaming query runs."""

    model_config = FROZEN

    checkpoint: str = option(
        takes="a path that outlives the job, one for each query",
        about="Where Spark keeps what was done; without it a restart would begin anew.",
        min_length=1,
    )
    trigger: Annotated[float | str, BeforeValidator(_trigger)] = option(
        0.0,
        takes='a duration such as "10s", or "available-now"',
        about="How often a micro-batch begins; 0s: when the last one ended. available-now: what is there, then end.",
    )
    name: str | None = option(None, takes="a name", about="The query's name in Spark's displays.", min_length=1)
    stop_within: Annotated[float, BeforeValidator(parse_duration)] = option(
        60.0,
        takes='a duration such as "1m"',
        about="On SIGTERM, how long the micro-batch under way may take; then it is cut off, and replayed on restart.",
        ge=0,
        le=3600,
    )


class PipelineOptions(BaseModel):
    """A pipeline: source, query and sink."""

    model_config = FROZEN

    source: SourceOptions = option(takes="a table [source]", about="What to send.")
    query: QueryOptions = option(takes="a table [query]", about="How the query runs.")
    sink: Options = option(takes="all other options of the file", about="How to send.")

    def __init__(self, /, **data: Any) -> None:
        problems: list[str] = []
        try:
            super().__init__(**data)
        except ValidationError as error:
            problems = sentences(type(self), error, data)
        if problems:
            raise OptionError(*problems)

    @classmethod
    def from_toml(cls, path: str | PathLike[str]) -> Self:
        """From one TOML file: the tables `source` and `query`, and the sink's options beside them."""
        sink = Options.from_toml(path)
        found = {key: value for key, value in read_toml(path).items() if key in PIPELINE_TABLES}
        return cls(sink=sink, **resolve(found))
