"""The pytest plugin for users' pipelines: what docs/testing.md shows is run as it stands there."""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from spark_sb_sink.broker import BrokerProcess, ControlError, NamespaceHandle
from spark_sb_sink.options import Options
from spark_sb_sink.testing import Refuse, ServiceBusPair, _for_one_test, await_that

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")


def test_the_files_of_the_page_are_a_test_run_that_passes(tmp_path: Path) -> None:
    files = re.findall(r"```python\n# (\S+\.py)\n(.*?)```", PAGE, re.DOTALL)
    assert [name for name, _ in files] == ["conftest.py", "test_orders.py"]
    for name, code in files:
        (tmp_path / name).write_text(code)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def send(namespace: NamespaceHandle, entity: str, *ids: str) -> None:
    with (
        ServiceBusClient.from_connection_string(namespace.connection_string, retry_total=0) as client,
        client.get_queue_sender(entity) as sender,
    ):
        sender.send_messages([ServiceBusMessage("x", message_id=i) for i in ids])


def test_nothing_of_one_test_is_left_for_the_next(servicebus_broker: BrokerProcess, name: str) -> None:
    with _for_one_test(servicebus_broker) as first:
        first.primary.create_queue(name)
        backlog = f"{first.name}/x-servicebus-transfer/0"
        first.secondary.create_queue(backlog)
        send(first.primary, name, "a", "old")
        send(first.secondary, backlog, "old")
        assert (first.arrived(name), first.backlog()) == ({"a": 1, "old": 1}, {"old": 1})
        first.primary.hang(Refuse())
        first.primary.configure_journal(enabled=False)
    with _for_one_test(servicebus_broker) as second:
        second.primary.create_queue(name)  # the name is free again
        assert second.primary.faults() == []
        assert second.arrived(name) == {}
        again = ServiceBusPair(second.primary, second.secondary, first.name)
        again.secondary.create_queue(backlog)
        assert again.backlog() == {}
        send(second.primary, name, "a", "a", "b")
        assert second.arrived(name) == Counter({"a": 2, "b": 1})


def test_an_outage_is_one_of_the_entity_and_ends_with_its_block(servicebus: ServiceBusPair, name: str) -> None:
    other = f"{name}-other"
    for queue in (name, other):
        servicebus.primary.create_queue(queue)
    with servicebus.outage(name):
        send(servicebus.primary, other, "a")
        with pytest.raises(Exception, match=r"(?i)connection|closed|reset"):
            send(servicebus.primary, name, "a")
    send(servicebus.primary, name, "b")
    assert servicebus.arrived(name) == {"b": 1}


def test_its_options_are_right_and_can_be_changed(servicebus: ServiceBusPair) -> None:
    options = Options.from_dict(servicebus.options(backlog_queue_count=3))
    assert options.backlog_queue_count == 3
    assert options.backlog_path.startswith(servicebus.name)
    assert options.secondary.ca_file == servicebus.secondary.ca_file
    servicebus.secondary.create_queue(f"{options.backlog_path}0")
    assert servicebus.backlog() == {}


def test_waiting_for_what_never_comes_fails() -> None:
    with pytest.raises(pytest.fail.Exception, match="not within"):
        await_that(lambda: False, within=0.05)


def test_a_stopped_namespace_is_started_again(servicebus: ServiceBusPair) -> None:
    servicebus.primary.stop()
    servicebus.heal()
    assert servicebus.primary.overview()["running"]
    with pytest.raises(ControlError):
        servicebus.primary.counts("nowhere")
