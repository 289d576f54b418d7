"""How one namespace is reached: a connection string, or its name and the identity to use there.

Holds secrets, and shows none. Makes neither connection nor credential.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, SecretStr, field_validator, model_validator

from spark_sb_sink.connection_strings import (
    ConnectionString,
    first_label,
    parse_connection_string,
    parse_namespace,
    why_no_connection_string,
)
from spark_sb_sink.option_texts import contradiction, option, wrong

FROZEN = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, validate_default=False)


class Identity(Enum):
    """Who we are where there is no connection string, in the words of azure-identity."""

    DEFAULT = "default"
    MANAGED = "managed_identity"
    WORKLOAD = "workload_identity"
    CLIENT_SECRET = "client_secret"  # noqa: S105


# What each identity can be told besides its kind.
_TOLD: dict[Identity, frozenset[str]] = {
    Identity.DEFAULT: frozenset({"client_id"}),
    Identity.MANAGED: frozenset({"client_id"}),
    Identity.WORKLOAD: frozenset({"client_id", "tenant_id"}),
    Identity.CLIENT_SECRET: frozenset({"client_id", "tenant_id", "client_secret"}),
}


class NamespaceOptions(BaseModel):
    """One side of the pair. A plain text stands for either of its first two options."""

    model_config = FROZEN

    connection_string: SecretStr | None = option(
        None,
        takes="a connection string of the whole namespace, best as ${NAME} from the environment",
        about="The way in with a shared access key or signature. Not together with `namespace`.",
    )
    namespace: str | None = option(
        None,
        takes="a fully qualified namespace such as contoso.servicebus.windows.net",
        about="The namespace, where the way in is an identity.",
    )
    identity: Identity | None = option(
        None,
        takes="one of default, managed_identity, workload_identity, client_secret",
        about="The azure-identity credential to use with `namespace`; `default` if not given.",
    )
    client_id: str | None = option(
        None,
        takes="the client id of an identity",
        about="Which identity, where there are several. For client_secret also from AZURE_CLIENT_ID.",
        min_length=1,
    )
    tenant_id: str | None = option(
        None,
        takes="the id of a tenant",
        about="The tenant of the identity. For client_secret also from AZURE_TENANT_ID.",
        min_length=1,
    )
    client_secret: SecretStr | None = option(
        None,
        takes="a client secret, as ${NAME} from the environment",
        about="Only with identity client_secret; if not given, AZURE_CLIENT_SECRET from the environment.",
        min_length=1,
    )
    ca_file: str | None = option(
        None,
        takes="the path of a PEM file",
        about="The certificates to trust, in place of the system's, for a broker with a certificate of one's own.",
        min_length=1,
    )

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, data: Any) -> Any:
        if isinstance(data, SecretStr):
            return {"connection_string": data}
        if isinstance(data, str):
            return {"connection_string" if "=" in data else "namespace": data}
        if not isinstance(data, Mapping | cls):
            raise wrong(
                f"got a {type(data).__name__}, but takes a connection string, a fully qualified namespace, or a table"
            )
        return data

    @field_validator("connection_string")
    @classmethod
    def _is_connection_string(cls, value: SecretStr | None) -> SecretStr | None:
        why = why_no_connection_string(value.get_secret_value()) if value is not None else None
        if why is not None:
            raise wrong(why)
        return value

    @field_validator("namespace")
    @classmethod
    def _is_namespace(cls, value: str | None) -> str | None:
        if value is None:
            return None
        host = parse_namespace(value)
        if host is None:
            raise ValueError
        return host

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        if self.connection_string is None and self.namespace is None:
            raise contradiction("takes a connection_string or a namespace, and got neither")
        told = [name for name in ("client_id", "tenant_id", "client_secret") if getattr(self, name) is not None]
        if self.connection_string is not None:
            if self.namespace is not None:
                raise contradiction("takes either a connection_string or a namespace, and got both")
            if self.identity is not None or told:
                extra = "identity" if self.identity is not None else told[0]
                raise contradiction(f"takes {extra} only with a namespace, and got it with a connection_string")
            return self
        may = _TOLD[self.credential]
        for name in told:
            if name not in may:
                raise contradiction(f"takes {name} not with the identity {self.credential.value}")
        if self.credential is Identity.CLIENT_SECRET:
            for name in ("client_id", "tenant_id", "client_secret"):
                if name not in told:
                    raise contradiction(
                        f"takes {name} with the identity client_secret, and got none, neither as an option nor as "
                        f"AZURE_{name.upper()} from the environment"
                    )
        return self

    @property
    def credential(self) -> Identity:
        """The identity to use; means something only without a connection string."""
        return self.identity or Identity.DEFAULT

    @property
    def parsed(self) -> ConnectionString | None:
        """The parts of the connection string, if there is one."""
        return (
            None
            if self.connection_string is None
            else parse_connection_string(self.connection_string.get_secret_value())
        )

    @property
    def host(self) -> str:
        """Host of the namespace, with its port if one was given."""
        parsed = self.parsed
        return parsed.host if parsed is not None else str(self.namespace)

    @property
    def name(self) -> str:
        """First label of the host."""
        return first_label(self.host)

    @property
    def emulator(self) -> bool:
        """Whether AMQP goes without TLS, as to Microsoft's emulator and to the embedded broker."""
        parsed = self.parsed
        return parsed is not None and parsed.emulator

    def __str__(self) -> str:
        return self.host
