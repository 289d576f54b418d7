"""Every way in leads to working clients, with nothing told that is secret, and each failure is sorted right."""

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import logging
import os
import subprocess
import sys
import time
import urllib.parse
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from spark_sb_sink.broker import BrokerProcess, NamespaceHandle, certificates
from spark_sb_sink.connection_strings import parse_connection_string
from spark_sb_sink.credentials import Access
from spark_sb_sink.errors import (
    ClosedError,
    CredentialsRefusedError,
    ManageClaimMissingError,
    OptionError,
    SecondaryUnreachableError,
)
from spark_sb_sink.faults import Fault, Kind, Phase, sort, symptom_of
from spark_sb_sink.namespaces import NamespaceOptions
from spark_sb_sink.options import Options
from spark_sb_sink.pairing import pair_async

ALL = ("Send", "Listen", "Manage")


@pytest.fixture(scope="module")
def tls_broker() -> Iterator[BrokerProcess]:
    """Token credentials need TLS, and with it each namespace has an address of its own."""
    with BrokerProcess("one", "two", tls=True) as running:
        yield running


@pytest.fixture
def one(tls_broker: BrokerProcess) -> NamespaceHandle:
    return tls_broker["one"]


@pytest.fixture(autouse=True)
def no_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever identity this machine may have, the tests do not use it."""
    for variable in list(os.environ):
        if variable.startswith(("AZURE_", "IDENTITY_", "MSI_", "IMDS_")):
            monkeypatch.delenv(variable)


class IdentityEndpoint:
    """What App Service offers to the programs that it runs: a plain HTTP endpoint that hands out tokens."""

    def __init__(self, token: str = "", status: int = 200, body: Any = None) -> None:
        self.token, self.status, self.body = token, status, body
        self.asked: list[dict[str, str]] = []

    async def answer(self, request: web.BaseRequest) -> web.Response:
        self.asked.append({**request.query, "header": request.headers.get("X-IDENTITY-HEADER", "")})
        if self.status != 200:
            return web.json_response(self.body, status=self.status)
        expires = int(time.time()) + 3600
        return web.json_response(
            {
                "access_token": self.token,
                "expires_on": str(expires),
                "resource": request.query["resource"],
                "token_type": "Bearer",
            }
        )

    @contextlib.asynccontextmanager
    async def serving(self, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
        runner = web.ServerRunner(web.Server(self.answer))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        monkeypatch.setenv("IDENTITY_ENDPOINT", f"http://127.0.0.1:{runner.addresses[0][1]}/msi/token")
        monkeypatch.setenv("IDENTITY_HEADER", "header-of-the-machine")
        try:
            yield
        finally:
            await runner.cleanup()


async def send(client: ServiceBusClient, queue: str, text: str) -> None:
    async with asyncio.timeout(20), client.get_queue_sender(queue) as sender:
        await sender.send_messages(ServiceBusMessage(text))


async def fault_of_send(options: NamespaceOptions, queue: str) -> Fault:
    """How a send that fails with these options is sorted."""
    async with Access(options) as access, access.service_bus_client() as client:
        try:
            await send(client, queue, "x")
        except Exception as error:  # noqa: BLE001 - what it is, is the question
            return sort(symptom_of(error, during=Phase.OPEN))
    raise AssertionError("it was sent")


def side(**given: Any) -> NamespaceOptions:
    return NamespaceOptions.model_validate(given)


def managed(handle: NamespaceHandle, **more: Any) -> NamespaceOptions:
    return side(namespace=handle.endpoint, ca_file=handle.ca_file, **{"identity": "managed_identity", **more})


def pair_options(secondary: NamespaceOptions, name: str, **more: Any) -> Options:
    primary = "Endpoint=sb://alpha.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey=cHJpbWFyeWtleQ=="
    return Options(primary=primary, secondary=secondary, primary_name=name, backlog_queue_count=2, **more)


# Connection strings


async def test_a_connection_string_makes_both_clients(broker: BrokerProcess, name: str) -> None:
    handle = broker["primary"]
    options = side(connection_string=handle.connection_string, ca_file=handle.ca_file)
    async with Access(options) as access:
        async with access.administration_client() as administration:
            await administration.create_queue(name)
        async with access.service_bus_client() as client:
            await send(client, name, "x")
    assert handle.counts(name)["active"] == 1


async def test_blanks_and_case_that_our_parser_takes_do_not_trouble_the_sdk(broker: BrokerProcess, name: str) -> None:
    handle = broker["primary"]
    handle.create_queue(name)
    text = " ; ".join(
        part.replace("=", " = ", 1).replace("Endpoint", "ENDPOINT") for part in handle.connection_string.split(";")
    )
    options = side(connection_string=text, ca_file=handle.ca_file)
    async with Access(options) as access, access.service_bus_client() as client:
        await send(client, name, "x")
    assert handle.counts(name)["active"] == 1


async def test_a_shared_access_signature_makes_both_clients(one: NamespaceHandle, name: str) -> None:
    parsed = parse_connection_string(one.connection_string)
    resource, expiry = urllib.parse.quote_plus(f"sb://{one.endpoint.partition(':')[0]}/"), int(time.time()) + 600
    digest = hmac.new(str(parsed.key).encode(), f"{resource}\n{expiry}".encode(), hashlib.sha256).digest()
    sig = urllib.parse.quote_plus(base64.b64encode(digest))
    token = f"SharedAccessSignature sr={resource}&sig={sig}&se={expiry}&skn={parsed.key_name}"
    text = f"Endpoint=sb://{one.endpoint}/;SharedAccessSignature={token}"
    async with Access(side(connection_string=text, ca_file=one.ca_file)) as access:
        async with access.administration_client() as administration:
            await administration.create_queue(name)
        async with access.service_bus_client() as client:
            await send(client, name, "x")
        assert sig not in repr(access)
    assert one.counts(name)["active"] == 1


async def test_a_wrong_key_is_misconfigured_and_not_told(
    one: NamespaceHandle, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    one.create_queue(name)
    key = base64.b64encode(b"no key of anybody, of 32 letters").decode()
    right = str(parse_connection_string(one.connection_string).key)
    options = side(connection_string=one.connection_string.replace(right, key), ca_file=one.ca_file)
    with caplog.at_level(logging.DEBUG):
        fault = await fault_of_send(options, name)
    assert fault.kind is Kind.MISCONFIGURED
    assert "InvalidSignature" in fault.text
    for text in (str(fault), repr(fault), repr(Access(options)), repr(options), caplog.text):
        assert key not in text


def test_azure_identity_is_loaded_only_for_an_identity() -> None:
    script = """
