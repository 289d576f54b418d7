"""Who gets in: tokens, claims and TLS, as the SDK meets them, and as a bare AMQP client without any token does."""

import asyncio
import base64
import datetime
import hashlib
import hmac
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar
from urllib.parse import quote_plus

import pytest
from azure.core.credentials import AccessToken
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient as AioClient
from azure.servicebus.exceptions import (
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
)
from proton import Message
from proton.utils import BlockingConnection, LinkDetached

from spark_sb_sink.broker import BrokerProcess, ControlError, NamespaceHandle
from tests.broker.sdk import QUICK, Blocking, opener

Opener = Callable[..., Any]


def field(connection_string: str, name: str) -> str:
    return next(part.partition("=")[2] for part in connection_string.split(";") if part.startswith(name + "="))


def signature(key: str, signed: str) -> str:
    return quote_plus(base64.b64encode(hmac.new(key.encode(), signed.encode(), hashlib.sha256).digest()))


def sas(uri: str, policy: str, key: str, expiry: str | None = None) -> str:
    """A shared access signature made by hand, from the service's documentation and not from any code of ours."""
    resource, expiry = quote_plus(uri), expiry or str(int(time.time()) + 600)
    signed = signature(key, f"{resource}\n{expiry}")
    return f"SharedAccessSignature sr={resource}&sig={signed}&se={expiry}&skn={policy}"


def own_sas(handle: NamespaceHandle, entity: str, **changed: str) -> str:
    given = {
        "uri": f"sb://{handle.endpoint}/{entity}",
        "policy": field(handle.connection_string, "SharedAccessKeyName"),
        "key": field(handle.connection_string, "SharedAccessKey"),
        **changed,
    }
    return sas(**given)


def with_token(handle: NamespaceHandle, token: str) -> str:
    return f"Endpoint=sb://{handle.endpoint}/;SharedAccessSignature={token};UseDevelopmentEmulator=true"


def send(client: Any, queue: str, body: str = "hello") -> None:
    with client.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage(body))


def receive(client: Any, queue: str) -> list[str]:
    with client.get_queue_receiver(queue) as receiver:
        messages = receiver.receive_messages(max_wait_time=5)
        for message in messages:
            receiver.complete_message(message)
        return [str(message) for message in messages]


def texts(error: BaseException) -> str:
    """All that a person or a log could see of an error."""
    seen: list[str] = []
    link: BaseException | None = error
    while link is not None:
        seen += [str(link), repr(link), repr(link.args)]
        link = link.__cause__ or link.__context__
    return "\n".join(seen)


@contextmanager
def unauthenticated(text: str) -> Iterator[pytest.ExceptionInfo[ServiceBusAuthenticationError]]:
    """The SDK's error for any token that `$cbs` refuses; what the broker said of it is in the error inside."""
    with pytest.raises(ServiceBusAuthenticationError) as caught:
        yield caught
    assert text in texts(caught.value)


@pytest.fixture
def raw(namespace: NamespaceHandle) -> Iterator[BlockingConnection]:
    """An AMQP connection of proton's own client: no `$cbs`, no SDK."""
    connection = BlockingConnection(f"amqp://{namespace.endpoint}", timeout=10, allowed_mechs="ANONYMOUS")
    yield connection
    connection.close()


def request(connection: BlockingConnection, node: str, properties: dict[str, Any], body: object) -> Any:
    receiver, sender = connection.create_receiver(node, credit=1), connection.create_sender(node)
    sender.send(Message(properties=properties, body=body, reply_to=node))
    answer = receiver.receive(timeout=10)
    sender.close()
    receiver.close()
    return answer


def put_token(connection: BlockingConnection, audience: str, token: object, **changed: str) -> tuple[int, str]:
    given = {"operation": "put-token", "type": "servicebus.windows.net:sastoken", "name": audience, **changed}
    answer = request(connection, "$cbs", given, token)
    return answer.properties["status-code"], answer.properties["status-description"]


