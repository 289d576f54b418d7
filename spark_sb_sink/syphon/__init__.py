"""The syphon: brings what waits in the backlog home to its entities. Receive, restore, send, settle.

This package knows nothing of Spark but for the module that makes a streaming query of it.
"""

from spark_sb_sink.syphon.drain import Drain, drain_for
from spark_sb_sink.syphon.empty import Emptied, until_empty
from spark_sb_sink.syphon.receipts import Receipt, Report

__all__ = ["Drain", "Emptied", "Receipt", "Report", "drain_for", "until_empty"]
