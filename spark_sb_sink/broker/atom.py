"""The XML of the administration side: Atom entries and feeds out, entries in. Knows nothing of HTTP or of entities.

Names, order and namespaces are those that the service writes and that the SDKs read. Elements have no prefixes, since
not every SDK looks at namespaces. A document type declaration is refused, so there are no entities to expand.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from xml.etree import ElementTree
from xml.sax.saxutils import escape, quoteattr

ATOM = "http://www.w3.org/2005/Atom"
CONNECT = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNTS = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"
SCHEMA = "http://www.w3.org/2001/XMLSchema"

ENTRY_TYPE = "application/atom+xml;type=entry;charset=utf-8"
FEED_TYPE = "application/atom+xml;type=feed;charset=utf-8"
ERROR_TYPE = "application/xml; charset=utf-8"

# Characters that XML 1.0 cannot carry, escaped or not.
_UNFIT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


class AtomError(ValueError):
    """A body that is no entry with a description; one sentence that says why."""


class Markup(str):
    """Text that is XML already, so that it is not escaped again."""

    __slots__ = ()


def node(name: str, content: str | Iterable[Markup] = "", **attributes: str) -> Markup:
    """An element. A plain string as content is escaped; in attribute names `__` stands for a colon."""
    if not isinstance(content, str):
        content = Markup("".join(content))
    elif not isinstance(content, Markup):
        content = Markup(escape(_UNFIT.sub("\ufffd", content)))
    given = "".join(
        f" {key.replace('__', ':')}={quoteattr(_UNFIT.sub(chr(0xFFFD), value))}" for key, value in attributes.items()
    )
    return Markup(f"<{name}{given}>{content}</{name}>" if content else f"<{name}{given}/>")


def moment(seconds: float) -> str:
    """Seconds since the epoch as the service writes a time."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


@dataclass(frozen=True)
class Item:
    """One thing that has an entry: its name, address, times, and the element that describes it."""

    title: str
    address: str
    created_at: float
    updated_at: float
    description: Markup


def description(kind: str, children: Iterable[Markup]) -> Markup:
    return node(kind, children, xmlns=CONNECT, xmlns__i=INSTANCE)


def entry(item: Item, author: str, *, inside_feed: bool = False) -> Markup:
    parts = [
        node("id", item.address),
        node("title", item.title, type="text"),
        node("published", moment(item.created_at)),
        node("updated", moment(item.updated_at)),
        node("author", [node("name", author)]),
        node("link", rel="self", href=item.address),
        node("content", [item.description], type="application/xml"),
    ]
    return node("entry", parts) if inside_feed else node("entry", parts, xmlns=ATOM)


def feed(title: str, address: str, following: str | None, items: Sequence[Item], now: float, author: str) -> Markup:
    """A page of a list. `following` is the address of the next page; SDKs look for it as the second link."""
    links = [node("link", rel="self", href=address)]
    if following is not None:
        links.append(node("link", rel="next", href=following))
    return node(
        "feed",
        [
            node("title", title, type="text"),
            node("id", address),
            node("updated", moment(now)),
            *links,
            *(entry(item, author, inside_feed=True) for item in items),
        ],
        xmlns=ATOM,
    )


def public_feed(address: str, now: float) -> Markup:
    """What the service answers, with status 200, for the namespace itself and for a queue or topic that is not there.

    The text is the one that its troubleshooting guide shows; SDKs take an answer without content for "not found".
    """
    return node(
        "feed",
        [
            node("title", "Publicly Listed Services", type="text"),
            node("subtitle", "This is the list of publicly-listed services currently available.", type="text"),
            node("id", address),
            node("updated", moment(now)),
            node("generator", "Service Bus 1.1"),
        ],
        xmlns=ATOM,
    )


def error(status: int, text: str) -> Markup:
    return node("Error", [node("Code", str(status)), node("Detail", text)])


def parse(body: bytes) -> ElementTree.Element:
    """The description inside an entry, or `AtomError`."""
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise AtomError("The body is not UTF-8.") from None
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise AtomError("The body declares a document type; only plain XML is taken.")
    try:
        root = ElementTree.fromstring(text)  # noqa: S314 - no document type, so no entities (above); size is bounded
    except (ElementTree.ParseError, ValueError) as failure:
        raise AtomError(f"The body is not well-formed XML: {failure}.") from None
    content = root.find(f"{{{ATOM}}}content")
    if root.tag != f"{{{ATOM}}}entry" or content is None or len(content) != 1:
        raise AtomError("The body takes an Atom entry whose content is one description.")
    return content[0]


def local(element: ElementTree.Element) -> str:
    """The name of an element of the service's namespace; of any other one, with its namespace in front."""
    return element.tag.removeprefix(f"{{{CONNECT}}}")


def texts(element: ElementTree.Element) -> dict[str, str]:
    """The text of each child that has any, by name."""
    return {local(child): child.text for child in element if child.text is not None and child.text.strip()}


def type_of(element: ElementTree.Element) -> str:
    """The `xsi:type` of an element, without its prefix."""
    return element.get(f"{{{INSTANCE}}}type", "").rpartition(":")[2]
