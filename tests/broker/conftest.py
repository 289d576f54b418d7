"""The SDK's clients, sync and aio, for the tests of the broker."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from spark_sb_sink.broker import NamespaceHandle
from tests.broker.sdk import opener


@pytest.fixture(params=["sync", "aio"])
def open_client(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    with ExitStack() as stack:
        yield opener(request.param, stack)


@pytest.fixture
def client(open_client: Callable[..., Any], namespace: NamespaceHandle) -> Any:
    return open_client(namespace.connection_string)
