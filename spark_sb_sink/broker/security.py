"""Who may do what: shared access policies, their tokens, and bearer tokens, checked as the service documents it.

Sources: the SAS format, its signature and its scope rule are those of "Service Bus access control with Shared Access
Signatures" (learn.microsoft.com, service-bus-sas); the put-token answers those of the "AMQP 1.0 protocol guide"
(service-bus-amqp-protocol-guide), section "Claims-based authorization". The texts are the service's own, as quoted in
the issues of its SDKs that stand beside them.
"""

import base64
import datetime
import hashlib
import hmac
import secrets
import time
from dataclasses import dataclass, field
from urllib.parse import unquote_plus, urlsplit

ROOT_POLICY = "RootManageSharedAccessKey"
SEND, LISTEN, MANAGE = "Send", "Listen", "Manage"
CLAIMS = frozenset({SEND, LISTEN, MANAGE})
# Azure/azure-sdk-for-net#27644 and #44734: one text for a token of another namespace, entity or policy.
_WRONG_AUDIENCE = "InvalidAudience: The authorization header contains a token with a wrong audience."


class TokenRefusedError(Exception):
    """A token that is not taken. The text never has any part of the token or of a key in it."""

    def __init__(self, text: str, status: int = 401) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class Policy:
    """A shared access policy; `entity` limits it to one entity and what is below it."""

    name: str
    key: str = field(repr=False)
    claims: frozenset[str]
    entity: str | None = None


@dataclass(frozen=True)
class Bearer:
    """A bearer token from the configured list."""

    token: str = field(repr=False)
    claims: frozenset[str]
    expires_at: float


@dataclass(frozen=True)
class Grant:
    """What a token allows: these claims, on this path and what is below it, until then."""

    claims: frozenset[str]
    path: str
    expires_at: float

    def allows(self, claim: str, path: str, now: float) -> bool:
        # Manage includes Send and Listen (service-bus-sas, "Rights required for Service Bus operations").
        if now >= self.expires_at or not (claim in self.claims or MANAGE in self.claims):
            return False
        return within(path, self.path)


def within(path: str, scope: str) -> bool:
    """Whether the path is the scope or below it, by whole segments; the empty scope is the namespace."""
    path, scope = path.strip("/").lower(), scope.strip("/").lower()
    return not scope or path == scope or path.startswith(scope + "/")


def place_of(uri: str) -> tuple[str, int | None, str]:
    """Host, port and entity path of an audience or resource URI such as `sb://host:port/orders` or `http%3a%2f%2f…`."""
    if "%" in uri and "://" not in uri:
        uri = unquote_plus(uri)
    try:
        split = urlsplit(uri if "://" in uri else f"sb://{uri}")
        return (split.hostname or "").lower(), split.port, split.path.strip("/")
    except ValueError:  # brackets that are no IPv6 address, a port that is no number
        raise TokenRefusedError("MalformedToken: the audience is no URI.") from None


def _expiry(text: str) -> float:
    # Whole seconds since the epoch (service-bus-sas, "Generate a Shared Access Signature token"); `nan` would last for
    # ever.
    if not (text.isascii() and text.isdecimal() and len(text) <= 12):
        raise TokenRefusedError("MalformedToken: the expiry of the token is no number.")
    return float(text)


def _expired(at: float) -> TokenRefusedError:
    # Azure/azure-service-bus-java#354: 401 and this text, from put-token.
    when = datetime.datetime.fromtimestamp(at, datetime.UTC)
    return TokenRefusedError(f"ExpiredToken: The token is expired. Expiration time: '{when:%Y-%m-%d %H:%M:%S}Z'.")


