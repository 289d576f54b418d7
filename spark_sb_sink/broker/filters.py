"""The rules of a subscription: true filters and correlation filters. SQL filters are not offered, and say so."""

from dataclasses import dataclass, field
from typing import Any

from spark_sb_sink.broker import sections

DEFAULT_RULE = "$Default"
CORRELATION_FIELDS = (
    "content_type",
    "correlation_id",
    "message_id",
    "reply_to",
    "reply_to_session_id",
    "session_id",
    "subject",
    "to",
)


@dataclass(frozen=True)
class TrueFilter:
    def matches(self, bare: bytes) -> bool:
        return True


@dataclass(frozen=True)
class FalseFilter:
    def matches(self, bare: bytes) -> bool:
        return False


def _equal(found: Any, wanted: Any) -> bool:
    """Python takes True for 1; a filter does not."""
    return isinstance(found, bool) == isinstance(wanted, bool) and bool(found == wanted)


@dataclass(frozen=True)
class CorrelationFilter:
    """Every field that is set must be equal to the message's. `properties` are application properties."""

    fields: tuple[tuple[str, str], ...] = ()
    properties: tuple[tuple[str, Any], ...] = ()

    def matches(self, bare: bytes) -> bool:
        if self.fields:
            found = sections.properties(bare)
            if any(str(found.get(name)) != value for name, value in self.fields):
                return False
        if self.properties:
            application = sections.application_properties(bare)
            return all(name in application and _equal(application[name], value) for name, value in self.properties)
        return True


Filter = TrueFilter | FalseFilter | CorrelationFilter


@dataclass(frozen=True)
class Rule:
    name: str
    filter: Filter
    xml: dict[str, str] = field(default_factory=dict, compare=False)
    """The description as it was sent, for the administration side."""
