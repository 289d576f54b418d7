"""Each row of the table of failures, by name, and each as the real SDK makes it."""

import asyncio
import logging
import ssl
from typing import Any

import pytest
from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ServiceRequestError,
    ServiceResponseError,
)
from azure.identity import CredentialUnavailableError
from azure.servicebus import exceptions as sb
from azure.servicebus._pyamqp.error import (
    AMQPConnectionError,
    AMQPException,
    AMQPLinkError,
    AuthenticationException,
    ErrorCondition,
    MessageException,
    MessageSendFailed,
    TokenAuthFailure,
    TokenExpired,
)
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from hypothesis import given
from hypothesis import strategies as st

from spark_sb_sink.faults import Fault, Kind, Phase, Symptom, sort, symptom_of, throttle_wait

logging.getLogger("azure").setLevel(logging.CRITICAL)
LOG = logging.getLogger("azure.servicebus.test")


def as_raised(inner: Exception) -> Exception:
    """What the SDK makes of an exception from below, as its senders raise it."""
    return PyamqpTransport.create_servicebus_exception(LOG, inner)


def rejected(condition: bytes, text: str = "said the broker") -> Exception:
    """A disposition `rejected`, as the SDK's send client reports it."""

    class Delivery:
        error: Exception
        state: Any = None

    from azure.servicebus._pyamqp.client import SendClient

    SendClient._process_send_error(Delivery, condition, text, {})
    return as_raised(Delivery.error)


def detached(condition: bytes, text: str = "said the broker") -> Exception:
    return as_raised(AMQPLinkError(condition, description=text))


def closed(condition: bytes, text: str = "said the broker") -> Exception:
    return as_raised(AMQPConnectionError(condition, description=text))


def cbs(status: Any, text: Any = b"said $cbs") -> Exception:
    return as_raised(TokenAuthFailure(status, text))


def caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


class Response:
    """As much of an HTTP response as azure.core's exceptions look at."""

    reason = "because"

    def __init__(self, status_code: int) -> None:
        self.status_code = status_code

    def text(self) -> str:
        return ""


def refused_by_entra(status: int) -> ClientAuthenticationError:
    return ClientAuthenticationError(message="AADSTS7000215: Invalid client secret", response=Response(status))


def fault_of(error: BaseException, **known: Any) -> Fault:
    return sort(symptom_of(error, **known))


