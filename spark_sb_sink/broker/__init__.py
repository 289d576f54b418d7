"""An embedded AMQP 1.0 broker that the azure-servicebus SDK takes for Service Bus, made to inject faults.

Optional (`pip install '.[broker]'` from a clone); the library proper never imports it.
"""

from spark_sb_sink.broker.faults import (
    BlackHole,
    Busy,
    CbsAnswer,
    CutMidBatch,
    FullQuota,
    LateVisible,
    LoseAck,
    ManagementAnswer,
    Refuse,
    Reject,
    Shape,
)
from spark_sb_sink.broker.process import BrokerProcess, ControlError, NamespaceHandle

__all__ = [
    "BlackHole",
    "BrokerProcess",
    "Busy",
    "CbsAnswer",
    "ControlError",
    "CutMidBatch",
    "FullQuota",
    "LateVisible",
    "LoseAck",
    "ManagementAnswer",
    "NamespaceHandle",
    "Refuse",
    "Reject",
    "Shape",
]
