"""A field per test: namespaces without faults and backlog queues of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_sb_sink.broker import BrokerProcess
from tests.syphon.field import Field


@pytest.fixture
def field(broker: BrokerProcess, tmp_path: Path) -> Iterator[Field]:
    with Field(broker, tmp_path) as made:
        yield made
