"""The errors that the library raises, and the removal of secrets from texts that come from outside.

    SparkSbSinkError
    ├── OptionError (also a ValueError)     an option is missing, misspelt, out of range, or contradicts another
    ├── SchemaError (also a ValueError)     columns that do not fit the row contract; nothing was sent
    ├── PairingError                        the backlog queues could not be found or made; nothing was sent
    │   ├── SecondaryUnreachableError       the secondary namespace does not answer
    │   ├── CredentialsRefusedError         it answers, and refuses who we are
    │   ├── ManageClaimMissingError         it knows who we are, and we may not make queues
    │   ├── QueueNotCreatableError          we may, and it did not work
    │   └── QueueUnsafeError                one is there that would lose or refuse messages
    ├── SendError                           a micro-batch could not be sent as a whole
    │   ├── MisconfiguredSendError          an entity refuses our credential or claim; never fails over
    │   ├── AllBacklogsOutError             no backlog queue takes messages, and there is no overflow
    │   ├── UnsendableError                 messages that belong to overflow or quarantine, and there is no state
    │   ├── OverflowLeftError               rows of the overflow that nothing takes yet
    │   ├── ConservationError               rows without an outcome, or with two
    │   └── BatchFailedError                several of these at once
    ├── StateError                          the Delta tables of the option state cannot be used
    ├── ReplayRefusedError                  another replay of the same state is under way
    ├── UnsupportedSparkError               this Spark cannot do what the sink needs, or there is none
    │   └── JavaMissingError                (in `java`) no Java that Spark could run on
    ├── TurnFailedError                     a turn of the syphon failed in Spark, or in a way that nobody thought of
    ├── BoardError                          the file with what the executor knows cannot be read or written
    ├── ClosedError                         used after it was closed
    │   └── FaultedError                    used after it, or its other side, came to an end that is final
    └── IncompatibleSdkError                azure-servicebus is not a version whose private parts we know

Texts go through `redact`, so an answer of the service can be passed on as it came. Nothing here knows of Azure's own
exceptions: `faults` sorts those.
"""

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

HIDDEN = "***"

_SECRETS: tuple[tuple[re.Pattern[str], str], ...] = (
    # "SharedAccessSignature sr=…&sig=…", as a value in a connection string or as a header: gone as a whole.
    (re.compile(r"(SharedAccessSignature[\"']?\s*[=:]\s*[\"']?)(?:SharedAccessSignature\s+)?[^;\s\"']+", re.I), HIDDEN),
    (re.compile(r"(SharedAccessSignature\s+)(?=s[rieg]\w*=)[^;\s\"']+", re.I), HIDDEN),
    # name=value and "name": "value"; SharedAccessKeyName is no secret and does not match.
    (
        re.compile(
            r"((?:SharedAccessKey|AccountKey|(?:client|app)[_-]?secret|client[_-]?assertion|password|passwd|pwd"
            r"|(?:access|refresh|id|security|web|sas)[_-]?token)[\"']?\s*(?:[=:]|%3D)\s*(?:b(?=[\"']))?[\"']?)[^;&\s\"',]+",
            re.I,
        ),
        HIDDEN,
    ),
    (
        re.compile(r"((?<![A-Za-z0-9])(?:sig|signature)[\"']?\s*(?:=|%3D)\s*(?:b(?=[\"']))?[\"']?)[^;&\s\"',]+", re.I),
        HIDDEN,
    ),
    (re.compile(r"(\b(?:Bearer|Basic)\s+)(?=[A-Za-z0-9])[A-Za-z0-9._~+/=-]{8,}", re.I), HIDDEN),
    # A JSON web token stands out by itself: its header is JSON in base64, which starts with eyJ.
    (re.compile(r"()eyJ[A-Za-z0-9_-]{5,}(?:\.[A-Za-z0-9_-]*)*"), HIDDEN),
    # user:password@host
    (re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^/\s:@]*:[^/\s@]+(?=@)", re.I), HIDDEN),
)