ENTITY_FAULTS: dict[str, BaseException] = {
    "ServiceBusConnectionError": sb.ServiceBusConnectionError(),
    "ServiceBusCommunicationError": sb.ServiceBusCommunicationError(),
    "OperationTimeoutError": sb.OperationTimeoutError(message="Send operation timed out"),
    "OperationTimeoutError as raised after the retries": caused(
        sb.OperationTimeoutError(message="x"), sb.OperationTimeoutError(message="x")
    ),
    "our own deadline": TimeoutError(),
    "our own deadline around a cancelled call": caused(TimeoutError(), asyncio.CancelledError()),
    "amqp:internal-error": detached(b"amqp:internal-error"),
    "amqp:internal-error in a disposition": rejected(b"amqp:internal-error"),
    "com.microsoft:operation-cancelled": rejected(b"com.microsoft:operation-cancelled"),
    "com.microsoft:container-close": detached(b"com.microsoft:container-close"),
    "com.microsoft:timeout in a disposition": rejected(b"com.microsoft:timeout"),
    "amqp:connection:forced": closed(b"amqp:connection:forced"),
    "amqp:link:detach-forced": detached(b"amqp:link:detach-forced"),
    "amqp:link:stolen": detached(b"amqp:link:stolen"),
    "amqp:resource-deleted": detached(b"amqp:resource-deleted"),
    "a detach without an error": detached(b"amqp:unknown-error", "Link detached unexpectedly."),
    "a socket error": as_raised(
        AMQPConnectionError(ErrorCondition.SocketError, description="reset", error=ConnectionResetError())
    ),
    "a host that does not exist": closed(b"amqp:not-found"),
    "a send while the connection is down": as_raised(
        MessageException(ErrorCondition.ClientError, description="Send failed - connection not running.")
    ),
    "a message not delivered": as_raised(MessageSendFailed(ErrorCondition.UnknownError)),
    "MessagingEntityNotFoundError": sb.MessagingEntityNotFoundError(),
    "an entity that was deleted": detached(b"amqp:not-found"),
    "MessagingEntityDisabledError": sb.MessagingEntityDisabledError(),
    "a disabled entity in a disposition": rejected(b"com.microsoft:entity-disabled"),
    "ServiceBusQuotaExceededError": sb.ServiceBusQuotaExceededError(),
    "a full entity in a disposition": rejected(b"amqp:resource-limit-exceeded"),
    "not-allowed at attach": detached(b"amqp:not-allowed"),
    "argument-error at attach": detached(b"com.microsoft:argument-error"),
    "$cbs 500": cbs(500),
    "$cbs 503": cbs(503),
    "$cbs 408": cbs(408),
    "$cbs 404 of an entity once seen": cbs(404),
    "$cbs 400": cbs(400),
    "$cbs that rejects the put-token": cbs(0, "Auth message has been rejected."),
    "$cbs without a status": cbs(None, None),
    "$cbs link broken": cbs(ErrorCondition.ClientError, "CBS authentication link is in broken status"),
    "$cbs link not opened": as_raised(
        AuthenticationException(ErrorCondition.InternalError, description="Failed to open CBS authentication link.")
    ),
    "a token that expired on the link": as_raised(
        TokenExpired(ErrorCondition.InternalError, description="CBS Authentication Expired.")
    ),
    "$cbs too slow": as_raised(TimeoutError("Authentication attempt timed-out.")),
    "no network while fetching a token": as_raised(ServiceRequestError("Cannot connect to host login:443")),
    "network lost while fetching a token": as_raised(
        caused(ClientAuthenticationError("Authentication failed: x"), ServiceResponseError("gone"))
    ),
    "no managed identity endpoint for the network": as_raised(
        caused(CredentialUnavailableError("no response from the IMDS endpoint."), ServiceRequestError("x"))
    ),
    "no network, told only in the text of a chained credential": as_raised(
        ClientAuthenticationError("DefaultAzureCredential failed: Cannot connect to host login.microsoftonline.com")
    ),
    "no network, told at the end of a long chain": as_raised(
        ClientAuthenticationError(f"DefaultAzureCredential failed: {'not configured, ' * 100} Connection refused")
    ),
    "no managed identity endpoint, told only in the text of a chained credential": as_raised(
        ClientAuthenticationError("DefaultAzureCredential failed: no response from the IMDS endpoint. az: not found")
    ),
    "the token service at 503": as_raised(refused_by_entra(503)),
    "the token service throttling": as_raised(refused_by_entra(429)),
    "a settlement not confirmed": RuntimeError("The service did not confirm the settlement on the receiver link."),
    "a sender already shut": ValueError("The handler has already been shutdown."),
    "a certificate not trusted": as_raised(ssl.SSLCertVerificationError("self-signed")),
    "an error of the SDK that nobody foresaw": as_raised(KeyError("rejected")),
    "an error that nobody foresaw": ZeroDivisionError(),
}

THROTTLED: dict[str, BaseException] = {
    "ServiceBusServerBusyError": sb.ServiceBusServerBusyError(),
    "server-busy in a disposition": rejected(b"com.microsoft:server-busy"),
    "server-busy at attach": detached(b"com.microsoft:server-busy"),
    "a connection closed as busy, which the SDK calls a connection error": closed(b"com.microsoft:server-busy"),
}

MISCONFIGURED: dict[str, BaseException] = {
    "$cbs 401": cbs(401),
    "$cbs 403": cbs(403),
    "ServiceBusAuthorizationError": sb.ServiceBusAuthorizationError(),
    "unauthorized-access at attach": detached(b"amqp:unauthorized-access"),
    "unauthorized-access in a disposition": rejected(b"amqp:unauthorized-access"),
    "com.microsoft:auth-failed": detached(b"com.microsoft:auth-failed"),
    "a connection closed as unauthorised": closed(b"amqp:unauthorized-access"),
    "a credential that is refused": as_raised(ClientAuthenticationError("AADSTS7000215: Invalid client secret")),
    "a credential that is refused, in a chain that could not reach another": as_raised(
        ClientAuthenticationError("no response from the IMDS endpoint. AzureCliCredential: AADSTS700082: expired")
    ),
    "a credential that is refused with 401": as_raised(refused_by_entra(401)),
    "a credential that is refused with 400": as_raised(refused_by_entra(400)),
    "a credential that is not there": as_raised(CredentialUnavailableError("environment variables are not set")),
    "a token file that is not there": as_raised(caused(CredentialUnavailableError("no file"), FileNotFoundError())),
    "the administration side at 403": HttpResponseError("Forbidden", response=Response(403)),
}

