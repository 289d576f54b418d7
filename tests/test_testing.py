"""The pytest plugin for users' pipelines: what docs/testing.md shows is run as it stands there."""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from spark_sb_sink.broker import ControlError
from spark_sb_sink.options import Options
from spark_sb_sink.testing import Refuse, ServiceBusPair, await_that

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


def send(pair: ServiceBusPair, entity: str, *ids: str) -> None:
    with (
        ServiceBusClient.from_connection_string(pair.primary.connection_string, retry_total=0) as client,
        client.get_queue_sender(entity) as sender,
    ):
        sender.send_messages([ServiceBusMessage("x", message_id=i) for i in ids])


def test_what_a_test_makes_is_gone_for_the_next_one(servicebus: ServiceBusPair) -> None:
    servicebus.primary.create_queue("made-by-a-test")  # and twice: the name has to be free again
    servicebus.primary.hang(Refuse())


def test_the_next_one_makes_it_again_and_finds_no_fault(servicebus: ServiceBusPair) -> None:
    servicebus.primary.create_queue("made-by-a-test")
    assert servicebus.primary.faults() == []
    send(servicebus, "made-by-a-test", "a", "a", "b")
    assert servicebus.arrived("made-by-a-test") == Counter({"a": 2, "b": 1})


def test_an_outage_is_one_of_the_entity_and_ends_with_its_block(servicebus: ServiceBusPair, name: str) -> None:
    other = f"{name}-other"
    for queue in (name, other):
        servicebus.primary.create_queue(queue)
    with servicebus.outage(name):
        send(servicebus, other, "a")
        with pytest.raises(Exception, match=r"(?i)connection|closed|reset"):
            send(servicebus, name, "a")
    send(servicebus, name, "b")
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