def redact(text: str) -> str:
    """The text without keys, signatures, tokens and passwords; what is no secret stays as it is."""
    for pattern, instead in _SECRETS:
        text = pattern.sub(lambda match, instead=instead: match[1] + instead, text)  # type: ignore[misc]
    return text


def told(error: BaseException) -> str:
    """An error for people: ours as it is, of all others the first line, without the traces and plans below it."""
    if isinstance(error, SparkSbSinkError):
        return str(error)
    text = str(error)
    if hasattr(error, "java_exception"):  # py4j's own text begins with the number of an object
        with contextlib.suppress(Exception):  # the JVM may be gone
            text = str(error.java_exception.toString())
    lines = redact(text).strip().splitlines()
    return lines[0].rstrip(";") if lines else type(error).__name__


def _rebuild(kind: type["SparkSbSinkError"], args: tuple[Any, ...], state: dict[str, Any]) -> "SparkSbSinkError":
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class SparkSbSinkError(Exception):
    """Base of all errors of this library. Its text is for the person who reads it at night."""

    def __init__(self, text: str) -> None:
        super().__init__(redact(text))

    def __reduce__(self) -> tuple[Any, ...]:
        # The subclasses take keywords, which Exception's own pickling cannot give back.
        return _rebuild, (type(self), self.args, self.__dict__.copy())


class OptionError(SparkSbSinkError, ValueError):
    """All options that are wrong, in one line: of each the key, what it got, what it takes."""

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join([*(problem.rstrip(".") for problem in problems[:-1]), *problems[-1:]]))
        self.problems: tuple[str, ...] = tuple(redact(problem) for problem in problems)


class SchemaError(SparkSbSinkError, ValueError):
    """One sentence for each column that is wrong: its name, what it got, what it takes."""

    def __init__(self, *problems: str) -> None:
        listed = "".join(f"\n  {problem}" for problem in problems)
        super().__init__(f"The columns do not fit the row contract, and nothing was sent:{listed}")
        self.problems: tuple[str, ...] = tuple(redact(problem) for problem in problems)


class PairingError(SparkSbSinkError):
    """The namespaces could not be paired. Raised before the first send."""

    def __init__(self, text: str, *, namespace: str) -> None:
        super().__init__(text)
        self.namespace = namespace


class SecondaryUnreachableError(PairingError):
    """The secondary namespace does not answer, or answers that it cannot."""

    def __init__(self, *, namespace: str, detail: str) -> None:
        super().__init__(
            f"The secondary namespace {namespace} could not be reached to find or make the backlog queues: "
            f"{_sentence(detail)} Nothing was sent. Check name, network and firewall; to start all the same while the "
            'secondary is out, set pairing = "best-effort".',
            namespace=namespace,
        )


class CredentialsRefusedError(PairingError):
    """The secondary namespace refuses the credential."""

    def __init__(self, *, namespace: str, detail: str) -> None:
        super().__init__(
            f"The secondary namespace {namespace} refused the credential: {_sentence(detail)} Nothing was sent. Check "
            "the key or identity of the option secondary; trying again will not help.",
            namespace=namespace,
        )


class ManageClaimMissingError(PairingError):
    """The credential is good, and lacks the Manage claim that listing and making queues takes."""

    def __init__(self, *, namespace: str, detail: str) -> None:
        super().__init__(
            f"The credential for the secondary namespace {namespace} lacks the Manage claim that finding and making "
            f"backlog queues takes: {_sentence(detail)} Nothing was sent. Grant Manage (role Azure Service Bus Data "
            'Owner), or make the queues yourself and set pairing = "assume".',
            namespace=namespace,
        )


class QueueNotCreatableError(PairingError):
    """A backlog queue is missing and could not be made."""

    def __init__(self, *, namespace: str, queue: str, detail: str) -> None:
        super().__init__(
            f"The backlog queue {queue} does not exist in the secondary namespace {namespace} and could not be made: "
            f"{_sentence(detail)} Nothing was sent. Make the queue by hand, or clear what stands in its way.",
            namespace=namespace,
        )
        self.queue = queue


