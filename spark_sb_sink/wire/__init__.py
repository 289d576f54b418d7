"""The one place that touches private parts of azure-servicebus: encoded messages out, raw deliveries in.

The SDK gives connections, tokens, links and flow; what goes over them is encoded, decoded and settled by us. `check`
makes sure at first use that the SDK at hand still does what is relied on.
"""

from spark_sb_sink.wire.check import check_sdk
from spark_sb_sink.wire.management import RawDeferred, RawPeeked
from spark_sb_sink.wire.receiving import IdleDetachedError, RawDelivery, RawReceiver
from spark_sb_sink.wire.sending import RawSender, ping_by_link
from spark_sb_sink.wire.settling import ABANDON, COMPLETE, DEFER, RELEASE, Outcome, Settled, SettleResult, dead_letter

__all__ = [
    "ABANDON",
    "COMPLETE",
    "DEFER",
    "RELEASE",
    "IdleDetachedError",
    "Outcome",
    "RawDeferred",
    "RawDelivery",
    "RawPeeked",
    "RawReceiver",
    "RawSender",
    "SettleResult",
    "Settled",
    "check_sdk",
    "dead_letter",
    "ping_by_link",
]
