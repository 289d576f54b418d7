"""Each option at the edges of its limits, each sentence about a wrong one, each way to load; and no secret shown."""

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr, ValidationError

from spark_sb_sink.errors import OptionError
from spark_sb_sink.failover import FailoverSettings
from spark_sb_sink.namespaces import Identity, NamespaceOptions
from spark_sb_sink.option_texts import option_docs
from spark_sb_sink.options import Ledger, Options, Pairing, Ping, Ttl
from spark_sb_sink.sizes import format_size, parse_size

KEY = "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3I="


def connection_string(name: str, key: str = KEY) -> str:
    return f"Endpoint=sb://{name}.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey={key}"


ALPHA, BETA = connection_string("alpha"), connection_string("beta")
BOTH = {"primary": ALPHA, "secondary": BETA}


def options(**more: Any) -> Options:
    return Options.from_dict(BOTH | more, {})


def problem(data: dict[str, Any], environ: dict[str, str] | None = None) -> str:
    """The one sentence about what is wrong."""
    with pytest.raises(OptionError) as caught:
        Options.from_dict(data, environ or {})
    text = str(caught.value)
    assert len(caught.value.problems) == 1, text
    assert "\n" not in text
    assert text.endswith((".", "?"))
    assert KEY not in text
    assert caught.value.__context__ is None, "an exception that knows the values must not travel along"
    return text


def test_the_defaults_are_those_of_the_design() -> None:
    o = options()
    assert (o.failover_interval, o.ping_interval, o.ping) == (60, 60, Ping.MESSAGE)
    assert (o.backlog_queue_count, o.backlog_cooldown, o.pairing) == (10, 60, Pairing.REQUIRED)
    assert (o.send_timeout, o.max_in_flight) == (10, 32 * 1024 * 1024)
    assert (o.ledger, o.ttl, o.long_poll, o.enable_syphon) == (Ledger.AUTO, Ttl.FULL, 900, False)
    assert (o.primary_name, o.entity, o.partitioned, o.state, o.max_rate) == (None, None, (), None, None)
    assert o.backlog_path == "alpha/x-servicebus-transfer/"
    assert o.failover == FailoverSettings(60, 60, 10)


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        ("failover_interval", ["0s", 0, "60m", "1m", 2], ["60m1s", 3600.1, -1, "soon", "", None, True]),
        ("ping_interval", ["1s", "30m"], ["999ms", "1801s", 0]),
        ("backlog_cooldown", ["1s", "60m"], ["999ms", "61m"]),
        ("send_timeout", ["100ms", "5m"], ["99ms", "301s", 0]),
        ("long_poll", ["1s", "60m"], ["0s", "61m"]),
        ("settle_time", ["0s", "60m"], ["61m"]),
        ("backlog_queue_count", [1, "1", 10_000], [0, -1, 10_001, 1.0, "1.0", True, "ten", None]),
        ("max_links", [2, 5000], [1, 5001]),
        ("syphon_tasks", [1, 10], [0]),
        ("max_in_flight", ["1MiB", 1048576, "4GiB", "32 MiB"], ["1023KiB", 1048575, "5GiB", "much", -1, 1.5, True]),
        ("max_rate", [0.1, 1, "500", None], [0, -1, "inf", "nan", "fast", True, []]),
        ("ping", ["message", "link"], ["Message!", "", None]),
        ("pairing", ["required", "best-effort", "assume"], ["best_effort"]),
        ("ttl", ["full", "deduct"], ["none"]),
        ("ledger", ["auto"], ["always"]),
        ("enable_syphon", [True, False, "true", "false"], ["maybe", 2, None]),
        ("entity", ["orders", "a/b-c_d.e", "x" * 260, None], ["", "/a", "a/", "a//b", "a b", "x" * 261, 5]),
        ("entity", ["x-servicebus-transfer"], ["alpha/x-servicebus-transfer/0"]),
        ("partitioned", [["a", "b"], "a, b", [], ()], [["a", ""], "a,,b", 5, [1]]),
        ("primary_name", ["prod", "p.r-o_d", "9"], ["", "-a", "a/b", "a b", "x" * 300]),
        ("state", ["/mnt/state", "catalog.schema.prefix", None], ["", 5]),
    ],
)
def test_each_option_takes_its_limits_and_refuses_what_is_beyond_them(
    key: str, good: list[Any], bad: list[Any]
) -> None:
    takes = next(doc.takes for doc in option_docs(Options) if doc.key == key)
    for value in good:
        options(**{key: value})
    for value in bad:
        text = problem(BOTH | {key: value})
        assert text.startswith(f"{key} got ")
        assert text.endswith(f", but takes {takes}.")
        assert repr(value)[:60] in text or "not shown" in text