class QueueUnsafeError(PairingError):
    """A backlog queue exists, and would lose or refuse what is diverted to it. It is not changed."""

    def __init__(self, *, namespace: str, queue: str, detail: str) -> None:
        super().__init__(
            f"The backlog queue {queue} in the secondary namespace {namespace} is not safe to use: {_sentence(detail)} "
            "Nothing was sent. The queue was not changed: delete it while it is empty, and it is made anew; to use it "
            'as it is, set pairing = "best-effort".',
            namespace=namespace,
        )
        self.queue = queue


class SendError(SparkSbSinkError):
    """A micro-batch could not be sent as a whole; Spark runs it again when the query is restarted."""


class MisconfiguredSendError(SendError):
    """An entity refuses our credential or claim. Sending elsewhere would only hide that, so it never fails over."""

    def __init__(self, *, namespace: str, entity: str, claim: str, detail: str) -> None:
        super().__init__(
            f"{entity} in namespace {namespace} refuses our messages, because the credential is not accepted there or "
            f"lacks the {claim} claim: {_sentence(detail)} This is no outage, so nothing was diverted; the messages "
            f"for other entities were sent, and this micro-batch fails. Grant {claim} on {entity} or correct the "
            "credential, then start the query again.",
        )
        self.namespace = namespace
        self.entity = entity
        self.claim = claim


class AllBacklogsOutError(SendError):
    """Primary entity and all backlog queues are out, and no overflow is configured."""

    def __init__(self, *, namespace: str, entity: str, errors: Iterable[tuple[str, str]]) -> None:
        self.namespace = namespace
        self.entity = entity
        self.errors: Sequence[tuple[str, str]] = tuple((queue, redact(error)) for queue, error in errors)
        listed = "".join(f"\n  {queue}: {error}" for queue, error in self.errors)
        super().__init__(
            f"{entity} is failed over, and none of the {len(self.errors)} backlog queues in namespace {namespace} "
            "takes its messages; this micro-batch fails, and what was not sent is sent when the query is started "
            "again. With the option state set, such messages go to the overflow table instead. The last error of "
            f"each queue:{listed}"
        )


class UnsendableError(SendError):
    """Messages that no namespace takes, and no table to put them into."""

    def __init__(self, *, entity: str, overflow: int, quarantine: int, reasons: Iterable[str]) -> None:
        counts = [
            f"{count} for {table}" for count, table in ((overflow, "overflow"), (quarantine, "quarantine")) if count
        ]
        of = f"rows for {entity}" if entity else "rows without an entity"
        listed = "".join(f"\n  {redact(reason)}" for reason in reasons)
        super().__init__(
            f"{overflow + quarantine} {of} cannot be sent ({' and '.join(counts)}), and the option state names no "
            "place to keep them; this micro-batch fails, and all other rows were sent. Set state to a Delta path or "
            "table prefix, and such rows are kept there while the query goes on; or mend the rows. The first "
            f"reasons:{listed}"
        )
        self.entity = entity


class OverflowLeftError(SendError):
    """The overflow was drained, but for some rows that nothing takes yet."""

    LISTED = 10

    def __init__(self, *, state: str, table: str, entities: Mapping[str, tuple[int, str]]) -> None:
        """`entities`: how many rows of each, and why they were not sent."""
        named = [f"\n- {name}, {rows} rows: {redact(why)}" for name, (rows, why) in sorted(entities.items())]
        more = len(named) - self.LISTED
        super().__init__(
            f"{sum(rows for rows, _ in entities.values())} rows of the overflow under state = {state!r}, for "
            f"{len(entities)} entities, are taken by nothing yet. They are kept in the table {table} and tried again, "
            "and hold up no others. An entity that is down needs nothing but time, one that refuses us needs its "
            f"claim.{''.join(named[: self.LISTED])}{f'{chr(10)}- and {more} more' if more > 0 else ''}"
        )
        self.entities = dict(entities)


class ConservationError(SendError):
    """Spark counted other rows than those with an outcome."""

    def __init__(self, *, rows: int, accounted: int, detail: str) -> None:
        super().__init__(
            f"Spark counted {rows} rows in this micro-batch, but {accounted} have an outcome ({detail}); it fails, so "
            "that nothing is lost, and is sent again when the query is started again. If it happens again, the source "
            "gives other rows each time it is read (rand(), current_timestamp() in a filter): make it repeatable."
        )