class TestSharedAccessSignatures:
    def test_a_signature_made_by_hand_from_the_documentation_opens_its_queue(
        self, namespace: NamespaceHandle, queue: str, open_client: Opener
    ) -> None:
        client = open_client(with_token(namespace, own_sas(namespace, queue)))
        send(client, queue)
        assert receive(client, queue) == ["hello"]

    def test_a_signature_for_the_namespace_opens_all_of_it(
        self, namespace: NamespaceHandle, queue: str, open_client: Opener
    ) -> None:
        client = open_client(with_token(namespace, own_sas(namespace, "")))
        send(client, queue)
        assert receive(client, queue) == ["hello"]

    def test_put_token_answers_202(self, namespace: NamespaceHandle, queue: str, raw: BlockingConnection) -> None:
        audience = f"sb://{namespace.endpoint}/{queue}"
        assert put_token(raw, audience, own_sas(namespace, queue)) == (202, "Accepted")
        raw.create_sender(queue).close()

    REFUSED: ClassVar[dict[str, tuple[Callable[[NamespaceHandle, str], str], str]]] = {
        "a wrong key": (
            lambda handle, queue: own_sas(handle, queue, key=base64.b64encode(b"x" * 32).decode()),
            "InvalidSignature: The token has an invalid signature.",
        ),
        "an unknown policy": (
            lambda handle, queue: own_sas(handle, queue, policy="Nobody"),
            "InvalidSignature: The token has an invalid signature.",
        ),
        "an expiry changed after signing": (
            lambda handle, queue: own_sas(handle, queue).replace("&se=", "&se=9"),
            "InvalidSignature: The token has an invalid signature.",
        ),
        "an expiry that has passed": (
            lambda handle, queue: own_sas(handle, queue, expiry="1500000000"),
            "ExpiredToken: The token is expired. Expiration time: '2017-07-14 02:40:00Z'.",
        ),
        "an expiry that is no number": (
            lambda handle, queue: own_sas(handle, queue, expiry="nan"),
            "MalformedToken: the expiry of the token is no number.",
        ),
        "another entity": (
            lambda handle, queue: own_sas(handle, queue + "x"),
            "InvalidAudience: The authorization header contains a token with a wrong audience.",
        ),
        "another namespace": (
            lambda handle, queue: own_sas(handle, queue, uri=f"sb://elsewhere.servicebus.windows.net/{queue}"),
            "InvalidAudience: The authorization header contains a token with a wrong audience.",
        ),
        "another namespace on the same address": (
            lambda handle, queue: own_sas(handle, queue, uri=f"sb://127.0.0.1:1/{queue}"),
            "InvalidAudience: The authorization header contains a token with a wrong audience.",
        ),
        "a resource that is no URI": (
            lambda handle, queue: own_sas(handle, queue, uri=f"sb://[nowhere/{queue}"),
            "MalformedToken: the audience is no URI.",
        ),
        "a field missing": (
            lambda handle, queue: own_sas(handle, queue).partition("&skn=")[0],
            "MalformedToken: a shared access signature has the fields sr, sig, se and skn.",
        ),
        "no signature at all": (
            lambda handle, queue: "SharedAccessSignature ",
            "MalformedToken: a shared access signature has the fields sr, sig, se and skn.",
        ),
        "a word": (
            lambda handle, queue: "sesame",
            "InvalidSignature: The token is not known to this namespace.",
        ),
    }

    @pytest.mark.parametrize("what", REFUSED)
    def test_put_token_answers_401_to_a_token_with(
        self, what: str, namespace: NamespaceHandle, queue: str, raw: BlockingConnection
    ) -> None:
        make, text = self.REFUSED[what]
        token = make(namespace, queue)
        status, description = put_token(raw, f"sb://{namespace.endpoint}/{queue}", token)
        assert (status, description) == (401, text)
        with pytest.raises(LinkDetached, match="amqp:unauthorized-access"):
            raw.create_sender(queue)

    @pytest.mark.parametrize(
        "what", ["a wrong key", "an expiry that has passed", "another entity", "another namespace"]
    )
    def test_the_sdk_reports_an_authentication_error_and_no_secret_for_a_token_with(
        self, what: str, namespace: NamespaceHandle, queue: str, open_client: Opener
    ) -> None:
        make, text = self.REFUSED[what]
        token = make(namespace, queue)
        client = open_client(with_token(namespace, token))
        for attempt in (send, receive):
            with pytest.raises(ServiceBusAuthenticationError) as caught:
                attempt(client, queue)
            seen = texts(caught.value)
            assert text.partition(":")[0] in seen
            assert field(namespace.connection_string, "SharedAccessKey") not in seen
            assert "sig=" not in seen
            assert token.partition("sig=")[2].partition("&")[0] not in seen
        assert namespace.counts(queue)["active"] == 0

    def test_a_wrong_key_in_a_connection_string_is_refused(
        self, namespace: NamespaceHandle, queue: str, open_client: Opener
    ) -> None:
        key = field(namespace.connection_string, "SharedAccessKey")
        wrong = base64.b64encode(b"y" * 32).decode()
        with pytest.raises(ServiceBusAuthenticationError) as caught:
            send(open_client(namespace.connection_string.replace(key, wrong)), queue)
        assert "InvalidSignature" in texts(caught.value)
        assert wrong not in texts(caught.value)

    def test_the_key_of_another_namespace_is_refused(
        self, broker: BrokerProcess, namespace: NamespaceHandle, queue: str, open_client: Opener
    ) -> None:
        mixed = broker["secondary"].connection_string.replace(broker["secondary"].endpoint, namespace.endpoint)
        with unauthenticated("InvalidSignature"):
            send(open_client(mixed), queue)

    def test_a_refused_token_ends_what_an_earlier_one_allowed(
        self, namespace: NamespaceHandle, queue: str, raw: BlockingConnection
    ) -> None:
        audience = f"sb://{namespace.endpoint}/{queue}"
        assert put_token(raw, audience, own_sas(namespace, queue))[0] == 202
        assert put_token(raw, audience, own_sas(namespace, queue, expiry="1"))[0] == 401
        with pytest.raises(LinkDetached, match="amqp:unauthorized-access"):
            raw.create_sender(queue)

    @pytest.mark.parametrize(
        ("token", "changed", "text"),
        [
            (None, {}, "The token is missing."),
            (["a", "list"], {}, "The token is missing."),
            ("sesame", {"operation": "delete-token"}, "The only operation of $cbs is put-token."),
        ],
    )
    def test_put_token_answers_400_to_a_request_that_is_none(
        self, token: object, changed: dict[str, str], text: str, namespace: NamespaceHandle, raw: BlockingConnection
    ) -> None:
        assert put_token(raw, f"sb://{namespace.endpoint}/x", token, **changed) == (400, text)

    def test_put_token_answers_401_to_an_audience_that_is_no_uri(
        self, namespace: NamespaceHandle, queue: str, raw: BlockingConnection
    ) -> None:
        status, text = put_token(raw, "sb://[nowhere", own_sas(namespace, queue))
        assert (status, text) == (401, "MalformedToken: the audience is no URI.")