def test_values_are_understood_as_they_are_written() -> None:
    o = options(failover_interval="1.5s", max_in_flight="64MiB", partitioned="a, b ,a", ping="link", max_rate="500")
    assert (o.failover_interval, o.max_in_flight, o.partitioned) == (1.5, 64 * 1024 * 1024, ("a", "b"))
    assert (o.ping, o.max_rate) == (Ping.LINK, 500.0)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("failover_intervall", "failover_interval"),
        ("Failover_Interval", "failover_interval"),
        ("pingInterval", "ping_interval"),
        ("backlog_count", "backlog_queue_count"),
        ("max_inflight", "max_in_flight"),
    ],
)
def test_a_misspelt_key_is_told_with_the_nearest_right_one(written: str, meant: str) -> None:
    assert problem(BOTH | {written: "1m"}) == f"{written} is no option; did you mean {meant}?"


def test_a_misspelt_key_of_a_namespace_is_told_with_the_nearest_right_one() -> None:
    told = problem(BOTH | {"primary": {"conection_string": ALPHA}})
    assert told == "primary.conection_string is no option; did you mean primary.connection_string?"


def test_a_key_near_to_none_is_told_with_all_there_are() -> None:
    told = problem(BOTH | {"xyz": 1})
    assert told.startswith("xyz is no option; the options are primary, secondary, ")
    assert problem(BOTH | {"self": 1}).startswith("self is no option")


@pytest.mark.parametrize("side", ["primary", "secondary"])
def test_a_missing_namespace_is_told(side: str) -> None:
    data = {key: value for key, value in BOTH.items() if key != side}
    assert problem(data) == (
        f"{side} is missing; it takes a connection string, a fully qualified namespace, or a table with one of them "
        "and an identity."
    )


def test_several_wrong_options_get_one_sentence_each() -> None:
    with pytest.raises(OptionError) as caught:
        Options.from_dict(BOTH | {"ping": "x", "ttl": "y"}, {})
    assert caught.value.problems == (
        "ping got 'x', but takes message or link.",
        "ttl got 'y', but takes full or deduct.",
    )


def test_options_made_directly_are_checked_in_the_same_words() -> None:
    with pytest.raises(OptionError, match="ping got 'x', but takes message or link"):
        Options(primary=ALPHA, secondary=BETA, ping="x")
    assert Options(primary=ALPHA, secondary=BETA) == options()


# Combinations


@pytest.mark.parametrize(
    "secondary",
    [
        ALPHA,
        connection_string("ALPHA"),
        "alpha.servicebus.windows.net",
        "sb://Alpha.ServiceBus.Windows.Net/",
        "alpha.servicebus.windows.net.",
        "alpha.servicebus.windows.net:5671",
        "alpha.privatelink.servicebus.windows.net",
        ALPHA.replace("Root", "Other").replace(KEY, "YW5vdGhlcg=="),
    ],
)
def test_the_same_namespace_twice_is_refused_however_it_is_written(secondary: str) -> None:
    assert problem(BOTH | {"secondary": secondary}) == (
        "primary and secondary are the same namespace, alpha.servicebus.windows.net, but take two, best in two regions."
    )


def test_two_ports_of_one_machine_are_two_namespaces() -> None:
    local = "Endpoint=sb://localhost:{};SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true"
    o = Options.from_dict({"primary": local.format(5672), "secondary": local.format(5673)}, {})
    assert (o.primary.host, o.secondary.host) == ("localhost:5672", "localhost:5673")
    assert o.primary.emulator
    assert o.primary.name == "localhost"


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"ledger": "every-batch"}, "ledger got 'every-batch', but takes that only with the option state"),
        ({"syphon_tasks": 11}, "syphon_tasks got 11, but takes at most backlog_queue_count (10)"),
        (
            {"backlog_queue_count": 1, "syphon_tasks": 2},
            "syphon_tasks got 2, but takes at most backlog_queue_count (1)",
        ),
    ],
)
def test_options_that_cannot_work_together_are_refused(more: dict[str, Any], told: str) -> None:
    assert problem(BOTH | more).startswith(told)


def test_the_same_options_work_once_they_fit() -> None:
    options(ledger="every-batch", state="/mnt/state")
    options(backlog_queue_count=11, syphon_tasks=11)


# Namespaces