BAD_MESSAGES: dict[str, BaseException] = {
    "MessageSizeExceededError": sb.MessageSizeExceededError(),
    "too large in a disposition": rejected(b"amqp:link:message-size-exceeded"),
    "too large by detach": detached(b"amqp:link:message-size-exceeded"),
    "not-allowed": rejected(b"amqp:not-allowed"),
    "argument-error": rejected(b"com.microsoft:argument-error"),
    "argument-out-of-range": rejected(b"com.microsoft:argument-out-of-range"),
    "precondition-failed": rejected(b"amqp:precondition-failed"),
    "precondition-failed of the vendor": rejected(b"com.microsoft:precondition-failed"),
    "decode-error": rejected(b"amqp:decode-error"),
    "invalid-field": rejected(b"amqp:invalid-field"),
}


def rows(table: dict[str, BaseException]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("error", table.values(), ids=table.keys())


@rows(ENTITY_FAULTS)
def test_an_entity_fault(error: BaseException) -> None:
    fault = fault_of(error)
    assert fault.kind is Kind.ENTITY_FAULT
    assert fault.wait == 0
    assert not fault.split
    assert fault.text


@rows(THROTTLED)
def test_throttled(error: BaseException) -> None:
    fault = fault_of(error)
    assert fault.kind is Kind.THROTTLED
    assert fault.wait == 10
    assert not fault.split


@rows(MISCONFIGURED)
def test_misconfigured(error: BaseException) -> None:
    fault = fault_of(error)
    assert fault.kind is Kind.MISCONFIGURED
    assert not fault.split


@rows(BAD_MESSAGES)
def test_a_bad_message_is_looked_for_by_splitting(error: BaseException) -> None:
    fault = fault_of(error)
    assert fault.kind is Kind.BAD_MESSAGE
    assert fault.split


@pytest.mark.parametrize(
    "error",
    [ValueError("a value AMQP cannot carry"), TypeError(), OverflowError(), TimeoutError(), KeyError("x-ms-path")],
    ids=repr,
)
def test_whatever_goes_wrong_before_a_message_goes_out_is_a_bad_message_already_found(error: Exception) -> None:
    fault = fault_of(error, during=Phase.ENCODE, link_idle=1000)
    assert fault.kind is Kind.BAD_MESSAGE
    assert not fault.split


@pytest.mark.parametrize(
    "error",
    [sb.MessagingEntityNotFoundError(), detached(b"amqp:not-found"), rejected(b"amqp:not-found"), cbs(404)],
    ids=["MessagingEntityNotFoundError", "at attach", "in a disposition", "at $cbs"],
)
def test_an_entity_never_seen_healthy_that_is_not_found_makes_its_messages_bad_and_one_once_seen_is_out(
    error: Exception,
) -> None:
    never = fault_of(error, seen_healthy=False)
    assert never.kind is Kind.BAD_MESSAGE
    assert not never.split
    assert fault_of(error, seen_healthy=True).kind is Kind.ENTITY_FAULT


def test_a_namespace_that_is_not_found_is_an_entity_fault_even_if_the_entity_was_never_seen() -> None:
    assert fault_of(closed(b"amqp:not-found"), seen_healthy=False).kind is Kind.ENTITY_FAULT


# A disposition is an answer on a live link; anything else may come from the link having died of disuse.
ANSWERED = {name for name in ENTITY_FAULTS if "disposition" in name or name == "com.microsoft:operation-cancelled"}


@rows({name: error for name, error in ENTITY_FAULTS.items() if name not in ANSWERED})
def test_the_first_fault_on_a_link_unused_for_over_a_minute_is_a_stale_link(error: BaseException) -> None:
    assert fault_of(error, link_idle=60.001).kind is Kind.STALE_LINK
    assert fault_of(error, link_idle=60.0).kind is Kind.ENTITY_FAULT


@pytest.mark.parametrize("name", sorted(ANSWERED))
def test_a_broker_that_answers_on_an_idle_link_shows_that_the_link_is_not_stale(name: str) -> None:
    assert fault_of(ENTITY_FAULTS[name], link_idle=1000).kind is Kind.ENTITY_FAULT


@rows(THROTTLED | BAD_MESSAGES)
def test_throttling_and_bad_messages_are_what_they_are_on_an_idle_link_too(error: BaseException) -> None:
    assert fault_of(error, link_idle=1000).kind is fault_of(error).kind


def test_an_idle_link_detached_as_unauthorised_is_reopened_but_a_token_just_refused_is_not_tried_again() -> None:
    expired = detached(b"amqp:unauthorized-access", "ExpiredToken: The token is expired.")
    assert fault_of(expired, link_idle=1000).kind is Kind.STALE_LINK
    assert fault_of(cbs(401), link_idle=1000).kind is Kind.MISCONFIGURED
    assert fault_of(as_raised(refused_by_entra(401)), link_idle=1000).kind is Kind.MISCONFIGURED


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("Please wait 20 seconds and try again.", 20),
        ("The namespace is being throttled. Error code: 50009. Please wait 4 seconds and try again.", 10),
        ("Please wait 11 second and try again", 11),
        ("wait for 2 minutes", 120),
        ("Wait at least 15000 ms", 15),
        ("retry after 30 s", 30),
        ("Retry-After: 45", 45),
        ("try again in 1.5 minutes", 90),
        ("Please wait 00:00:35 and try again.", 35),
        ("Please wait for 0:02:00.", 120),
        ("Please wait 2 hours", 600),
        ("Please wait 86400 seconds", 600),
        ("Error code 50002, tracking 1234567", 10),
        ("Please wait.", 10),
        ("", 10),
    ],
)
def test_throttled_waits_ten_seconds_or_what_the_service_asks_for_within_reason(text: str, seconds: float) -> None:
    assert throttle_wait(text) == seconds
    assert fault_of(sb.ServiceBusServerBusyError(message=text or "busy")).wait == seconds


