"""Connection strings and host names of Service Bus namespaces: what is in them, and when two are the same.

Makes no connection, and never tells a key.
"""

import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from spark_sb_sink.errors import OptionError

# Not written as name=value for the key: redaction would take the example for a key.
TAKES = (
    "Endpoint=sb://<namespace>.servicebus.windows.net/, SharedAccessKeyName and SharedAccessKey, with ';' between them"
)

_HOST = re.compile(r"(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)(?:\.[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)*(?::\d{1,5})?")


@dataclass(frozen=True, slots=True)
class ConnectionString:
    """The parts of a connection string. `repr` shows neither key nor signature."""

    host: str
    key_name: str | None = None
    key: str | None = field(default=None, repr=False)
    signature: str | None = field(default=None, repr=False)
    emulator: bool = False


def parse_connection_string(text: str) -> ConnectionString:
    """The parts of a namespace's connection string; an error tells what is wrong with it and nothing that is in it."""
    found = _parse(text)
    if isinstance(found, str):
        raise OptionError(f"The connection string {found}.")
    return found


def why_no_connection_string(text: str) -> str | None:
    """What is wrong with it, as the second half of a sentence, or None."""
    found = _parse(text)
    return found if isinstance(found, str) else None


def _parse(text: str) -> ConnectionString | str:
    parts: dict[str, str] = {}
    for part in text.strip().rstrip(";").split(";"):
        name, equals, value = part.partition("=")
        name = name.strip().lower()
        if not equals or not name:
            return f"is not made of name=value pairs with ';' between them; it takes {TAKES}"
        if name in parts:
            # The name is one of ours or unknown; unknown ones could be a piece of a key, so none is told.
            return "has a part twice; remove one of them"
        parts[name] = value.strip()
    host = _host_of(parts.get("endpoint", ""))
    if host is None:
        return f"has no Endpoint=sb://<host>/; it takes {TAKES}"
    if parts.get("entitypath"):
        return (
            "is that of one entity (it has an EntityPath), but takes that of the whole namespace, as messages go to "
            "many entities; take it from the namespace's shared access policies"
        )
    key_name, key = parts.get("sharedaccesskeyname") or None, parts.get("sharedaccesskey") or None
    signature = parts.get("sharedaccesssignature") or None
    if signature and (key or key_name):
        return "has both a SharedAccessSignature and a SharedAccessKey; it takes one of them"
    if not signature and not (key and key_name):
        missing = " and ".join(n for n, v in (("SharedAccessKeyName", key_name), ("SharedAccessKey", key)) if not v)
        return f"has no {missing}; it takes {TAKES}"
    emulator = parts.get("usedevelopmentemulator", "false")
    if emulator not in ("true", "false"):
        # The SDK takes anything but exactly "true" for false, and then speaks TLS to a port that does not.
        return "has a UseDevelopmentEmulator that is neither true nor false, written in small letters"
    return ConnectionString(host, key_name, key, signature, emulator == "true")


def _host_of(endpoint: str) -> str | None:
    try:
        parts = urlsplit(endpoint)
        host = parts.netloc.lower().rstrip(".")
        _ = parts.port  # raises for a port that is none
    except ValueError:
        return None
    return host if _HOST.fullmatch(host) else None


def parse_namespace(text: str) -> str | None:
    """The host of a fully qualified namespace, also when written as sb://host/; None if it is no such thing."""
    text = text.strip().lower()
    text = re.sub(r"^[a-z]+://", "", text).rstrip("/").rstrip(".")
    return text if "." in text and _HOST.fullmatch(text) else None


def first_label(host: str) -> str:
    """`contoso` of contoso.servicebus.windows.net: the name that a primary's backlog queues carry."""
    return host.partition(":")[0].partition(".")[0]


def same_namespace(one: str, other: str) -> bool:
    """Whether two hosts are the same namespace, whatever their case, default port, final dot or private link."""
    return _normal(one) == _normal(other)


def _normal(host: str) -> str:
    host = re.sub(r":(?:5671|443)$", "", host.strip().lower().rstrip("/"))
    return host.rstrip(".").replace(".privatelink.", ".")
