"""From the options of a namespace to clients of the SDK that may talk to it: keys, signatures, identities, trust.

Makes clients and opens nothing: the first connection is made by who uses them. Tells no secret.
"""

import asyncio
import contextlib
import ssl
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.aio.management import ServiceBusAdministrationClient

from spark_sb_sink.administration import AdministrationTransport
from spark_sb_sink.connection_strings import ConnectionString
from spark_sb_sink.errors import ClosedError, OptionError
from spark_sb_sink.namespaces import Identity, NamespaceOptions

if TYPE_CHECKING:
    from azure.core.credentials_async import AsyncTokenCredential

CLOSE_WITHIN = 5.0
"""Seconds that closing a credential may take."""


class Access:
    """One side of the pair: its credential, made once, and the clients that use it.

    All of it belongs to one event loop. Clients are closed by who asked for them, before the access itself.
    """

    def __init__(self, options: NamespaceOptions) -> None:
        self._options = options
        self._trust = _trust(options)
        self._credential = _credential(options) if options.connection_string is None else None

    def __repr__(self) -> str:
        return f"Access({self._options.host!r})"

    def service_bus_client(self) -> ServiceBusClient:
        """A client for messages. It tries nothing twice: that is for who knows what may be tried again."""
        parsed = self._options.parsed
        if parsed is not None:
            return ServiceBusClient.from_connection_string(_text(parsed), retry_total=0, **self._trust)
        return ServiceBusClient(self._options.host, self._token_credential(), retry_total=0, **self._trust)

    def administration_client(self) -> ServiceBusAdministrationClient:
        """A client for queues. It tries nothing twice either, and has no deadline of its own."""
        parsed = self._options.parsed
        settings: dict[str, Any] = {"retry_total": 0, "transport": AdministrationTransport(**self._trust)}
        if parsed is not None:
            return ServiceBusAdministrationClient.from_connection_string(_text(parsed), **settings)
        return ServiceBusAdministrationClient(self._options.host, self._token_credential(), **settings)

    def _token_credential(self) -> "AsyncTokenCredential":
        if self._credential is None:
            raise ClosedError(f"The access to {self._options.host}")
        return self._credential

    async def close(self) -> None:
        """Close the credential, in bounded time; never raises."""
        credential, self._credential = self._credential, None
        if credential is not None:
            # Whatever its transport has to say about closing, there is nobody left to whom it matters.
            with contextlib.suppress(Exception):
                async with asyncio.timeout(CLOSE_WITHIN):
                    await credential.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _text(parsed: ConnectionString) -> str:
    """The connection string as the SDK reads it, which knows less about blanks than we do."""
    if parsed.signature is not None:
        secret = f"SharedAccessSignature={parsed.signature}"
    else:
        secret = f"SharedAccessKeyName={parsed.key_name};SharedAccessKey={parsed.key}"
    return f"Endpoint=sb://{parsed.host}/;{secret}" + (";UseDevelopmentEmulator=true" if parsed.emulator else "")


def _trust(options: NamespaceOptions) -> dict[str, Any]:
    if options.ca_file is None:
        return {}
    # The SDK reads the file when it connects, and what is wrong with it would look like an outage then.
    try:
        ssl.create_default_context(cafile=options.ca_file)
    except OSError as error:  # an SSLError is one too
        why = error.strerror if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError) else None
        why = why or "it has no certificate in PEM format"
        raise OptionError(f"ca_file got {options.ca_file!r}, which cannot be used for {options.host}: {why}.") from None
    return {"connection_verify": options.ca_file}


def _credential(options: NamespaceOptions) -> "AsyncTokenCredential":
    """The credential of azure-identity. Its own retries stay as they are: they know which answers of the identity
    endpoint mean "not yet", and the deadline around the call holds for them too."""
    # Takes a third of a second to import, for nothing where there is a connection string.
    from azure.identity.aio import (
        ClientSecretCredential,
        DefaultAzureCredential,
        ManagedIdentityCredential,
        WorkloadIdentityCredential,
    )

    try:
        match options.credential:
            case Identity.DEFAULT if options.client_id is None:  # given as None, it would hide AZURE_CLIENT_ID
                return DefaultAzureCredential()
            case Identity.DEFAULT:
                return DefaultAzureCredential(managed_identity_client_id=options.client_id)
            case Identity.MANAGED:
                return ManagedIdentityCredential(client_id=options.client_id)
            case Identity.WORKLOAD:
                return WorkloadIdentityCredential(client_id=options.client_id, tenant_id=options.tenant_id)
            case Identity.CLIENT_SECRET:
                secret = options.client_secret.get_secret_value() if options.client_secret is not None else ""
                return ClientSecretCredential(str(options.tenant_id), str(options.client_id), secret)
    except ValueError as error:
        why = " ".join(str(error).split()).rstrip(".")
    raise OptionError(f"The identity {options.credential.value} for {options.host} cannot be used here: {why}.")