import sys
from spark_sb_sink.credentials import Access
from spark_sb_sink.namespaces import NamespaceOptions
text = "Endpoint=sb://a.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey=c2VjcmV0"
access = Access(NamespaceOptions(connection_string=text))
access.service_bus_client(), access.administration_client()
assert not any(name.startswith("azure.identity") for name in sys.modules)
Access(NamespaceOptions(namespace="a.servicebus.windows.net", identity="managed_identity"))
assert "azure.identity.aio" in sys.modules
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, timeout=60)


@pytest.mark.parametrize(
    ("content", "why"), [(None, "No such file"), ("not a certificate", "no certificate in PEM format")]
)
def test_a_ca_file_that_cannot_be_used_is_told_at_once(tmp_path: Path, content: str | None, why: str) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    options = side(namespace="a.servicebus.windows.net", ca_file=str(file))
    with pytest.raises(OptionError, match=why) as caught:
        Access(options)
    assert str(file) in str(caught.value)


# Identities


async def test_a_managed_identity_pairs_and_sends_with_one_token(
    one: NamespaceHandle, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    token, _ = one.add_bearer(ALL)
    endpoint = IdentityEndpoint(token)
    options = managed(one, client_id="id-of-the-sink")
    with caplog.at_level(logging.DEBUG):
        async with endpoint.serving(monkeypatch):
            async with Access(options) as access:
                async with access.administration_client() as administration:
                    await administration.create_queue(name)
                async with access.service_bus_client() as client:
                    await send(client, name, "x")
            assert len(endpoint.asked) == 1
            assert endpoint.asked[0]["client_id"] == "id-of-the-sink"
            assert endpoint.asked[0]["resource"] == "https://servicebus.azure.net/"
            assert endpoint.asked[0]["header"] == "header-of-the-machine"
            paired = await pair_async(pair_options(options, name))
    assert one.counts(name)["active"] == 1
    assert len(paired.created) == 2
    assert token not in caplog.text


async def test_the_default_credential_finds_the_managed_identity(
    one: NamespaceHandle, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one.create_queue(name)
    endpoint = IdentityEndpoint(one.add_bearer(["Send"])[0])
    options = managed(one, identity=None, client_id="mine")
    async with endpoint.serving(monkeypatch), Access(options) as access, access.service_bus_client() as client:
        await send(client, name, "x")
    assert one.counts(name)["active"] == 1
    assert endpoint.asked[0]["client_id"] == "mine"


async def test_an_identity_that_may_only_send_lacks_the_manage_claim(
    one: NamespaceHandle, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, _ = one.add_bearer(["Send"])
    async with IdentityEndpoint(token).serving(monkeypatch):
        with pytest.raises(ManageClaimMissingError) as caught:
            await pair_async(pair_options(managed(one), name))
    assert token not in str(caught.value)


async def test_a_token_that_the_namespace_refuses_is_misconfigured(
    one: NamespaceHandle, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one.create_queue(name)
    token = "a-token-of-another-tenant-and-long"
    async with IdentityEndpoint(token).serving(monkeypatch):
        fault = await fault_of_send(managed(one), name)
        with pytest.raises(CredentialsRefusedError) as caught:
            await pair_async(pair_options(managed(one), name))
    assert fault.kind is Kind.MISCONFIGURED
    assert token not in str(fault) + str(caught.value)


async def test_an_identity_that_is_refused_is_misconfigured(
    one: NamespaceHandle, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one.create_queue(name)
    body = {"error": "invalid_client", "error_description": "AADSTS700016: no such identity"}
    async with IdentityEndpoint(status=400, body=body).serving(monkeypatch):
        fault = await fault_of_send(managed(one), name)
        with pytest.raises(CredentialsRefusedError, match="secondary"):
            await pair_async(pair_options(managed(one), name))
    assert fault.kind is Kind.MISCONFIGURED


async def test_an_identity_endpoint_that_is_out_is_an_entity_fault_and_a_secondary_out_of_reach(
    one: NamespaceHandle, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one.create_queue(name)
    async with IdentityEndpoint().serving(monkeypatch):
        pass  # its port is free again, and nobody listens there
    fault = await fault_of_send(managed(one), name)
    assert fault.kind is Kind.ENTITY_FAULT
    with pytest.raises(SecondaryUnreachableError, match="no answer within 500ms"):
        await pair_async(pair_options(managed(one), name, send_timeout="500ms"))


@pytest.mark.parametrize("endpoint", ["of App Service", "of a virtual machine"])
async def test_a_default_credential_whose_identity_endpoint_is_out_is_an_entity_fault(
    one: NamespaceHandle, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, endpoint: str
) -> None:
    """It keeps of the errors of its chain only the text."""
    one.create_queue(name)
    async with IdentityEndpoint().serving(monkeypatch):
        nobody = os.environ["IDENTITY_ENDPOINT"]  # its port is free again afterwards, and nobody listens there
    if endpoint == "of a virtual machine":
        for variable in ("IDENTITY_ENDPOINT", "IDENTITY_HEADER"):
            monkeypatch.delenv(variable)
        monkeypatch.setenv(
            "HTTP_PROXY", nobody
        )  # the address of that endpoint is fixed; this is a way not to get there
        monkeypatch.setenv("http_proxy", nobody)
        monkeypatch.setenv("PATH", str(tmp_path))  # no tool that somebody is logged in with
        monkeypatch.setenv("HOME", str(tmp_path))
    fault = await fault_of_send(managed(one, identity=None), name)
    assert (fault.kind, fault.reason) == (Kind.ENTITY_FAULT, "no token"), fault


def test_an_identity_that_this_machine_cannot_have_is_told_at_once() -> None:
    options = side(namespace="a.servicebus.windows.net", identity="workload_identity", client_id="c")
    with pytest.raises(OptionError, match=r"workload_identity for a\.servicebus") as caught:
        Access(options)
    assert "tenant_id" in str(caught.value)


async def test_a_closed_access_makes_no_more_clients(one: NamespaceHandle) -> None:
    access = Access(managed(one))
    await access.close()
    await access.close()
    with pytest.raises(ClosedError, match=one.endpoint):
        access.service_bus_client()


# Client secret and workload identity, against a token service of our own. In a process of its own, as it takes an
# environment variable at its start to make azure-identity trust one's own certificate.

CLIENT = """
import asyncio, json, sys
from azure.servicebus import ServiceBusMessage
from spark_sb_sink.credentials import Access
from spark_sb_sink.faults import Phase, sort, symptom_of
from spark_sb_sink.options import Options

given = json.loads(sys.stdin.read())
options = Options.from_dict(given["options"])

async def main():
    async with Access(options.secondary) as access, access.service_bus_client() as client:
        try:
            async with asyncio.timeout(30), client.get_queue_sender(given["queue"]) as sender:
                await sender.send_messages(ServiceBusMessage("x"))
            print("sent")
        except Exception as error:
            fault = sort(symptom_of(error, during=Phase.OPEN))
            print(fault.kind.value, fault, repr(access), repr(options))

asyncio.run(main())
"""


class TokenService:
    """The part of Microsoft Entra that gives tokens to those who know a secret or hold an assertion."""

    def __init__(self, token: str | None) -> None:
        self.token = token
        self.asked: list[dict[str, str]] = []

    async def answer(self, request: web.BaseRequest) -> web.Response:
        form = dict(urllib.parse.parse_qsl((await request.read()).decode()))
        self.asked.append({"path": request.path, **form})
        if self.token is None:
            told = {"error": "invalid_client", "error_description": "AADSTS7000215: Invalid client secret provided."}
            return web.json_response(told, status=401)
        return web.json_response({"access_token": self.token, "expires_in": 3600, "token_type": "Bearer"})

    async def used_by(self, folder: Path, side: dict[str, str], queue: str, **environment: str) -> str:
        """What a program says that sends with these options while this service runs."""
        ca_file, context = certificates.make(folder, ["127.0.0.1"])
        runner = web.ServerRunner(web.Server(self.answer))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        environ = {
            **os.environ,
            **environment,
            "SSL_CERT_FILE": str(ca_file),
            "AZURE_AUTHORITY_HOST": f"https://127.0.0.1:{runner.addresses[0][1]}",
        }
        primary = "Endpoint=sb://a.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey=c2VjcmV0"
        given = {"options": {"primary": primary, "secondary": side}, "queue": queue}
        try:
            program = await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                CLIENT,
                env=environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            async with asyncio.timeout(60):
                said, _ = await program.communicate(json.dumps(given).encode())
        finally:
            await runner.cleanup()
        return said.decode()


async def test_a_client_secret_from_the_environment_sends(one: NamespaceHandle, name: str, tmp_path: Path) -> None:
    one.create_queue(name)
    tokens = TokenService(one.add_bearer(["Send"])[0])
    given = {"namespace": one.endpoint, "identity": "client_secret", "ca_file": one.ca_file}
    told = {"AZURE_TENANT_ID": "tenant-7", "AZURE_CLIENT_ID": "client-7", "AZURE_CLIENT_SECRET": "Qz9-very-secret"}
    assert (await tokens.used_by(tmp_path, given, name, **told)).strip() == "sent"
    assert one.counts(name)["active"] == 1
    (asked,) = tokens.asked
    assert asked["path"] == "/tenant-7/oauth2/v2.0/token"
    assert (asked["client_id"], asked["client_secret"]) == ("client-7", "Qz9-very-secret")
    assert asked["scope"] == "https://servicebus.azure.net//.default"


async def test_a_refused_client_secret_is_misconfigured_and_not_told(
    one: NamespaceHandle, name: str, tmp_path: Path
) -> None:
    one.create_queue(name)
    given = {
        "namespace": one.endpoint,
        "identity": "client_secret",
        "ca_file": one.ca_file,
        "tenant_id": "tenant-7",
        "client_id": "client-7",
        "client_secret": "Qz9-very-secret",
    }
    said = await TokenService(None).used_by(tmp_path, given, name)
    assert "misconfigured" in said
    assert "AADSTS7000215" in said
    assert "Qz9-very-secret" not in said


async def test_a_workload_identity_sends_with_the_assertion_of_its_pod(
    one: NamespaceHandle, name: str, tmp_path: Path
) -> None:
    one.create_queue(name)
    (tmp_path / "assertion").write_text("assertion-of-the-pod")
    tokens = TokenService(one.add_bearer(["Send"])[0])
    given = {
        "namespace": one.endpoint,
        "identity": "workload_identity",
        "ca_file": one.ca_file,
        "client_id": "client-8",
    }
    environment = {"AZURE_TENANT_ID": "tenant-8", "AZURE_FEDERATED_TOKEN_FILE": str(tmp_path / "assertion")}
    assert (await tokens.used_by(tmp_path, given, name, **environment)).strip() == "sent"
    (asked,) = tokens.asked
    assert asked["path"] == "/tenant-8/oauth2/v2.0/token"
    assert (asked["client_id"], asked["client_assertion"]) == ("client-8", "assertion-of-the-pod")
