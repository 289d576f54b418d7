"""All options, their limits, and which of them do not go together.

An `Options` is right as soon as it exists; what is wrong is told in one sentence each (`OptionError`). How options are
read from TOML, dictionaries and Spark is in `option_loading`; no option is used here.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from enum import Enum
from os import PathLike
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, SecretStr, ValidationError, model_validator

from spark_sb_sink.connection_strings import same_namespace
from spark_sb_sink.durations import parse_duration
from spark_sb_sink.entity_names import AN_ENTITY, BACKLOG_FOLDER, LONGEST_PATH, is_entity_name
from spark_sb_sink.errors import OptionError
from spark_sb_sink.failover import FailoverSettings
from spark_sb_sink.namespaces import FROZEN, NamespaceOptions
from spark_sb_sink.option_loading import PIPELINE_TABLES, read_toml, resolve, unflatten
from spark_sb_sink.option_texts import contradiction, option, sentences
from spark_sb_sink.sizes import parse_size

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")


class Ping(Enum):
    """How an entity is asked whether it takes messages again."""

    MESSAGE = "message"
    LINK = "link"


class Pairing(Enum):
    """What has to be so before the first send."""

    REQUIRED = "required"
    BEST_EFFORT = "best-effort"
    ASSUME = "assume"


class Ledger(Enum):
    """Which micro-batches the ledger tells of."""

    AUTO = "auto"
    EVERY_BATCH = "every-batch"


class Ttl(Enum):
    """Whether time spent in the backlog counts."""

    FULL = "full"
    DEDUCT = "deduct"


def _whole(value: object) -> object:
    # Pydantic would take True for 1 and "1.0" for 1; neither is what somebody meant.
    if isinstance(value, bool | float) or (isinstance(value, str) and not re.fullmatch(r"\s*\d+\s*", value, re.ASCII)):
        raise ValueError
    return value


def _rate(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError
    rate = float(value)
    if not 0 < rate < float("inf"):
        raise ValueError
    return rate


def _entity(value: str) -> str:
    if not is_entity_name(value):
        raise ValueError
    return value


def _entities(value: object) -> object:
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",")]
    return tuple(dict.fromkeys(value)) if isinstance(value, list | tuple) else value


def _primary_name(value: str) -> str:
    # Room for the folder and a number of up to five digits behind it.
    if len(value) > LONGEST_PATH - len(BACKLOG_FOLDER) - 7 or not _NAME.fullmatch(value):
        raise ValueError
    return value


Duration = Annotated[float, BeforeValidator(parse_duration)]
Size = Annotated[int, BeforeValidator(parse_size)]
Count = Annotated[int, BeforeValidator(_whole)]
Entity = Annotated[str, AfterValidator(_entity)]

_A_NAMESPACE = "a connection string, a fully qualified namespace, or a table with one of them and an identity"


def _from_to(low: str, high: str, such_as: str) -> str:
    return f'a duration from {low} to {high}, such as "{such_as}"'


class Options(BaseModel):
    """Everything that can be set. Durations are seconds here, sizes bytes."""

    model_config = FROZEN

    primary: NamespaceOptions = option(takes=_A_NAMESPACE, about="The namespace that the messages are for.")
    secondary: NamespaceOptions = option(
        takes=_A_NAMESPACE, about="The namespace whose backlog queues take messages while the primary does not."
    )
    primary_name: Annotated[str, AfterValidator(_primary_name)] | None = option(
        None,
        takes="a name of letters, digits and . - _",
        about="The name that the backlog queues carry; the first label of the primary's host if not given.",
    )
    entity: Entity | None = option(
        None, takes=AN_ENTITY, about="The entity of all rows, where there is no column `entity`."
    )
    partitioned: Annotated[tuple[Entity, ...], BeforeValidator(_entities)] = option(
        (),
        takes="a list of entity names (in Spark options with commas between them)",
        about="Entities with partitioning on: messages of one batch share their partition or session key there.",
    )
    failover_interval: Duration = option(
        60.0,
        takes=_from_to("0s", "60m", "1m"),
        about="How long an entity has to fail, with no success between, before it is diverted; 0s: at once.",
        ge=0,
        le=3600,
    )
    ping_interval: Duration = option(
        60.0,
        takes=_from_to("1s", "30m", "1m"),
        about="How often a diverted entity is asked whether it takes messages again.",
        ge=1,
        le=1800,
    )
    ping: Ping = option(
        Ping.MESSAGE,
        takes="message or link",
        about="message: an empty message that Service Bus never delivers. link: attach and detach, send nothing.",
    )
    backlog_queue_count: Count = option(
        10,
        takes="a whole number from 1 to 10000",
        about="How many backlog queues there are in the secondary namespace.",
        ge=1,
        le=10_000,
    )
    backlog_cooldown: Duration = option(
        60.0,
        takes=_from_to("1s", "60m", "1m"),
        about="How long a backlog queue that failed is left alone.",
        ge=1,
        le=3600,
    )
    pairing: Pairing = option(
        Pairing.REQUIRED,
        takes="required, best-effort or assume",
        about="required: all backlog queues are found or made before the first send. best-effort: an unreachable "
        "secondary is a warning, and pairing is tried again each minute. assume: they are there; no administration "
        "calls, no Manage claim.",
    )
    send_timeout: Duration = option(
        10.0,
        takes=_from_to("100ms", "5m", "10s"),
        about="The deadline around every call to the service.",
        ge=0.1,
        le=300,
    )
    max_in_flight: Size = option(
        32 * 2**20,
        takes='a size from 1MiB, which is the largest batch that Service Bus takes, to 4GiB, such as "32MiB"',
        about="How many bytes of messages a task holds beyond the Arrow batch in hand, before it stops reading.",
        ge=2**20,
        le=4 * 2**30,
    )
    max_links: Count = option(
        64,
        takes="a whole number from 2, one for each side, to 5000, which a namespace allows in all",
        about="How many sender links, each a connection, a worker process keeps open; entities beyond that take turns. "
        "A ping has a link of its own.",
        ge=2,
        le=5000,
    )
    state: str | None = option(
        None,
        takes="a path or a prefix of table names",
        about="Where overflow, quarantine and ledger live in Delta. Without it, what would go there fails the batch.",
        min_length=1,
    )
    ledger: Ledger = option(
        Ledger.AUTO,
        takes="auto or every-batch",
        about="auto: micro-batches with something to tell (any route but the primary, any change of state, a failure); "
        "a healthy one writes nothing. every-batch: all, and finished ones are skipped when they are replayed.",
    )
    enable_syphon: bool = option(
        False,
        takes="true or false",
        about="Run the syphon inside the sink's own application, which takes a slot to spare.",
    )
    syphon_tasks: Count = option(
        1,
        takes="a whole number from 1 to backlog_queue_count",
        about="How many tasks the syphon runs; each serves several backlog queues.",
        ge=1,
    )
    ttl: Ttl = option(
        Ttl.FULL,
        takes="full or deduct",
        about="full: a message's time to live starts anew when the syphon moves it. deduct: less the time it spent in "
        "the backlog.",
    )
    long_poll: Duration = option(
        900.0,
        takes=_from_to("1s", "60m", "15m"),
        about="How long the syphon waits for messages in an idle backlog queue with one receive.",
        ge=1,
        le=3600,
    )
    max_rate: Annotated[float | None, BeforeValidator(_rate)] = option(
        None,
        takes="a number of messages per second above 0",
        about="How fast the syphon drains at most, so that live traffic does not starve; no limit if not given.",
    )
    settle_time: Duration = option(
        60.0,
        takes=_from_to("0s", "60m", "1m"),
        about="A backlog is empty when peeking finds nothing twice, this far apart.",
        ge=0,
        le=3600,
    )

    def __init__(self, /, **data: Any) -> None:
        problems: list[str] = []
        try:
            super().__init__(**data)
        except ValidationError as error:
            problems = sentences(type(self), error, data)
        # Outside of the handler, so that no exception that knows the values travels along.
        if problems:
            raise OptionError(*problems)

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        if same_namespace(self.primary.host, self.secondary.host):
            raise contradiction(
                f"primary and secondary are the same namespace, {self.primary.host}, but take two, best in two regions"
            )
        if self.ledger is Ledger.EVERY_BATCH and self.state is None:
            raise contradiction("ledger got 'every-batch', but takes that only with the option state to write it to")
        if self.syphon_tasks > self.backlog_queue_count:
            raise contradiction(
                f"syphon_tasks got {self.syphon_tasks}, but takes at most backlog_queue_count "
                f"({self.backlog_queue_count}), as a task without a queue has nothing to do"
            )
        return self

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> Self:
        """From a dictionary, with ${NAME} taken from the environment."""
        return cls(**resolve(data, environ))

    @classmethod
    def from_toml(
        cls,
        path: str | PathLike[str],
        environ: Mapping[str, str] | None = None,
        *,
        changes: Mapping[str, Any] | None = None,
    ) -> Self:
        """From a TOML file, with ${NAME} taken from the environment; `changes` go before what stands there.

        The tables of a pipeline, `source` and `query`, may stand in the same file; they are read by `pipeline_options`.
        """
        found = {key: value for key, value in read_toml(path).items() if key not in PIPELINE_TABLES}
        return cls(**resolve({**found, **(changes or {})}, environ))

    @classmethod
    def from_spark(cls, options: Mapping[str, str], environ: Mapping[str, str] | None = None) -> Self:
        """From Spark's flat map: keys in any case, `primary.namespace` for what is a table elsewhere."""
        return cls(**resolve(unflatten(options), environ))

    @property
    def backlog_path(self) -> str:
        """What the names of all backlog queues start with: `contoso/x-servicebus-transfer/`."""
        return f"{self.primary_name or self.primary.name}/{BACKLOG_FOLDER}/"

    @property
    def failover(self) -> FailoverSettings:
        """What the failover state machine needs to know."""
        return FailoverSettings(self.failover_interval, self.ping_interval, ping_deadline=self.send_timeout)

    def digest(self) -> str:
        """The same for the same options, secrets included, in every process; tells nothing of them."""
        text = json.dumps(self.model_dump(mode="python"), sort_keys=True, default=_revealed)
        return hashlib.sha256(b"spark_sb_sink.options\0" + text.encode()).hexdigest()


def _revealed(value: object) -> object:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, Enum):
        return value.value
    raise TypeError(type(value).__name__)