class TestNoToken:
    @pytest.mark.parametrize(
        "address", ["{queue}", "{queue}/$management", "amqps://host:5671/{queue}", "no-such-queue"]
    )
    def test_a_sender_is_refused_whether_or_not_the_entity_is_there(
        self, address: str, queue: str, raw: BlockingConnection
    ) -> None:
        with pytest.raises(LinkDetached) as caught:
            raw.create_sender(address.format(queue=queue))
        assert caught.value.condition == "amqp:unauthorized-access"
        assert "'Send' claim(s) are required to perform this operation" in str(caught.value)

    @pytest.mark.parametrize("address", ["{queue}", "{queue}/$deadletterqueue", "no-such-queue"])
    def test_a_receiver_is_refused(self, address: str, queue: str, raw: BlockingConnection) -> None:
        with pytest.raises(LinkDetached) as caught:
            raw.create_receiver(address.format(queue=queue))
        assert caught.value.condition == "amqp:unauthorized-access"
        assert "'Listen' claim(s) are required to perform this operation" in str(caught.value)

    def test_an_address_that_is_no_uri_is_refused(self, raw: BlockingConnection) -> None:
        with pytest.raises(LinkDetached, match="amqp:invalid-field"):
            raw.create_sender("amqps://[nowhere/queue")


