"""The envelope: a message for one entity made fit for a backlog queue that many entities share, and back.

Works on the sections of an encoded message and forwards byte for byte what needs no change. Knows no clock and no link.
"""

from spark_sb_sink.envelope.lifetime import TtlPolicy
from spark_sb_sink.envelope.restoring import Restored, restore
from spark_sb_sink.envelope.wrapping import wrap

__all__ = ["Restored", "TtlPolicy", "restore", "wrap"]
