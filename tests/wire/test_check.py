"""An SDK that is not the one we know is found out at first use, in one sentence."""

from collections.abc import Iterator
from typing import Any

import pytest
from azure.servicebus.aio import ServiceBusClient

from spark_sb_sink.errors import IncompatibleSdkError
from spark_sb_sink.wire import RawSender, check_sdk, sdk

NOWHERE = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=a;SharedAccessKey=a2V5;UseDevelopmentEmulator=true"


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    check_sdk.cache_clear()
    yield
    check_sdk.cache_clear()


def sentence() -> str:
    with pytest.raises(IncompatibleSdkError) as caught:
        check_sdk()
    return str(caught.value)


def test_the_sdk_at_hand_passes_with_and_without_a_loop() -> None:
    check_sdk()
    assert check_sdk.cache_info().misses == 1
    check_sdk()
    assert check_sdk.cache_info().misses == 1


async def test_it_is_looked_at_before_the_first_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sdk.Connection, "listen")
    async with ServiceBusClient.from_connection_string(NOWHERE) as client:
        with pytest.raises(IncompatibleSdkError):
            await RawSender(client, "orders").open()


@pytest.mark.parametrize("found", ["7.14.3", "7.16.0", "8.0.0"])
def test_another_version_is_named_with_those_that_work(monkeypatch: pytest.MonkeyPatch, found: str) -> None:
    monkeypatch.setattr(sdk, "found_version", lambda: found)
    assert sentence() == (
        f"azure-servicebus {found} does not do what this library relies on (its private parts were never tried in this "
        "version); install azure-servicebus>=7.15,<7.16."
    )


def test_a_method_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sdk.Connection, "_get_remote_timeout")
    assert f"azure-servicebus {sdk.found_version()} does not" in sentence()
    assert "Connection._get_remote_timeout is gone" in sentence()


def test_a_method_that_takes_something_else_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def listen(self: Any, seconds: float) -> None: ...

    monkeypatch.setattr(sdk.Connection, "listen", listen)
    assert "Connection.listen no longer takes wait" in sentence()


def test_a_transfer_that_is_written_otherwise_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = sdk.Session._outgoing_transfer

    async def shorter(self: Any, delivery: Any, network_trace_params: Any) -> None:
        delivery.frame["payload"] = delivery.frame["payload"][1:]
        await whole(self, delivery, network_trace_params)

    monkeypatch.setattr(sdk.Session, "_outgoing_transfer", shorter)
    assert "did not come back as it was" in sentence()


def test_an_attribute_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    made = sdk.Connection.__init__

    def init(self: Any, *args: Any, **settings: Any) -> None:
        made(self, *args, **settings)
        del self._error

    monkeypatch.setattr(sdk.Connection, "__init__", init)
    assert "Connection has no _error" in sentence()