class TestClaims:
    def test_a_send_policy_sends_and_does_not_receive(
        self, namespace: NamespaceHandle, name: str, queue: str, open_client: Opener
    ) -> None:
        client = open_client(namespace.add_policy(f"send-{name}", ["Send"]))
        send(client, queue)
        with pytest.raises(ServiceBusAuthorizationError) as caught:
            receive(client, queue)
        expected = (
            "Unauthorized access. 'Listen' claim(s) are required to perform this operation. "
            f"Resource: 'sb://primary/{queue}'."
        )
        assert expected in str(caught.value)

    def test_a_listen_policy_receives_and_does_not_send(
        self, namespace: NamespaceHandle, name: str, queue: str, open_client: Opener
    ) -> None:
        send(open_client(namespace.connection_string), queue)
        client = open_client(namespace.add_policy(f"listen-{name}", ["Listen"]))
        assert receive(client, queue) == ["hello"]
        with pytest.raises(ServiceBusAuthorizationError) as caught:
            send(client, queue)
        expected = (
            "Unauthorized access. 'Send' claim(s) are required to perform this operation. "
            f"Resource: 'sb://primary/{queue}'."
        )
        assert expected in str(caught.value)

    def test_a_manage_policy_does_both(
        self, namespace: NamespaceHandle, name: str, queue: str, open_client: Opener
    ) -> None:
        client = open_client(namespace.add_policy(f"manage-{name}", ["Manage"]))
        send(client, queue)
        assert receive(client, queue) == ["hello"]

    def test_requests_ask_for_their_claim_too(
        self, namespace: NamespaceHandle, name: str, queue: str, raw: BlockingConnection
    ) -> None:
        key = field(namespace.add_policy(f"send-{name}", ["Send"]), "SharedAccessKey")
        token = own_sas(namespace, queue, policy=f"send-{name}", key=key)
        assert put_token(raw, f"sb://{namespace.endpoint}/{queue}", token)[0] == 202
        peek = {"from-sequence-number": 0, "message-count": 1}
        answer = request(raw, f"{queue}/$management", {"operation": "com.microsoft:peek-message"}, peek)
        assert answer.properties["statusCode"] == 401
        assert answer.properties["errorCondition"] == "amqp:unauthorized-access"
        assert "'Listen' claim(s) are required" in answer.properties["statusDescription"]

    def test_a_policy_of_one_queue_opens_no_other(
        self, namespace: NamespaceHandle, name: str, queue: str, open_client: Opener
    ) -> None:
        namespace.create_queue(f"{queue}-other")
        text = namespace.add_policy(f"own-{name}", ["Send", "Listen"], entity=queue)
        client = open_client(text)
        send(client, queue)
        assert receive(client, queue) == ["hello"]
        for attempt in (send, receive):
            with unauthenticated("InvalidAudience") as caught:
                attempt(client, f"{queue}-other")
            assert field(text, "SharedAccessKey") not in texts(caught.value)

    def test_a_policy_of_a_topic_opens_its_subscriptions(
        self, namespace: NamespaceHandle, name: str, open_client: Opener
    ) -> None:
        namespace.create_topic(name)
        namespace.create_subscription(name, "all")
        client = open_client(namespace.add_policy(f"topic-{name}", ["Send", "Listen"], entity=name))
        with client.get_topic_sender(name) as sender:
            sender.send_messages(ServiceBusMessage("hello"))
        with client.get_subscription_receiver(name, "all") as receiver:
            assert [str(message) for message in receiver.receive_messages(max_wait_time=5)] == ["hello"]

    def test_a_missing_entity_is_not_found_for_who_may_use_it(
        self, namespace: NamespaceHandle, name: str, open_client: Opener
    ) -> None:
        client = open_client(namespace.connection_string)
        for attempt in (send, receive):
            with pytest.raises(MessagingEntityNotFoundError):
                attempt(client, name)


def time_from_now(seconds: float) -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)