class BatchFailedError(SendError):
    """A micro-batch failed for several reasons."""

    def __init__(self, errors: Sequence[SendError]) -> None:
        listed = "".join(f"\n- {error}" for error in errors)
        super().__init__(f"The micro-batch failed for {len(errors)} reasons:{listed}")
        self.errors = tuple(errors)


class StateError(SparkSbSinkError):
    """The Delta tables of the option state cannot be read or written."""

    def __init__(self, *, state: str, detail: str) -> None:
        super().__init__(
            f"The Delta tables under state = {state!r} cannot be used: {_sentence(detail)} Check that the path or "
            "schema can be written to and that Delta is there (with delta-spark: configure_spark_with_delta_pip and "
            "Delta's two settings, see docs/deploying.md)."
        )


class ReplayRefusedError(SparkSbSinkError):
    """Two replays at once would send everything twice."""

    def __init__(self, *, state: str, seconds: float) -> None:
        super().__init__(
            f"Another replay of the quarantine under state = {state!r} is under way, or ended without a word less than "
            f"{seconds:.0f} s ago. This one stops here; what it has sent, if anything, is noted. Wait that long and "
            "replay again: what is noted is not sent twice."
        )


class UnsupportedSparkError(SparkSbSinkError):
    """This Spark cannot do what the sink needs."""


class TurnFailedError(SparkSbSinkError):
    """A turn of the syphon failed in Spark, or in a way that nobody thought of. Nothing is lost by it."""

    def __init__(self, *, detail: str) -> None:
        text = " ".join(redact(detail).split())[:1000]
        super().__init__(
            f"A turn of the syphon failed: {_sentence(text)} What it had in hand comes again once its locks are over. "
            "Start the syphon again; the driver's log has the whole error."
        )


class BoardError(SparkSbSinkError):
    """The board cannot be used. What is damaged is made anew, so this is about the folder, the disk or a stuck lock."""

    def __init__(self, *, path: str, detail: str, patience: float | None = None) -> None:
        what, advice = (
            (
                "cannot be read or written",
                "Give it a folder on a local disk that this user may write to, with room for a megabyte; the workers "
                "of an executor share what they know of the entities there.",
            )
            if patience is None
            else (
                f"was held by another process for {patience:g} s",
                "A worker of this executor may be stopped or stuck inside a transaction; end that process.",
            )
        )
        super().__init__(f"The board {path} {what}: {_sentence(detail)} {advice}")
        self.path = path


class ClosedError(SparkSbSinkError):
    """Used after close."""

    def __init__(self, what: str, *, reason: str = "") -> None:
        super().__init__(
            f"{what} is closed{f' ({reason})' if reason else ''}; nothing more can be sent with it. Make a new one."
        )


class FaultedError(ClosedError):
    """Used after an end that is final: closed, its loop dead, its credential refused; never a network outage."""

    def __init__(self, *, first: str, other: str, reason: str) -> None:
        SparkSbSinkError.__init__(
            self,
            f"The {first} side of the pair came to its end first: {_sentence(reason)} The {other} side was closed with "
            "it, and nothing more can be sent. Remove the cause and start again.",
        )
        self.first = first
        self.other = other


class IncompatibleSdkError(SparkSbSinkError):
    """The azure-servicebus at hand does not do what the library relies on."""

    def __init__(self, *, found: str, works: str, missing: str) -> None:
        super().__init__(
            f"azure-servicebus {found} does not do what this library relies on ({missing}); install {works}."
        )


NO_OUTCOME = (ClosedError, BoardError, IncompatibleSdkError)
"""What says nothing of the entity that was sent to: it is raised, and sorted as no fault."""


def _sentence(detail: str) -> str:
    """A detail from outside, ended so that our own text can go on."""
    detail = " ".join(detail.split()) or "no reason was given"
    return detail if detail.endswith((".", "!", "?")) else detail + "."
