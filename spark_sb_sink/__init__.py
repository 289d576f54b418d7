"""A Spark Structured Streaming sink for Azure Service Bus with paired-namespace failover."""

__version__ = "0.1.0.dev0"

__all__ = ["__version__"]