def namespace(value: Any) -> NamespaceOptions:
    return Options.from_dict({"primary": value, "secondary": BETA}, {}).primary


def test_a_namespace_is_a_connection_string_or_a_name_with_an_identity() -> None:
    by_key = namespace(ALPHA)
    assert (by_key.host, by_key.name, by_key.emulator) == ("alpha.servicebus.windows.net", "alpha", False)
    assert by_key.parsed is not None
    assert (by_key.parsed.key_name, by_key.parsed.key) == ("Root", KEY)
    assert namespace({"connection_string": ALPHA}) == namespace(SecretStr(ALPHA)) == by_key
    by_name = namespace("Contoso.ServiceBus.Windows.Net")
    assert (by_name.host, by_name.name) == ("contoso.servicebus.windows.net", "contoso")
    assert (by_name.credential, by_name.parsed) == (Identity.DEFAULT, None)
    assert str(by_name) == "contoso.servicebus.windows.net"


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"identity": "default", "client_id": "c"},
        {"identity": "managed_identity"},
        {"identity": "managed_identity", "client_id": "c"},
        {"identity": "workload_identity"},
        {"identity": "workload_identity", "client_id": "c", "tenant_id": "t"},
        {"identity": "client_secret", "client_id": "c", "tenant_id": "t", "client_secret": "s"},
        {"ca_file": "ca.pem"},
    ],
)
def test_each_identity_is_told_what_it_needs(more: dict[str, str]) -> None:
    assert namespace({"namespace": "a.example.net"} | more).credential.value == more.get("identity", "default")


HOST = {"namespace": "a.example.net"}


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({}, "primary takes a connection_string or a namespace, and got neither."),
        (HOST | {"connection_string": ALPHA}, "primary takes either a connection_string or a namespace, and got both."),
        (
            {"connection_string": ALPHA, "identity": "default"},
            "primary takes identity only with a namespace, and got it with a connection_string.",
        ),
        (
            {"connection_string": ALPHA, "client_secret": KEY},
            "primary takes client_secret only with a namespace, and got it with a connection_string.",
        ),
        (
            HOST | {"identity": "managed_identity", "tenant_id": "t"},
            "primary takes tenant_id not with the identity managed_identity.",
        ),
        (HOST | {"client_secret": KEY}, "primary takes client_secret not with the identity default."),
        (
            HOST | {"identity": "client_secret", "client_id": "c", "tenant_id": "t"},
            "primary takes client_secret with the identity client_secret, and got none, neither as an option nor as "
            "AZURE_CLIENT_SECRET from the environment.",
        ),
        (
            HOST | {"identity": "password"},
            "primary.identity got 'password', but takes one of default, managed_identity, workload_identity, "
            "client_secret.",
        ),
        (
            "contoso",
            "primary.namespace got 'contoso', but takes a fully qualified namespace such as "
            "contoso.servicebus.windows.net.",
        ),
        (
            {"namespace": KEY},
            "primary.namespace got a text that is not shown, as it may be a secret, but takes a fully qualified "
            "namespace such as contoso.servicebus.windows.net.",
        ),
        (
            HOST | {"identity": KEY},
            "primary.identity got a text that is not shown, as it may be a secret, but takes one of default, "
            "managed_identity, workload_identity, client_secret.",
        ),
        (5, "primary got a int, but takes a connection string, a fully qualified namespace, or a table."),
        (
            {"connection_string": 5},
            "primary.connection_string got a int that is not shown, but takes a connection string of the whole "
            "namespace, best as ${NAME} from the environment.",
        ),
        (
            HOST | {"identity": "client_secret", "client_id": "c", "tenant_id": "t", "client_secret": ""},
            "primary.client_secret got a str that is not shown, but takes a client secret, as ${NAME} from the "
            "environment.",
        ),
        (
            ALPHA + ";EntityPath=orders",
            "primary.connection_string is that of one entity (it has an EntityPath), but takes that of the whole "
            "namespace, as messages go to many entities; take it from the namespace's shared access policies.",
        ),
    ],
)
def test_a_namespace_that_cannot_be_reached_so_is_refused_in_one_sentence(value: Any, told: str) -> None:
    assert problem({"primary": value, "secondary": BETA}) == told


# Ways to load


