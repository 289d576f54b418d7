"""Errors tell what happened, to what, and what to do; they never tell a secret."""

import pickle
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_sb_sink import errors
from spark_sb_sink.errors import (
    AllBacklogsOutError,
    BatchFailedError,
    BoardError,
    ClosedError,
    ConservationError,
    CredentialsRefusedError,
    FaultedError,
    IncompatibleSdkError,
    ManageClaimMissingError,
    MisconfiguredSendError,
    OptionError,
    OverflowLeftError,
    PairingError,
    QueueNotCreatableError,
    QueueUnsafeError,
    ReplayRefusedError,
    SchemaError,
    SecondaryUnreachableError,
    SendError,
    SparkSbSinkError,
    StateError,
    TurnFailedError,
    UnsendableError,
    UnsupportedSparkError,
    redact,
    told,
)

BASE64 = string.ascii_letters + string.digits + "+/"
# A marker that no template holds makes sure that what is looked for is the secret.
base64_keys = st.text(BASE64, min_size=8, max_size=60).map(lambda text: f"Qz9{text}Zq7=")
url_keys = st.text(string.ascii_letters + string.digits, min_size=8, max_size=60).map(lambda t: f"Qz9{t}%2BZq7%3D")
jwt_parts = st.text(string.ascii_letters + string.digits + "-_", min_size=8, max_size=40)
surroundings = st.text(st.characters(codec="utf-8", exclude_characters="=:"), max_size=40)

EXAMPLES: list[SparkSbSinkError] = [
    SparkSbSinkError("something"),
    ReplayRefusedError(state="/lake/servicebus", seconds=60),
    OptionError("failover_interval got '2d'.", "entity is missing."),
    SchemaError("body is missing.", "entity is missing."),
    SecondaryUnreachableError(namespace="b.servicebus.windows.net", detail="connection refused"),
    CredentialsRefusedError(namespace="b.servicebus.windows.net", detail="401"),
    ManageClaimMissingError(namespace="b.servicebus.windows.net", detail="Manage,EntityRead claims required"),
    QueueNotCreatableError(namespace="b.servicebus.windows.net", queue="a/x-servicebus-transfer/3", detail="quota"),
    QueueUnsafeError(namespace="b.servicebus.windows.net", queue="a/x-servicebus-transfer/3", detail="sessions"),
    MisconfiguredSendError(namespace="a.servicebus.windows.net", entity="orders", claim="Send", detail="401"),
    AllBacklogsOutError(
        namespace="b.servicebus.windows.net",
        entity="orders",
        errors=[("a/x-servicebus-transfer/0", "deadline"), ("a/x-servicebus-transfer/1", "disabled")],
    ),
    UnsendableError(entity="orders", overflow=1, quarantine=2, reasons=["body is null"]),
    OverflowLeftError(state="/s", table="overflow_left", entities={"orders": (3, "down"), "bills": (1, "down")}),
    ConservationError(rows=10, accounted=9, detail="tasks read 10: 9 primary"),
    BatchFailedError([UnsendableError(entity="orders", overflow=0, quarantine=2, reasons=["body is null"])]),
    StateError(state="/lake/servicebus", detail="Failed to find the data source: delta"),
    UnsupportedSparkError("This is Spark Connect."),
    TurnFailedError(detail="Job aborted due to stage failure"),
    BoardError(path="/executor/spark-sb-sink-0123456789abcdef.board", detail="Permission denied"),
    ClosedError("The paired factory"),
    FaultedError(first="secondary", other="primary", reason="its credential was refused"),
    IncompatibleSdkError(found="7.16.0", works="azure-servicebus>=7.15,<7.16", missing="SendClientAsync._link"),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_every_error_is_one_of_ours_and_comes_through_a_pickle(error: SparkSbSinkError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert isinstance(again, SparkSbSinkError)
    assert str(again) == str(error)
    assert repr(again.__dict__) == repr(error.__dict__)


def test_every_error_class_stands_in_the_tree_at_the_top_of_the_module() -> None:
    kinds = {
        name for name, thing in vars(errors).items() if isinstance(thing, type) and thing.__module__ == errors.__name__
    }
    assert errors.__doc__ is not None
    assert kinds == {name for name in kinds if name in errors.__doc__}
    assert {type(error).__name__ for error in EXAMPLES} | {"PairingError", "SendError"} == kinds


def test_option_errors_are_value_errors_and_list_one_sentence_for_each_problem() -> None:
    error = OptionError("a got 1.", "b got 2.")
    assert isinstance(error, ValueError)
    assert error.problems == ("a got 1.", "b got 2.")
    assert str(error) == "a got 1; b got 2."


@pytest.mark.parametrize("error", [e for e in EXAMPLES if isinstance(e, PairingError)], ids=lambda e: type(e).__name__)
def test_a_pairing_error_names_the_secondary_and_says_that_nothing_was_sent(error: PairingError) -> None:
    assert error.namespace == "b.servicebus.windows.net"
    assert "b.servicebus.windows.net" in str(error)
    assert "Nothing was sent." in str(error)


def test_a_misconfigured_send_names_namespace_entity_and_the_claim_needed() -> None:
    error = MisconfiguredSendError(
        namespace="a.servicebus.windows.net", entity="orders", claim="Send", detail="sig=AbCdEf12345 is wrong"
    )
    assert isinstance(error, SendError)
    for part in ("a.servicebus.windows.net", "orders", "Send claim", "nothing was diverted"):
        assert part in str(error)
    assert "AbCdEf12345" not in str(error)


def test_all_backlogs_out_lists_the_last_error_of_every_queue() -> None:
    queues = [(f"a/x-servicebus-transfer/{n}", f"reason {n}, SharedAccessKey=c2VjcmV0{n};") for n in range(10)]
    error = AllBacklogsOutError(namespace="b.servicebus.windows.net", entity="orders", errors=queues)
    for n in range(10):
        assert f"a/x-servicebus-transfer/{n}: reason {n}" in str(error)
    assert "c2VjcmV0" not in str(error)
    assert "c2VjcmV0" not in repr(error.errors)


def test_a_faulted_pair_says_which_side_went_first() -> None:
    error = FaultedError(first="secondary", other="primary", reason="its credential was refused")
    assert isinstance(error, ClosedError)
    assert str(error).startswith("The secondary side of the pair came to its end first: its credential was refused.")


def test_a_detail_without_any_text_still_makes_a_sentence() -> None:
    error = SecondaryUnreachableError(namespace="b", detail=" \n ")
    assert "no reason was given." in str(error)


@pytest.mark.parametrize(
    "template",
    [
        "Endpoint=sb://a.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey={}",
        "Endpoint=sb://a.servicebus.windows.net/;SharedAccessKey={};EntityPath=orders",
        "endpoint=sb://a/;sharedaccesskey = {};x=y",
        "{{'SharedAccessKey': '{}'}}",
        '{{"client_secret": "{}", "a": 1}}',
        "client_secret={}&grant_type=client_credentials",
        "https://u:{}@proxy.example:8080/",
        "Authorization: Bearer {}",
        '"access_token":"{}"',
        "password={}",
    ],
)
@given(key=base64_keys)
def test_no_key_survives(template: str, key: str) -> None:
    if "://u:" in template:
        key = key.replace("/", "_")
    told = redact(template.format(key))
    assert key not in told
    assert "Qz9" not in told
    assert "Zq7" not in told
    assert "***" in told


@pytest.mark.parametrize(
    "template",
    [
        "SharedAccessSignature=SharedAccessSignature sr=sb%3a%2f%2fa&sig={}&se=1700000000&skn=Root",
        "Endpoint=sb://a/;SharedAccessSignature=SharedAccessSignature sr=a&sig={}&se=17;x=y",
        "Authorization: SharedAccessSignature sr=sb%3a%2f%2fa&sig={}&se=1700000000&skn=Root",
        "SharedAccessSignature sig={}&se=1700000000&skn=Root&sr=a",
        "https://a.blob.core.windows.net/c?sv=2020&sig={}&se=2030",
        "sig={}",
        "signature = {}",
    ],
)
@given(key=url_keys)
def test_no_signature_survives(template: str, key: str) -> None:
    told = redact(template.format(key))
    assert "Qz9" not in told
    assert "Zq7" not in told


@given(header=jwt_parts, body=jwt_parts, signature=jwt_parts, before=surroundings, after=surroundings)
def test_no_web_token_survives_whatever_stands_around_it(
    header: str, body: str, signature: str, before: str, after: str
) -> None:
    token = f"eyJQz9{header}.eyJ{body}Qz9.{signature}Zq7"
    told = redact(f"{before} {token} {after}")
    assert token not in told
    assert "Qz9" not in told.replace(before, "").replace(after, "")


@given(st.text())
def test_redacting_twice_is_redacting_once(text: str) -> None:
    assert redact(redact(text)) == redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "SharedAccessKeyName=RootManageSharedAccessKey",
        "Unauthorized access. 'Send' claim(s) are required to perform this operation. Resource: 'sb://a/orders'.",
        "The token is expired. TrackingId:7d1c, SystemTracker:NoSystemTracker, Timestamp:2024-01-01T00:00:00",
        "designation=north",
        "Please wait 4 seconds and try again. Error code: 50009",
        "amqps://a.servicebus.windows.net:5671/orders",
    ],
)
def test_what_is_no_secret_stays_as_it_is(text: str) -> None:
    assert redact(text) == text


