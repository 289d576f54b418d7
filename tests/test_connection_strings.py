"""Connection strings are taken apart as the SDK does, and refused where it would only fail later."""

import string

import pytest
from azure.servicebus._base_handler import _parse_conn_str
from hypothesis import given
from hypothesis import strategies as st

from spark_sb_sink.connection_strings import (
    ConnectionString,
    first_label,
    parse_connection_string,
    parse_namespace,
    same_namespace,
)
from spark_sb_sink.errors import OptionError

ENDPOINT = "Endpoint=sb://alpha.servicebus.windows.net/"
KEYS = "SharedAccessKeyName=Root;SharedAccessKey=c2VjcmV0c2VjcmV0="
SIGNATURE = "SharedAccessSignature=SharedAccessSignature sr=a&sig=c2VjcmV0&se=1&skn=Root"


def test_a_connection_string_is_taken_apart() -> None:
    assert parse_connection_string(f"{ENDPOINT};{KEYS};") == ConnectionString(
        "alpha.servicebus.windows.net", "Root", "c2VjcmV0c2VjcmV0="
    )
    signed = parse_connection_string(f"{ENDPOINT};{SIGNATURE}")
    assert signed.signature == "SharedAccessSignature sr=a&sig=c2VjcmV0&se=1&skn=Root"
    local = parse_connection_string(f"Endpoint=sb://localhost:5672;{KEYS};UseDevelopmentEmulator=true")
    assert (local.host, local.emulator) == ("localhost:5672", True)


def test_neither_key_nor_signature_is_shown() -> None:
    for text in (f"{ENDPOINT};{KEYS}", f"{ENDPOINT};{SIGNATURE}"):
        assert "c2VjcmV0" not in repr(parse_connection_string(text))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is not made of name=value pairs"),
        ("hello", "is not made of name=value pairs"),
        (f"{ENDPOINT};;{KEYS}", "is not made of name=value pairs"),
        (KEYS, "has no Endpoint"),
        (f"Endpoint=alpha.servicebus.windows.net;{KEYS}", "has no Endpoint=sb://<host>/"),
        (f"Endpoint=sb://alpha:port/;{KEYS}", "has no Endpoint"),
        (f"Endpoint=sb://alpha bravo/;{KEYS}", "has no Endpoint"),
        (f"Endpoint=sb://[::1/;{KEYS}", "has no Endpoint"),
        (f"{ENDPOINT};SharedAccessKeyName=Root", "has no SharedAccessKey;"),
        (f"{ENDPOINT};SharedAccessKey=c2VjcmV0", "has no SharedAccessKeyName;"),
        (ENDPOINT, "has no SharedAccessKeyName and SharedAccessKey;"),
        (f"{ENDPOINT};{KEYS};{SIGNATURE}", "has both a SharedAccessSignature and a SharedAccessKey"),
        (f"{ENDPOINT};{KEYS};SharedAccessKey=c2VjcmV0", "has a part twice"),
        (f"{ENDPOINT};{KEYS};EntityPath=orders", "is that of one entity"),
        (f"{ENDPOINT};{KEYS};UseDevelopmentEmulator=True", "neither true nor false"),
    ],
)
def test_a_connection_string_that_cannot_work_is_refused_with_nothing_of_it_told(text: str, told: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_connection_string(text)
    assert str(caught.value).startswith("The connection string ")
    assert told in str(caught.value)
    assert "c2VjcmV0" not in str(caught.value)
    assert str(caught.value).endswith(".")


labels = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)
hosts = st.lists(labels, min_size=2, max_size=4).map(".".join)
names = st.text(string.ascii_letters + string.digits, min_size=1, max_size=20)
keys = st.text(string.ascii_letters + string.digits + "+/", min_size=1, max_size=44).map(lambda key: key + "=")


@given(host=hosts, name=names, key=keys, port=st.none() | st.integers(1, 65535), slash=st.sampled_from(["", "/"]))
def test_we_and_the_sdk_read_the_same(host: str, name: str, key: str, port: int | None, slash: str) -> None:
    host = host if port is None else f"{host}:{port}"
    text = f"Endpoint=sb://{host}{slash};SharedAccessKeyName={name};SharedAccessKey={key}"
    ours = parse_connection_string(text)
    theirs = _parse_conn_str(text)
    assert (ours.host, ours.key_name, ours.key) == (theirs[0], theirs[1], theirs[2])


@given(st.text() | st.lists(st.sampled_from([ENDPOINT, KEYS, SIGNATURE, "x", "=", ";"])).map(";".join))
def test_any_text_is_either_read_or_refused_and_what_we_read_the_sdk_reads_too(text: str) -> None:
    try:
        parsed = parse_connection_string(text)
    except OptionError:
        return
    assert _parse_conn_str(text)[0].lower().rstrip(".") == parsed.host


@given(hosts)
def test_a_namespace_is_the_same_however_it_is_written(host: str) -> None:
    assert parse_namespace(f"SB://{host.upper()}/") == host
    for written in (host.upper(), f"{host}.", f"{host}:5671", f"{host}:443", f"{host}/"):
        assert same_namespace(host, written)
    assert not same_namespace(host, f"x{host}")
    assert not same_namespace(host, f"{host}:5672")
    assert first_label(f"{host}:5672") == host.split(".")[0]


@pytest.mark.parametrize("text", ["", "contoso", "a b.c", "a..b", "-a.b", "a.b/c", "a.b:port"])
def test_what_is_no_fully_qualified_namespace_is_none(text: str) -> None:
    assert parse_namespace(text) is None