def test_options_are_read_from_a_toml_file(tmp_path: Path) -> None:
    file = tmp_path / "options.toml"
    file.write_text(
        """
        failover_interval = "0s"
        max_rate = 250
        partitioned = ["orders"]
        enable_syphon = true

        [primary]
        namespace = "contoso.servicebus.windows.net"
        identity = "managed_identity"

        [secondary]
        connection_string = "${SECONDARY}"
        """
    )
    o = Options.from_toml(file, {"SECONDARY": BETA})
    assert (o.failover_interval, o.max_rate, o.partitioned, o.enable_syphon) == (0, 250, ("orders",), True)
    assert (o.primary.credential, o.secondary.host) == (Identity.MANAGED, "beta.servicebus.windows.net")


def test_a_file_that_is_missing_or_no_toml_is_told_without_its_text(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"none\.toml could not be read: No such file or directory\."):
        Options.from_toml(tmp_path / "none.toml")
    file = tmp_path / "bad.toml"
    file.write_text(f'primary = "{ALPHA}\n')
    with pytest.raises(OptionError, match=r"bad\.toml is no TOML: .*line 1") as caught:
        Options.from_toml(file)
    assert KEY not in str(caught.value)
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(OptionError, match="it is not UTF-8 text"):
        Options.from_toml(file)


def test_options_are_read_from_sparks_flat_map_whatever_the_case_of_its_keys() -> None:
    flat = {
        "PRIMARY.namespace": "contoso.servicebus.windows.net",
        "primary.Identity": "workload_identity",
        "Secondary": "${SECONDARY}",
        "Failover_Interval": "5s",
        "backlog_queue_count": "3",
        "enable_syphon": "true",
        "partitioned": "a,b",
        "checkpointLocation": "/tmp/x",
        "path": "/x",
    }
    o = Options.from_spark(flat, {"SECONDARY": BETA})
    assert (o.primary.credential, o.secondary.name, o.failover_interval) == (Identity.WORKLOAD, "beta", 5)
    assert (o.backlog_queue_count, o.enable_syphon, o.partitioned) == (3, True, ("a", "b"))


@pytest.mark.parametrize(
    ("key", "value", "reference"),
    [
        ("primary", ALPHA, "${PRIMARY}"),
        ("secondary.connection_string", BETA, "${SECONDARY_CONNECTION_STRING}"),
        ("Primary.Client_Secret", KEY, "${PRIMARY_CLIENT_SECRET}"),
    ],
)
def test_spark_is_given_no_secret_in_plain_text_as_it_writes_options_down(key: str, value: str, reference: str) -> None:
    with pytest.raises(OptionError) as caught:
        Options.from_spark({key: value}, {})
    assert str(caught.value) == (
        f"{key.lower()} got a secret in plain text, which Spark writes into its plans and event logs, but takes a "
        f"reference to the environment, such as {reference}."
    )


def test_the_emulators_key_is_no_secret() -> None:
    local = "Endpoint=sb://localhost:{};SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true"
    o = Options.from_spark({"primary": local.format(1), "secondary": local.format(2)}, {})
    assert o.primary.emulator


@pytest.mark.parametrize("flip", [False, True])
def test_a_namespace_given_both_flat_and_as_a_table_is_refused(flip: bool) -> None:
    pairs = [("primary", "a.b"), ("primary.namespace", "a.b")]
    with pytest.raises(OptionError, match="primary got a value of its own and options below it"):
        Options.from_spark(dict(reversed(pairs) if flip else pairs), {})


def test_a_value_is_taken_from_the_environment_whole_or_in_part() -> None:
    environ = {"KEY": KEY, "NAME": "alpha", "WAIT": "5s"}
    o = Options.from_dict(
        BOTH | {"primary": connection_string("${NAME}", "${KEY}"), "failover_interval": "${WAIT}"}, environ
    )
    assert o.primary == options().primary
    assert o.failover_interval == 5


def test_the_environment_of_the_process_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_SB_SINK_TEST", ALPHA)
    assert Options.from_dict(BOTH | {"primary": "${SPARK_SB_SINK_TEST}"}) == options()


def test_a_client_secret_comes_from_the_variables_that_azure_names() -> None:
    environ = {"AZURE_CLIENT_ID": "c", "AZURE_TENANT_ID": "t", "AZURE_CLIENT_SECRET": KEY}
    o = Options.from_dict(BOTH | {"primary": HOST | {"identity": "client_secret", "client_id": "mine"}}, environ)
    assert (o.primary.client_id, o.primary.tenant_id) == ("mine", "t")
    assert o.primary.client_secret is not None
    assert o.primary.client_secret.get_secret_value() == KEY


