"""The properties of queues, topics and subscriptions: as text by their XML names, and as the `Settings` made of them.

Every property is kept as it was sent, text for text; the broker acts on those that have a setting. `AutoDeleteOnIdle`
is kept and checked, but nothing is ever deleted because of it. Forwarding is not offered.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from spark_sb_sink.broker.entities import Queue, Subscription, Topic
from spark_sb_sink.broker.namespace import Tier
from spark_sb_sink.broker.settings import FOREVER, Settings, SettingsError, iso_seconds

Described = Queue | Topic | Subscription

MAX_TIMESPAN = "P10675199DT2H48M5.4775807S"
_NUMBER = re.compile(r"-?[0-9]{1,19}")
_TRUTHS = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True)
class Property:
    """One property. `fixed` ones keep the value that they were created with."""

    name: str
    kind: Literal["duration", "number", "truth", "text"]
    default: str = ""
    setting: str | None = None
    fixed: bool = False

    def value(self, text: str) -> Any:
        match self.kind:
            case "duration":
                try:
                    return iso_seconds(text)
                except SettingsError as error:
                    raise SettingsError(f"{self.name}: {error}") from None
            case "number":
                if not _NUMBER.fullmatch(text):
                    raise SettingsError(f"{self.name} is {text!r}; it takes a whole number")
                return int(text)
            case "truth":
                if text.lower() not in _TRUTHS:
                    raise SettingsError(f"{self.name} is {text!r}; it takes true or false")
                return _TRUTHS[text.lower()]
            case "text":
                return text

    def text(self, value: Any) -> str:
        match self.kind:
            case "duration":
                return iso_text(value)
            case "truth":
                return "true" if value else "false"
            case _:
                return str(value)


def iso_text(seconds: float) -> str:
    """An ISO 8601 duration as the service writes it."""
    if seconds >= FOREVER:
        return MAX_TIMESPAN
    ticks = round(seconds * 1e7)
    days, ticks = divmod(ticks, 864_000_000_000)
    hours, ticks = divmod(ticks, 36_000_000_000)
    minutes, ticks = divmod(ticks, 600_000_000)
    rest = f"{ticks // 10_000_000}.{ticks % 10_000_000:07d}".rstrip("0").rstrip(".")
    time = (f"{hours}H" if hours else "") + (f"{minutes}M" if minutes else "") + (f"{rest}S" if ticks else "")
    return f"P{days}D" + (f"T{time}" if time else "") if days else f"PT{time or '0S'}"


_LOCK = Property("LockDuration", "duration", setting="lock_duration")
_SIZE = Property("MaxSizeInMegabytes", "number", setting="max_size_mb")
_DETECTION = Property("RequiresDuplicateDetection", "truth", setting="requires_duplicate_detection", fixed=True)
_SESSION = Property("RequiresSession", "truth", setting="requires_session", fixed=True)
_TTL = Property("DefaultMessageTimeToLive", "duration", setting="default_ttl")
_EXPIRATION = Property("DeadLetteringOnMessageExpiration", "truth", setting="dead_letter_on_expiration")
_WINDOW = Property("DuplicateDetectionHistoryTimeWindow", "duration", setting="duplicate_window")
_DELIVERIES = Property("MaxDeliveryCount", "number", setting="max_delivery_count")
_STATUS = Property("Status", "text", setting="status")
_PARTITIONED = Property("EnablePartitioning", "truth", setting="partitioned", fixed=True)
_MESSAGE_SIZE = Property("MaxMessageSizeInKilobytes", "number")
_BATCHED = Property("EnableBatchedOperations", "truth", "true")
_ORDERING = Property("SupportOrdering", "truth", "true")
_IDLE = Property("AutoDeleteOnIdle", "duration", MAX_TIMESPAN)
_EXPRESS = Property("EnableExpress", "truth", "false")
_METADATA = Property("UserMetadata", "text")

KINDS: dict[type[Described], str] = {
    Queue: "QueueDescription",
    Topic: "TopicDescription",
    Subscription: "SubscriptionDescription",
}

# In the order in which the service writes them; a bare name is a value that only the broker knows.
_ORDER: dict[str, tuple[Property | str, ...]] = {
    "QueueDescription": (
        *(_LOCK, _SIZE, _DETECTION, _SESSION, _TTL, _EXPIRATION, _WINDOW, _DELIVERIES, _BATCHED),
        *("SizeInBytes", "MessageCount", "IsAnonymousAccessible", "AuthorizationRules", _STATUS),
        *("CreatedAt", "UpdatedAt", "AccessedAt", _ORDERING, "CountDetails", _IDLE, _PARTITIONED),
        *("EntityAvailabilityStatus", _EXPRESS, _METADATA, _MESSAGE_SIZE),
    ),
    "TopicDescription": (
        *(_TTL, _SIZE, _DETECTION, _WINDOW, _BATCHED, "SizeInBytes"),
        Property("FilteringMessagesBeforePublishing", "truth", "false"),
        *("IsAnonymousAccessible", "AuthorizationRules", _STATUS, "CreatedAt", "UpdatedAt", "AccessedAt"),
        *(_ORDERING, "CountDetails", "SubscriptionCount", _IDLE, _PARTITIONED, "EntityAvailabilityStatus"),
        Property("EnableSubscriptionPartitioning", "truth", "false"),
        *(_EXPRESS, _METADATA, _MESSAGE_SIZE),
    ),
    "SubscriptionDescription": (
        *(_LOCK, _SESSION, _TTL, _EXPIRATION),
        Property("DeadLetteringOnFilterEvaluationExceptions", "truth", "true"),
        *("MessageCount", _DELIVERIES, _BATCHED, _STATUS, "CreatedAt", "UpdatedAt", "AccessedAt"),
        *("CountDetails", _IDLE, "EntityAvailabilityStatus", _METADATA),
    ),
}


def _settable(kind: str) -> Iterable[Property]:
    return (each for each in _ORDER[kind] if isinstance(each, Property))


def read(kind: str, given: dict[str, str], tier: Tier, base: Settings) -> tuple[dict[str, str], Settings]:
    """What of a description is kept, as sent, and the settings that it makes of `base`. Raises `SettingsError`.

    A name that the kind does not have is ignored, as the service does.
    """
    for name in ("ForwardTo", "ForwardDeadLetteredMessagesTo"):
        if name in given:
            raise SettingsError(f"{name} is {given[name]!r}, but this broker does not offer forwarding; leave it out")
    kept: dict[str, str] = {}
    changed: dict[str, Any] = {}
    for each in _settable(kind):
        text = given.get(each.name)
        if text is None:
            continue
        kept[each.name] = text
        value = each.value(text)
        if each.setting is not None:
            changed[each.setting] = value
        elif each is _MESSAGE_SIZE:
            changed["max_message_kb"] = _message_size(value, tier)
        elif each is _IDLE and value < 300:
            raise SettingsError(f"AutoDeleteOnIdle is {text!r}; it takes at least 5 minutes")
        elif each is _METADATA and len(text) > 1024:
            raise SettingsError(f"UserMetadata has {len(text)} characters; it takes up to 1024")
    settings = replace(base, **changed)
    settings.check()
    return kept, settings


def _message_size(kilobytes: int, tier: Tier) -> int | None:
    default = tier.max_message // 1024
    if kilobytes == default:  # what an update sends back that changes something else
        return None
    if not default < kilobytes <= tier.max_entity_message_kb:
        takes = (
            f"it takes {default} to {tier.max_entity_message_kb}"
            if tier.max_entity_message_kb > default
            else f"a {tier.name} namespace takes {default} only, more needs a premium one"
        )
        raise SettingsError(f"MaxMessageSizeInKilobytes is {kilobytes}; {takes}")
    return kilobytes


def check_update(kind: str, before: Settings, after: Settings) -> None:
    """Refuse what cannot change after creation.

    Text and status as in "Service Bus Resource Manager exceptions" (learn.microsoft.com), Bad Request, sub code 40000.
    """
    for each in _settable(kind):
        if each.fixed and each.setting and getattr(before, each.setting) != getattr(after, each.setting):
            what = kind.removesuffix("Description")
            raise SettingsError(f"The value for the '{each.name}' property of an existing {what} can't be changed.")


def answer(described: Described, tier: Tier) -> list[tuple[str, str]]:
    """Every property of an entity in order, as text: as it was sent, as the broker has it, or the service's default.

    The names that only the broker knows come with an empty text.
    """
    found: list[tuple[str, str]] = []
    for each in _ORDER[KINDS[type(described)]]:
        if isinstance(each, str):
            found.append((each, ""))
        else:
            text = _text(each, described, tier)
            if text:
                found.append((each.name, text))
    return found


def _text(each: Property, described: Described, tier: Tier) -> str:
    sent = described.description.get(each.name)
    if each is _MESSAGE_SIZE:
        return str(described.settings.max_message_kb or tier.max_message // 1024)
    if each.setting is None:
        return each.default if sent is None else sent
    # The control API may have changed the setting since: then the text that was sent is no longer true.
    value = getattr(described.settings, each.setting)
    return sent if sent is not None and each.value(sent) == value else each.text(value)


def counts(described: Described) -> dict[str, int]:
    """Messages by the names of CountDetails. What is locked or deferred counts as active, as on the service."""
    if isinstance(described, Topic):
        return {"Active": 0, "DeadLetter": 0, "Scheduled": described.scheduled.counts()["scheduled"]}
    held = described.store.counts()
    return {
        "Active": held["active"] + held["deferred"],
        "DeadLetter": len(described.dead_letters.messages),
        "Scheduled": held["scheduled"],
    }
