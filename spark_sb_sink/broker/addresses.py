"""The URLs of the administration side: what a request names, and the links that its answer has in it."""

from dataclasses import dataclass
from urllib.parse import quote, unquote, urlencode

from spark_sb_sink.broker.queue import RefusedError

LISTS = ("queues", "topics")


def refused(status: int, text: str) -> RefusedError:
    return RefusedError("com.microsoft:argument-error", text, status)


@dataclass(frozen=True)
class Address:
    """What a URL names: an entity, a subscription of it, a rule of that; or, with `listed`, all of one kind."""

    path: str
    entity: str = ""
    subscription: str | None = None
    rule: str | None = None
    listed: str | None = None

    @classmethod
    def of(cls, path: str) -> "Address":
        """Names may have slashes in them, plain or as %2F; only a plain one sets off `subscriptions` and `rules`."""
        parts = [unquote(part) for part in path.strip("/").split("/")]
        low = [part.lower() for part in parts]
        whole = "/".join(parts)
        if low[0] == "$resources" and len(parts) == 2 and low[1] in LISTS:
            return cls("", listed=low[1])
        if "subscriptions" not in low[1:]:
            return cls(whole, whole)
        at = low.index("subscriptions", 1)
        entity, below = "/".join(parts[:at]), parts[at + 1 :]
        match below:
            case []:
                return cls(entity, entity, listed="subscriptions")
            case [subscription]:
                return cls(whole, entity, subscription)
            case [subscription, word] if word.lower() == "rules":
                return cls(whole, entity, subscription, listed="rules")
            case [subscription, word, rule] if word.lower() == "rules":
                return cls(whole, entity, subscription, rule)
        raise refused(400, f"{whole!r} is no path of an entity, a subscription or a rule.")


@dataclass(frozen=True)
class Call:
    """One request, read whole."""

    method: str
    base: str
    """Scheme and host, as the client wrote them."""
    target: str
    address: Address
    query: dict[str, str]
    body: bytes
    update: bool

    def link(self, path: str, **query: str) -> str:
        version = {"api-version": self.query["api-version"]} if "api-version" in self.query else {}
        asked = urlencode({**query, **version}, safe="$")
        return f"{self.base}/{quote(path)}" + (f"?{asked}" if asked else "")

    def number(self, name: str, default: int) -> int:
        text = self.query.get(name, str(default))
        if not text.isascii() or not text.isdigit() or len(text) > 9:
            raise refused(400, f"{name} is {text!r}; it takes a whole number of at least 0.")
        return int(text)