def test_a_variable_that_is_not_set_is_named() -> None:
    told = problem(BOTH | {"primary": {"connection_string": "${PRIMARY}"}}, {"KEY": KEY})
    assert told == "primary.connection_string takes its value from the environment variable PRIMARY, which is not set."


@pytest.mark.parametrize("written", ["${", "${}", "${a b}", "x${1}"])
def test_a_reference_that_names_no_variable_is_refused(written: str) -> None:
    assert problem(BOTH | {"state": written}) == (
        "state got a ${ that names no environment variable, but takes ${NAME}, or $${ for a plain ${."
    )


def test_two_dollars_stand_for_one() -> None:
    assert options(state="/a/$${b}").state == "/a/${b}"


def test_a_wrong_value_from_the_environment_is_told_by_the_name_of_its_variable() -> None:
    told = problem(BOTH | {"ping": "${WRONG}"}, {"WRONG": "hunter2"})
    assert told == "ping got the value of ${WRONG}, but takes message or link."


@given(st.dictionaries(st.text(min_size=1), st.text() | st.integers() | st.none() | st.lists(st.text()), max_size=4))
def test_whatever_is_given_is_either_right_or_told_in_our_words(data: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        Options.from_dict(data, {})


# Secrets


def holder() -> Options:
    secret = {"identity": "client_secret", "client_id": "c", "tenant_id": "t", "client_secret": KEY}
    return Options.from_dict({"primary": ALPHA, "secondary": HOST | secret}, {})


def test_no_way_to_print_options_shows_a_secret() -> None:
    o = holder()
    for text in (
        repr(o),
        str(o),
        f"{o}",
        repr(o.model_dump()),
        repr(o.model_dump(mode="json")),
        o.model_dump_json(),
        repr(dict(o)),
        repr(vars(o)),
        repr(o.primary),
        repr(o.primary.parsed),
        str(o.secondary),
        o.digest(),
        repr(o.failover),
    ):
        assert KEY not in text
        assert KEY[:12] not in text


def test_options_come_through_a_pickle_as_they_were_and_still_hide_what_they_hold() -> None:
    again = pickle.loads(pickle.dumps(holder()))
    assert again == holder()
    assert hash(again) == hash(holder())
    assert again.digest() == holder().digest()
    assert KEY not in repr(again)
    assert again.primary.connection_string.get_secret_value() == ALPHA


def test_options_cannot_be_altered() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        options().ping = Ping.LINK  # type: ignore[misc]


@pytest.mark.parametrize(
    "change", [{"ping": "link"}, {"primary": ALPHA.replace(KEY, "YW5vdGhlcg==")}, {"failover_interval": 61}]
)
def test_the_digest_differs_where_any_option_differs_also_a_secret(change: dict[str, Any]) -> None:
    assert options(**change).digest() != options().digest()


def test_the_digest_is_the_same_in_every_process() -> None:
    program = (
        "import pickle, sys; from spark_sb_sink.options import Options; "
        "o = pickle.loads(sys.stdin.buffer.read()); print(o.digest())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], input=pickle.dumps(holder()), capture_output=True, timeout=60, check=True
    )
    assert done.stdout.decode().strip() == holder().digest()


# Documentation from code


def test_every_option_says_what_it_is_for_and_what_it_takes() -> None:
    docs = {doc.key: doc for doc in option_docs(Options)}
    assert all(doc.about.endswith(".") and doc.takes for doc in docs.values())
    assert docs["failover_interval"].default == "1m"
    assert docs["max_in_flight"].default == "32MiB"
    assert docs["pairing"].default == "required"
    assert docs["enable_syphon"].default == "false"
    assert docs["backlog_queue_count"].default == "10"
    assert docs["primary"].default == ""
    assert "secondary.client_id" in docs


# Sizes


@pytest.mark.parametrize(
    ("written", "size"),
    [("0", 0), ("1KiB", 1024), ("1kb", 1000), ("1.5 MiB", 1572864), ("2GB", 2 * 10**9), ("7B", 7), (5, 5), ("5", 5)],
)
def test_a_size_is_read_as_bytes(written: object, size: int) -> None:
    assert parse_size(written) == size


@pytest.mark.parametrize("written", ["", "MiB", "1.0001B", "-1", "1TiB", "1 2", -1, 1.0, True, None])
def test_what_is_no_size_is_refused(written: object) -> None:
    with pytest.raises(OptionError, match="is no size; it takes a size such as"):
        parse_size(written)


@given(st.integers(0, 10**15))
def test_a_size_that_is_written_is_read_back_the_same(size: int) -> None:
    assert parse_size(format_size(size)) == size