def test_an_error_made_of_a_text_with_a_secret_does_not_hold_it() -> None:
    error = SparkSbSinkError("failed: SharedAccessKey=bXlzZWNyZXQ=;")
    assert "bXlzZWNyZXQ" not in repr(error)
    assert b"bXlzZWNyZXQ" not in pickle.dumps(error)


@pytest.mark.parametrize("text", ["{'SharedAccessKey': b'S3CRET'}", "sr=x&sig%3DS3CRET&se=1", "Sig = b'S3CRET'"])
def test_secrets_in_odd_clothes_are_seen_through(text: str) -> None:
    assert "S3CRET" not in redact(text)


def test_an_error_of_others_is_told_by_its_first_line_without_secrets_and_ours_as_it_is() -> None:
    assert told(ValueError("no column SharedAccessKey=bXlzZWNyZXQ=;\n'Project [a]\n+- Plan")).startswith("no column ")
    assert "bXlzZWNyZXQ" not in told(ValueError("SharedAccessKey=bXlzZWNyZXQ=;"))
    assert "Plan" not in told(ValueError("\nno column;\nPlan"))
    assert told(ValueError()) == "ValueError"
    of_java = ValueError("An error occurred while calling o12.load")
    of_java.java_exception = "java.io.IOException: no file system\n\tat org.apache"  # type: ignore[attr-defined]
    assert told(of_java) == of_java.args[0], "py4j's own text, where Java does not answer"
    assert told(SparkSbSinkError("one\ntwo")) == "one\ntwo"
