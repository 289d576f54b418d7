"""A Spark Structured Streaming sink for Azure Service Bus with paired-namespace failover.

The names here are the library's front door. They are looked up when they are used, so that importing the package
brings in neither Spark nor Azure.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_sb_sink.errors import SparkSbSinkError
    from spark_sb_sink.options import Options
    from spark_sb_sink.sink import ServiceBusSink
    from spark_sb_sink.syphon.query import Syphon

__version__ = "0.1.0.dev0"

__all__ = ["Options", "ServiceBusSink", "SparkSbSinkError", "Syphon", "__version__"]

_HOMES = {
    "Options": "spark_sb_sink.options",
    "ServiceBusSink": "spark_sb_sink.sink",
    "SparkSbSinkError": "spark_sb_sink.errors",
    "Syphon": "spark_sb_sink.syphon.query",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