@given(st.text())
def test_no_text_makes_the_wait_shorter_than_ten_seconds_or_endless(text: str) -> None:
    assert 10 <= throttle_wait(text) <= 600


def test_the_text_asked_for_is_found_where_the_sdk_hides_it() -> None:
    assert fault_of(rejected(b"com.microsoft:server-busy", "Please wait 25 seconds and try again.")).wait == 25


@pytest.mark.parametrize(
    ("text", "claim"),
    [
        ("Unauthorized access. 'Send' claim(s) are required to perform this operation. Resource: 'sb://a/b'.", "Send"),
        ("Manage,EntityRead claims required for this operation.", "Manage"),
        ("Unauthorized access. 'Listen' claim(s) are required to perform this operation.", "Listen"),
        ("InvalidSignature: The token has an invalid signature.", None),
        ("", None),
    ],
)
def test_the_claim_that_the_service_misses_is_read_from_its_answer(text: str, claim: str | None) -> None:
    fault = fault_of(detached(b"amqp:unauthorized-access", text))
    assert fault.claim == claim
    assert fault.claim_missing is (claim is not None)


def test_a_403_speaks_of_a_missing_claim_and_a_401_of_the_credential() -> None:
    assert fault_of(cbs(403)).claim_missing
    assert not fault_of(cbs(401)).claim_missing
    assert not fault_of(sb.ServiceBusConnectionError()).claim_missing


def test_the_words_of_cbs_reach_the_reader_and_its_secrets_do_not() -> None:
    fault = fault_of(cbs(401, b"InvalidSignature: SharedAccessSignature sr=a&sig=c2VjcmV0&se=1&skn=Root"))
    assert "InvalidSignature" in str(fault)
    assert "c2VjcmV0" not in repr(fault)


def test_a_symptom_is_read_off_an_exception_without_knowing_its_class() -> None:
    symptom = symptom_of(cbs(401, b"no"), during=Phase.OPEN, link_idle=3.0, seen_healthy=False)
    assert symptom.names[:2] == ("ServiceBusAuthenticationError", "ServiceBusError")
    assert "TokenAuthFailure" in symptom.names
    assert symptom.phase is Phase.TOKEN
    assert symptom.status_code == 401
    assert symptom.condition == "amqp:client-error"
    assert (symptom.link_idle, symptom.seen_healthy, symptom.unreachable) == (3.0, False, False)


def test_the_condition_that_says_something_wins_over_the_one_that_says_nothing() -> None:
    outer = sb.ServiceBusError("x", condition=b"amqp:unknown-error", error=AMQPException(b"com.microsoft:server-busy"))
    assert symptom_of(outer).condition == "com.microsoft:server-busy"


def test_exceptions_that_hold_each_other_and_exceptions_without_a_text_are_no_trouble() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    outer = AzureError("outer", error=Mute())
    outer.inner_exception.__cause__ = outer  # type: ignore[union-attr]
    symptom = symptom_of(outer)
    assert symptom.text == "outer | Mute"
    assert sort(symptom).kind is Kind.ENTITY_FAULT


@given(
    names=st.lists(st.sampled_from(["ServiceBusError", "AMQPConnectionError", "OSError", "Surprise"])).map(tuple),
    phase=st.sampled_from([phase for phase in Phase if phase is not Phase.ENCODE]),
    condition=st.none() | st.text(),
    status=st.none() | st.integers(),
    text=st.text(),
)
def test_what_nobody_foresaw_is_an_entity_fault(
    names: tuple[str, ...], phase: Phase, condition: str | None, status: int | None, text: str
) -> None:
    fault = sort(Symptom(names, phase=phase, condition=condition, status_code=status, text=text))
    assert fault.kind is Kind.ENTITY_FAULT or status in (401, 403)
