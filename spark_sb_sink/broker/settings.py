"""How one entity behaves: the properties of its description that the broker acts on."""

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from spark_sb_sink.broker.fields import wrong_field

FOREVER = 922337203685.4775807
"""TimeSpan.MaxValue in seconds."""
_MAX_TIMESPAN = Decimal("922337203685.4775807")

_ISO = re.compile(
    r"^P(?:(?P<d>\d+(?:\.\d+)?)D)?(?:T(?:(?P<h>\d+(?:\.\d+)?)H)?(?:(?P<m>\d+(?:\.\d+)?)M)?(?:(?P<s>\d+(?:\.\d+)?)S)?)?$"
)


class SettingsError(ValueError):
    """A setting out of range; the text says which, what it got and what it takes."""


def iso_seconds(text: str) -> float:
    """Seconds in an ISO 8601 duration of days, hours, minutes and seconds, as the service writes them."""
    match = _ISO.match(text)
    if match is None or text in ("P", "PT"):
        raise SettingsError(f"{text!r} is no ISO 8601 duration such as PT1M")
    days, hours, minutes, seconds = (Decimal(match[key] or 0) for key in "dhms")
    total = days * 86400 + hours * 3600 + minutes * 60 + seconds
    # Exact: the SDK rounds the largest one up when it reads it, and the service refuses what the SDK then sends back.
    if total > _MAX_TIMESPAN:
        raise SettingsError(f"{text!r} is longer than the longest duration, P10675199DT2H48M5.4775807S")
    return float(total)


@dataclass
class Settings:
    """Durations in seconds. The defaults are the service's."""

    lock_duration: float = 60.0
    max_delivery_count: int = 10
    default_ttl: float = FOREVER
    dead_letter_on_expiration: bool = False
    requires_session: bool = False
    requires_duplicate_detection: bool = False
    duplicate_window: float = 600.0
    max_size_mb: int = 1024
    max_message_kb: int | None = None
    partitioned: bool = False
    status: str = "Active"
    discard: bool = False
    """Accept, count and keep nothing: for benchmarks of senders."""

    def check(self) -> None:
        """Limits as in the quotas page and the entity properties of the management API."""
        if not 0 < self.lock_duration <= 300:
            raise SettingsError(f"lock duration is {self.lock_duration:g} s; it takes up to 5 minutes")
        if self.requires_duplicate_detection and not 20 <= self.duplicate_window <= 7 * 86400:
            raise SettingsError(f"duplicate window is {self.duplicate_window:g} s; it takes 20 seconds to 7 days")
        if not 1 <= self.max_delivery_count <= 2147483647:
            raise SettingsError(f"max delivery count is {self.max_delivery_count}; it takes 1 to 2147483647")
        if self.max_size_mb not in (1024, 2048, 3072, 4096, 5120, 10240, 20480, 40960, 81920):
            raise SettingsError(
                f"max size is {self.max_size_mb} MB; it takes 1024 to 5120 in steps of 1024, or 10240 to 81920"
            )
        if self.default_ttl < 1:
            raise SettingsError(f"default time to live is {self.default_ttl:g} s; it takes at least 1 second")
        if self.status not in ("Active", "Disabled", "SendDisabled", "ReceiveDisabled"):
            raise SettingsError(
                f"status is {self.status!r}; it takes Active, Disabled, SendDisabled or ReceiveDisabled"
            )

    def can_send(self) -> bool:
        return self.status in ("Active", "ReceiveDisabled")

    def can_receive(self) -> bool:
        return self.status in ("Active", "SendDisabled")

    @classmethod
    def of(cls, given: dict[str, Any]) -> "Settings":
        wrong = wrong_field(cls, given)
        if wrong is not None:
            raise SettingsError(f"settings: {wrong}")
        return cls(**given)