class TestExpiry:
    """A token that runs out while a link is open: the service detaches the link, and so does the broker."""

    @pytest.fixture
    def moved(self) -> Iterator[NamespaceHandle]:
        """A namespace of its own, since its clock is moved."""
        with BrokerProcess("moved") as broker:
            broker["moved"].create_queue("orders")
            yield broker["moved"]
            assert "Traceback" not in broker.errors()

    @pytest.mark.parametrize("kind", ["sync", "aio"])
    def test_ends_open_links_and_lets_new_tokens_in(self, kind: str, moved: NamespaceHandle) -> None:
        with ExitStack() as stack:
            client = opener(kind, stack)(moved.connection_string)
            with client.get_queue_sender("orders") as sender, client.get_queue_receiver("orders") as receiver:
                sender.send_messages(ServiceBusMessage("before"))
                (message,) = receiver.receive_messages(max_wait_time=5)
                receiver.complete_message(message)
                moved.advance_clock(3 * 3600)
                for attempt in (
                    lambda: sender.send_messages(ServiceBusMessage("after")),
                    lambda: receiver.receive_messages(max_wait_time=5),
                ):
                    with pytest.raises(ServiceBusConnectionError):
                        attempt()
                assert moved.counts("orders")["active"] == 0
                sender.send_messages(ServiceBusMessage("again"))
                assert [str(message) for message in receiver.receive_messages(max_wait_time=5)] == ["again"]

    def test_does_not_touch_a_link_whose_token_was_renewed(self, moved: NamespaceHandle) -> None:
        audience = f"sb://{moved.endpoint}/orders"
        connection = BlockingConnection(f"amqp://{moved.endpoint}", timeout=10, allowed_mechs="ANONYMOUS")
        assert put_token(connection, audience, own_sas(moved, "orders"))[0] == 202
        sender = connection.create_sender("orders")
        for _ in range(3):
            moved.advance_clock(400)
            assert put_token(connection, audience, own_sas(moved, "orders"))[0] == 202
            sender.send(Message(b"hello"))
        moved.advance_clock(700)
        with pytest.raises(LinkDetached, match="amqp:link:detach-forced") as caught:
            sender.send(Message(b"too late"))
        assert "is force detached. Code: RenewToken. Details: Unauthorized access. 'Send' claim" in str(caught.value)
        connection.close()
        assert moved.counts("orders")["active"] == 3


class Static:
    """A token credential that always has the same token, as a managed identity has for an hour."""

    def __init__(self, token: str, expires_at: float) -> None:
        self._token = AccessToken(token, int(expires_at))

    def get_token(self, *scopes: str, **more: Any) -> AccessToken:
        assert scopes == ("https://servicebus.azure.net//.default",)
        return self._token

    def close(self) -> None: ...


class AioStatic:
    def __init__(self, token: str, expires_at: float) -> None:
        self._inner = Static(token, expires_at)

    async def get_token(self, *scopes: str, **more: Any) -> AccessToken:
        return self._inner.get_token(*scopes, **more)

    async def close(self) -> None: ...

    async def __aenter__(self) -> "AioStatic":
        return self

    async def __aexit__(self, *error: object) -> None: ...


@pytest.fixture(scope="module")
def secure() -> Iterator[BrokerProcess]:
    with BrokerProcess("one", "two", tls=True) as broker:
        for name in ("one", "two"):
            broker[name].create_queue("orders")
        yield broker
        assert "Traceback" not in broker.errors(), broker.errors()


