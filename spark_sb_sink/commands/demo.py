"""`spark-sb-sink demo`: not built yet; says so, after the check that it will need anyway."""

from spark_sb_sink.commands import fail
from spark_sb_sink.java import JavaMissingError, require_java


def demo() -> None:
    """Show a region die and nothing get lost, on the embedded broker (comes with a later version)."""
    try:
        require_java()
    except JavaMissingError as error:
        fail(str(error))
    fail("the demo comes with a later version; `spark-sb-sink broker --help` shows what there is to try today.")
