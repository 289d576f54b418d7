"""How fast the embedded broker is, so that what is measured against it later is not the broker's own limit.

Batched 200-byte messages, the real SDK on the other side with messages encoded beforehand. For each case the wall-clock
rate and the rate per second of the broker's own processor time ("on one core"), since the client shares the machine.
"""

import argparse
import json
import statistics
import time
from dataclasses import dataclass, field

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusMessageBatch, ServiceBusReceiver
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._pyamqp.message import BatchMessage
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport

from spark_sb_sink.broker import BrokerProcess, NamespaceHandle
from tests.bench.processes import cpu_seconds, memory

BODY = 200
to_wire = PyamqpTransport.to_outgoing_amqp_message


@dataclass
class Case:
    name: str
    target: float
    wall: list[float] = field(default_factory=list)
    core: list[float] = field(default_factory=list)

    def add(self, messages: int, wall: float, cpu: float) -> None:
        self.wall.append(messages / wall)
        self.core.append(messages / max(cpu, 0.01))

    def row(self) -> dict[str, object]:
        return {
            "case": self.name,
            "per_s": round(statistics.median(self.wall)),
            "per_s_min": round(min(self.wall)),
            "per_s_max": round(max(self.wall)),
            "per_core_s": round(statistics.median(self.core)),
            "target_per_core_s": self.target,
        }


def batches(count: int) -> list[ServiceBusMessageBatch]:
    """Full batches of messages that are encoded once, here; the SDK gets them ready-made."""
    made: list[ServiceBusMessageBatch] = []
    number = 0
    while number < count:
        batch = ServiceBusMessageBatch(max_size_in_bytes=256 * 1024)
        room = 256 * 1024 - 200
        while number < count:
            message = ServiceBusMessage(b"x" * BODY, message_id=f"{number:032x}")
            encoded = bytes(encode_payload(bytearray(), to_wire(message.raw_amqp_message)))
            room -= len(encoded) + 8
            if room < 0:
                break
            batch._message[5].append(encoded)  # type: ignore[attr-defined]
            number += 1
        made.append(batch)
    return made


def send(client: ServiceBusClient, queue: str, made: list[ServiceBusMessageBatch]) -> float:
    with client.get_queue_sender(queue) as sender:
        sender.create_message_batch()  # opens the link
        start = time.perf_counter()
        for batch in made:
            sender._handler.send_message(BatchMessage(*batch._message), timeout=60)  # type: ignore[attr-defined]
        return time.perf_counter() - start


def drain(client: ServiceBusClient, queue: str, count: int) -> float:
    """Receive with prefetch and settle each helping as one range."""
    with client.get_queue_receiver(queue, prefetch_count=2000) as receiver:
        start = time.perf_counter()
        left = count
        while left:
            messages = receiver.receive_messages(1000, max_wait_time=20)
            assert messages, f"{left} of {count} messages did not arrive"
            left -= len(messages)
            _complete_range(receiver, messages)
        return time.perf_counter() - start


def _complete_range(receiver: ServiceBusReceiver, messages: list[object]) -> None:
    first, last = messages[0], messages[-1]
    receiver._handler.settle_messages(  # type: ignore[attr-defined]
        (first._delivery_id, last._delivery_id),  # type: ignore[attr-defined]
        first._delivery_tag,  # type: ignore[attr-defined]
        "accepted",
        await_outcome=True,
        outcome_timeout=60,
    )


def run(rounds: int, count: int) -> list[dict[str, object]]:
    discard, stored, settled = Case("ingest, discard", 100_000), Case("ingest, stored", 40_000), Case("settled", 10_000)
    per_message: list[float] = []
    made = batches(count)
    payload = sum(len(member) for batch in made for member in batch._message[5]) / count  # type: ignore[attr-defined]
    with BrokerProcess("bench") as broker:
        namespace: NamespaceHandle = broker["bench"]
        namespace.create_queue("discard", discard=True)
        with ServiceBusClient.from_connection_string(namespace.connection_string) as client:
            for number in range(rounds):
                queue = f"stored-{number}"
                namespace.create_queue(queue, max_size_mb=5120, lock_duration=300)
                for case, where in ((discard, "discard"), (stored, queue)):
                    before, cpu = memory(broker.pid), cpu_seconds(broker.pid)
                    wall = send(client, where, made)
                    case.add(count, wall, cpu_seconds(broker.pid) - cpu)
                    if case is stored:
                        per_message.append((memory(broker.pid) - before) / count - payload)
                cpu = cpu_seconds(broker.pid)
                wall = drain(client, queue, count)
                settled.add(count, wall, cpu_seconds(broker.pid) - cpu)
                namespace.delete(queue)
                namespace.configure_journal(clear=True)
    rows = [case.row() for case in (discard, stored, settled)]
    # The first round grows the heap; later ones reuse it, so only the first tells what a message costs.
    rows.append({"case": "memory over payload", "bytes": round(per_message[0]), "target_bytes": 1024})
    return rows


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench broker", description=__doc__)
    parser.add_argument("--json", action="store_true", help='the last line is {"rows": [ … ]}')
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=50_000)
    given = parser.parse_args(arguments)
    rows = run(given.rounds, given.messages)
    for row in rows:
        print("  ".join(f"{key} {value}" for key, value in row.items()))
    if given.json:
        print(json.dumps({"rows": rows}))
    return 0
