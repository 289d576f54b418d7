"""The rules of a subscription as the administration client writes and reads them, and the filters made of them.

Typed values keep their type and text. A duration never matches: no message carries one that an SDK can write.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from xml.etree.ElementTree import Element

from spark_sb_sink.broker import atom
from spark_sb_sink.broker.filters import CorrelationFilter, FalseFilter, Filter, Rule, TrueFilter
from spark_sb_sink.broker.settings import SettingsError, iso_seconds

_OFFERED = "this broker offers true, false and correlation filters only, and no actions"
_ALWAYS_TRUE = "1=1"

# XML name and the field of the message, in the order in which the service writes them.
_FIELDS = {
    "CorrelationId": "correlation_id",
    "MessageId": "message_id",
    "To": "to",
    "ReplyTo": "reply_to",
    "Label": "subject",
    "SessionId": "session_id",
    "ReplyToSessionId": "reply_to_session_id",
    "ContentType": "content_type",
}
_PROPERTY = "Properties/"
"""In `Rule.xml`, an application property is kept under this and its name, as its type, a space and its text."""
_TRUTHS = {"true": True, "1": True, "false": False, "0": False}


def read(name: str, element: Element, created_at: float) -> Rule:
    """The rule in a RuleDescription. Raises `SettingsError` for what is not offered or makes no sense."""
    given = element.find(f"{{{atom.CONNECT}}}Filter")
    action = element.find(f"{{{atom.CONNECT}}}Action")
    if action is not None and atom.type_of(action) == "SqlRuleAction":
        raise SettingsError(f"rule {name!r} has an SQL action, but {_OFFERED}")
    kept = {"CreatedAt": atom.moment(created_at)}
    if given is None:
        return Rule(name, TrueFilter(), kept)
    kind = atom.type_of(given)
    kept["type"] = kind
    found: Filter
    match kind:
        case "CorrelationFilter":
            found = _correlation(name, given, kept)
        case "TrueFilter":
            found = TrueFilter()
        case "FalseFilter":
            found = FalseFilter()
        case "SqlFilter":
            expression = atom.texts(given).get("SqlExpression", "")
            if expression.replace(" ", "") != _ALWAYS_TRUE:
                raise SettingsError(f"rule {name!r} has the SQL filter {expression!r}, but {_OFFERED}")
            kept["SqlExpression"] = expression
            found = TrueFilter()
        case _:
            raise SettingsError(f"rule {name!r} has a filter of type {kind!r}, but {_OFFERED}")
    return Rule(name, found, kept)


def _correlation(rule: str, given: Element, kept: dict[str, str]) -> CorrelationFilter:
    sent = atom.texts(given)
    kept.update({name: sent[name] for name in _FIELDS if name in sent})
    properties: list[tuple[str, Any]] = []
    for pair in given.iterfind(f"{{{atom.CONNECT}}}Properties/{{{atom.CONNECT}}}KeyValueOfstringanyType"):
        key = pair.findtext(f"{{{atom.CONNECT}}}Key") or ""
        value = pair.find(f"{{{atom.CONNECT}}}Value")
        if not key or value is None:
            raise SettingsError(f"rule {rule!r} has a property without a key or without a value")
        kind, text = atom.type_of(value) or "string", value.text or ""
        try:
            properties.append((key, _typed(kind, text)))
        except (ValueError, KeyError, OverflowError):
            raise SettingsError(f"rule {rule!r}: property {key!r} is {text!r}, which is no {kind}") from None
        kept[_PROPERTY + key] = f"{kind} {text}"
    fields = tuple((_FIELDS[name], sent[name]) for name in _FIELDS if name in sent)
    return CorrelationFilter(fields, tuple(properties))


def _typed(kind: str, text: str) -> Any:
    """A value as `sections.application_properties` has it, where a timestamp is a number of milliseconds."""
    match kind:
        case "string" | "anyURI":
            return text
        case "int" | "long" | "short" | "byte" | "unsignedInt" | "unsignedLong" | "unsignedShort" | "unsignedByte":
            return int(text)
        case "double" | "float" | "decimal":
            return float(text)
        case "boolean":
            return _TRUTHS[text.lower()]
        case "dateTime":
            parsed = datetime.fromisoformat(text)
            return round((parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp() * 1000)
        case "duration":
            iso_seconds(text)
            return None
        case _:
            raise ValueError(kind)


def write(rule: Rule, created_at: float) -> atom.Markup:
    """The RuleDescription of a rule: as it was sent, or made of its filter where it came from elsewhere."""
    found = rule.filter
    if isinstance(found, CorrelationFilter):
        kind, inner = "CorrelationFilter", list(_write_correlation(found, rule.xml))
    else:
        kind = rule.xml.get("type", "TrueFilter" if isinstance(found, TrueFilter) else "FalseFilter")
        default = _ALWAYS_TRUE if isinstance(found, TrueFilter) else "1=0"
        expression = rule.xml.get("SqlExpression", default)
        inner = [atom.node("SqlExpression", expression), atom.node("CompatibilityLevel", "20")]
    return atom.description(
        "RuleDescription",
        [
            atom.node("Filter", inner, i__type=kind),
            atom.node("Action", i__type="EmptyRuleAction"),
            atom.node("CreatedAt", rule.xml.get("CreatedAt") or atom.moment(created_at)),
            atom.node("Name", rule.name),
        ],
    )


def _write_correlation(found: CorrelationFilter, kept: dict[str, str]) -> Iterator[atom.Markup]:
    values = dict(found.fields)
    for name, field in _FIELDS.items():
        if field in values:
            yield atom.node(name, values[field])
    pairs = []
    for key, value in found.properties:
        kind, _, text = kept.get(_PROPERTY + key, _untyped(value)).partition(" ")
        typed = atom.node("Value", text, i__type=f"d6p1:{kind}", xmlns__d6p1=atom.SCHEMA)
        pairs.append(atom.node("KeyValueOfstringanyType", [atom.node("Key", key), typed]))
    if pairs:
        yield atom.node("Properties", pairs)


def _untyped(value: Any) -> str:
    """Type and text of a value that came through the control API."""
    match value:
        case bool():
            return f"boolean {str(value).lower()}"
        case int():
            return f"{'int' if -(2**31) <= value < 2**31 else 'long'} {value}"
        case float():
            return f"double {value}"
        case _:
            return f"string {value}"