class TestTls:
    @pytest.fixture(params=["sync", "aio"])
    def open_bearer(self, request: pytest.FixtureRequest) -> Iterator[Opener]:
        """A client with a token credential, by namespace and token."""
        with ExitStack() as stack:

            def open_sync(handle: NamespaceHandle, token: str, expires_at: float, **more: Any) -> Any:
                options = {"connection_verify": handle.ca_file, **QUICK, **more}
                return stack.enter_context(ServiceBusClient(handle.endpoint, Static(token, expires_at), **options))

            def open_aio(handle: NamespaceHandle, token: str, expires_at: float, **more: Any) -> Any:
                options = {"connection_verify": handle.ca_file, **QUICK, **more}
                client = AioClient(handle.endpoint, AioStatic(token, expires_at), **options)
                return stack.enter_context(Blocking(client, loop))

            if request.param == "sync":
                yield open_sync
            else:
                loop = asyncio.new_event_loop()
                stack.callback(loop.close)
                yield open_aio

    def test_gives_each_namespace_an_address_of_its_own_at_port_5671(self, secure: BrokerProcess) -> None:
        endpoints = [handle.endpoint for handle in secure.namespaces.values()]
        assert len(set(endpoints)) == 2
        assert all(endpoint.startswith("127.0.0.") and endpoint.endswith(":5671") for endpoint in endpoints)
        assert not any("UseDevelopmentEmulator" in handle.connection_string for handle in secure.namespaces.values())

    def test_a_bearer_token_sends_and_receives_in_two_namespaces_side_by_side(
        self, secure: BrokerProcess, open_bearer: Opener
    ) -> None:
        clients = {
            name: open_bearer(secure[name], *secure[name].add_bearer(["Send", "Listen"])) for name in ("one", "two")
        }
        for name, client in clients.items():
            send(client, "orders", f"for {name}")
        for name, client in clients.items():
            assert receive(client, "orders") == [f"for {name}"]

    def test_a_connection_string_sends_and_receives_over_tls(self, secure: BrokerProcess, open_client: Opener) -> None:
        for name in ("one", "two"):
            client = open_client(secure[name].connection_string, connection_verify=secure[name].ca_file)
            send(client, "orders")
            assert receive(client, "orders") == ["hello"]

    def test_an_unknown_bearer_token_is_refused(self, secure: BrokerProcess, open_bearer: Opener) -> None:
        with unauthenticated("InvalidSignature") as caught:
            send(open_bearer(secure["one"], "not-a-token-of-ours", time.time() + 600), "orders")
        assert "not-a-token-of-ours" not in texts(caught.value)

    def test_a_bearer_token_of_the_other_namespace_is_refused(self, secure: BrokerProcess, open_bearer: Opener) -> None:
        token, expires_at = secure["two"].add_bearer(["Send"])
        with unauthenticated("InvalidSignature") as caught:
            send(open_bearer(secure["one"], token, expires_at), "orders")
        assert token not in texts(caught.value)

    def test_an_expired_bearer_token_is_refused(self, secure: BrokerProcess, open_bearer: Opener) -> None:
        token, _ = secure["one"].add_bearer(["Send"], lifetime=-1)
        # The client believes it good: so it is the broker that refuses it.
        with unauthenticated("ExpiredToken") as caught:
            send(open_bearer(secure["one"], token, time.time() + 600), "orders")
        assert token not in texts(caught.value)

    def test_a_bearer_token_without_the_claim_is_refused(self, secure: BrokerProcess, open_bearer: Opener) -> None:
        token, expires_at = secure["one"].add_bearer(["Listen"])
        with pytest.raises(ServiceBusAuthorizationError, match="'Send' claim") as caught:
            send(open_bearer(secure["one"], token, expires_at), "orders")
        assert token not in texts(caught.value)

    def test_a_client_that_does_not_trust_the_authority_fails(self, secure: BrokerProcess, open_client: Opener) -> None:
        with pytest.raises(ServiceBusError, match=r"(?i)certificate"):
            send(open_client(secure["one"].connection_string), "orders")

    def test_a_signature_for_the_other_namespace_is_refused(self, secure: BrokerProcess, open_client: Opener) -> None:
        token = own_sas(secure["one"], "orders", uri=f"sb://{secure['two'].endpoint}/orders")
        text = f"Endpoint=sb://{secure['one'].endpoint}/;SharedAccessSignature={token}"
        with unauthenticated("InvalidAudience"):
            send(open_client(text, connection_verify=secure["one"].ca_file), "orders")


class TestPoliciesAndBearers:
    @pytest.mark.parametrize("claims", [[], ["Read"], ["Send", "Fly"]])
    def test_take_known_claims_only(self, namespace: NamespaceHandle, name: str, claims: list[str]) -> None:
        for attempt in (lambda: namespace.add_policy(name, claims), lambda: namespace.add_bearer(claims)):
            with pytest.raises(ControlError, match="it takes one or more of Listen, Manage, Send"):
                attempt()

    def test_do_not_show_their_secrets_when_printed(self, namespace: NamespaceHandle) -> None:
        assert field(namespace.connection_string, "SharedAccessKey") not in repr(namespace)