@dataclass
class Guard:
    """The policies and bearer tokens of one namespace."""

    policies: dict[str, Policy] = field(default_factory=dict)
    bearers: dict[str, Bearer] = field(default_factory=dict, repr=False)
    hosts: frozenset[str] = frozenset()
    """The host names and addresses that this namespace answers to; a token for another one is refused."""
    port: int | None = None
    """Two namespaces of one broker can share an address: then it is the port that tells them apart."""

    @classmethod
    def with_root_key(cls) -> "Guard":
        key = base64.b64encode(secrets.token_bytes(32)).decode()
        return cls({ROOT_POLICY: Policy(ROOT_POLICY, key, CLAIMS)})

    @staticmethod
    def _check_claims(claims: set[str]) -> None:
        if claims - CLAIMS or not claims:
            raise ValueError(f"claims are {sorted(claims)}; it takes one or more of {', '.join(sorted(CLAIMS))}")

    def add_policy(self, name: str, claims: set[str], entity: str | None = None) -> Policy:
        self._check_claims(claims)
        key = base64.b64encode(secrets.token_bytes(32)).decode()
        self.policies[name] = policy = Policy(name, key, frozenset(claims), entity)
        return policy

    def add_bearer(self, claims: set[str], lifetime: float) -> Bearer:
        self._check_claims(claims)
        bearer = Bearer(secrets.token_urlsafe(32), frozenset(claims), time.time() + lifetime)
        self.bearers[bearer.token] = bearer
        return bearer

    def check(self, token: str, audience: str, now: float) -> Grant:
        """The grant that a token gives for an audience, or `TokenRefusedError`."""
        if token.startswith("SharedAccessSignature "):
            grant = self._check_sas(token, now)
        else:
            grant = self._check_bearer(token.removeprefix("Bearer "), now)
        if not within(self._own_path(audience), grant.path):
            raise TokenRefusedError(_WRONG_AUDIENCE)
        return grant

    def _own_path(self, uri: str) -> str:
        """The entity path of a URI in this namespace; one of another namespace is refused."""
        host, port, path = place_of(uri)
        elsewhere = bool(self.hosts) and host not in self.hosts
        if elsewhere or (port is not None and self.port is not None and port != self.port):
            raise TokenRefusedError(_WRONG_AUDIENCE)
        return path

    def _check_sas(self, token: str, now: float) -> Grant:
        parts: dict[str, str] = {}
        for pair in token.removeprefix("SharedAccessSignature ").split("&"):
            key, _, value = pair.partition("=")
            parts[key] = value
        if not {"sr", "sig", "se", "skn"} <= parts.keys():
            # Azure/azure-sdk-for-net#26136: 401 for a signature that cannot be read.
            raise TokenRefusedError("MalformedToken: a shared access signature has the fields sr, sig, se and skn.")
        policy = self.policies.get(unquote_plus(parts["skn"]))
        # The string to sign is the URL-encoded resource, a line feed, and the expiry (service-bus-sas).
        expected = b""
        if policy is not None:
            signed = f"{parts['sr']}\n{parts['se']}".encode()
            expected = base64.b64encode(hmac.new(policy.key.encode(), signed, hashlib.sha256).digest())
        if policy is None or not hmac.compare_digest(expected, unquote_plus(parts["sig"]).encode()):
            # An unknown policy gets the same words, so that names cannot be guessed (Azure/azure-sdk-for-java#30723).
            raise TokenRefusedError("InvalidSignature: The token has an invalid signature.")
        expires = _expiry(parts["se"])
        if expires <= now:
            raise _expired(expires)
        path = self._own_path(unquote_plus(parts["sr"]))
        if policy.entity is not None and not within(path, policy.entity):
            raise TokenRefusedError(_WRONG_AUDIENCE)
        return Grant(policy.claims, path, expires)

    def _check_bearer(self, token: str, now: float) -> Grant:
        bearer = self.bearers.get(token)
        if bearer is None:
            raise TokenRefusedError("InvalidSignature: The token is not known to this namespace.")
        if bearer.expires_at <= now:
            raise _expired(bearer.expires_at)
        return Grant(bearer.claims, "", bearer.expires_at)
