"""The command `spark-sb-sink`, as a program: what it prints, where it listens, how it ends."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import MessagingEntityNotFoundError

from spark_sb_sink import __version__
from spark_sb_sink.broker import BrokerProcess, ControlError
from tests.commands.support import run as in_process
from tests.commands.support import sentence, toml
from tests.conftest import await_that

PROGRAM = [sys.executable, "-m", "spark_sb_sink.cli"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, *arguments], capture_output=True, text=True, timeout=60)


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*PROGRAM, "broker", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    watchdog = threading.Timer(60, process.kill)
    watchdog.start()
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
        watchdog.cancel()


def ready(process: subprocess.Popen[str]) -> dict[str, dict[str, str]]:
    assert process.stdout is not None
    return dict(json.loads(process.stdout.readline()))


def listens_on(pid: int) -> set[str]:
    """The IPv4 addresses, with ports, that a process listens on, as the kernel tells."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        match = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(entry))
        if match:
            inodes.add(match[1])
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                address, port = fields[1].split(":")
                host = socket.inet_ntoa(bytes.fromhex(address)[::-1]) if table == "tcp" else address
                found.add(f"{host}:{int(port, 16)}")
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class TestReadyJson:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_prints_one_line_serves_until_the_signal_and_exits_with_0(self, number: signal.Signals) -> None:
        port = free_port()
        with running("--namespace", f"primary={port}", "--namespace", "secondary", "--ready-json") as process:
            told = ready(process)
            assert list(told) == ["primary", "secondary"]
            for name, data in told.items():
                assert sorted(data) == ["ca_file", "connection_string", "control_url"]
                assert re.fullmatch(
                    r"Endpoint=sb://127\.0\.0\.1:\d+/;SharedAccessKeyName=RootManageSharedAccessKey;"
                    r"SharedAccessKey=[A-Za-z0-9+/]{43}=;UseDevelopmentEmulator=true",
                    data["connection_string"],
                )
                assert Path(data["ca_file"]).read_text().startswith("-----BEGIN CERTIFICATE-----")
                assert re.fullmatch(rf"http://127\.0\.0\.1:\d+/{name}", data["control_url"])
            assert f"127.0.0.1:{port}/" in told["primary"]["connection_string"]
            with socket.create_connection(("127.0.0.1", port), 5):
                pass
            process.send_signal(number)
            rest, errors = process.communicate(timeout=20)
            assert (process.returncode, rest, errors) == (0, "", "")
            assert not Path(told["primary"]["ca_file"]).exists()

    def test_ends_at_once_though_a_client_is_connected(self) -> None:
        with running("--namespace", "primary", "--ready-json") as process:
            text = ready(process)["primary"]["connection_string"]
            endpoint = text.split("//")[1].split("/")[0].split(":")
            with socket.create_connection((endpoint[0], int(endpoint[1])), 5) as client:
                client.sendall(b"AMQP\x00\x01\x00\x00")
                assert client.recv(8)
                process.terminate()
                assert process.wait(20) == 0

    def test_without_it_a_person_reads_the_connection_strings(self) -> None:
        with running("--namespace", "primary") as process:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(5)]
            assert lines[0] == "primary\n"
            assert lines[1].startswith("  Endpoint=sb://127.0.0.1:")
            assert lines[2].startswith("  CA      /")
            assert lines[3].startswith("  control http://127.0.0.1:")
            assert lines[4] == "Serving. Stop with Ctrl-C.\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0


class TestAddresses:
    def test_it_listens_on_loopback_only(self) -> None:
        with running("--namespace", "one", "--namespace", "two", "--ready-json") as process:
            ready(process)
            found = listens_on(process.pid)
            assert len(found) == 3  # two namespaces and the control API
            assert all(address.startswith("127.") for address in found)

    def test_a_host_is_honoured_and_the_control_api_stays_on_loopback(self) -> None:
        with running("--namespace", "one", "--host", "127.0.0.9", "--ready-json") as process:
            told = ready(process)["one"]
            assert told["connection_string"].startswith("Endpoint=sb://127.0.0.9:")
            assert sorted(address.split(":")[0] for address in listens_on(process.pid)) == ["127.0.0.1", "127.0.0.9"]

    def test_on_all_addresses_a_client_may_come_by_any_of_them(self) -> None:
        with running("--namespace", "one", "--host", "0.0.0.0", "--ready-json") as process:
            told = ready(process)["one"]
            assert sorted(address.split(":")[0] for address in listens_on(process.pid)) == ["0.0.0.0", "127.0.0.1"]
            by = told["connection_string"].replace("0.0.0.0", "127.0.0.77")
            # The token is for an address that only the client knows, and is taken; the queue is not there.
            with (
                ServiceBusClient.from_connection_string(by, retry_total=0) as client,
                pytest.raises(MessagingEntityNotFoundError),
                client.get_queue_sender("none") as sender,
            ):
                sender.send_messages(ServiceBusMessage("x"))

    def test_the_control_port_can_be_chosen(self) -> None:
        port = free_port()
        with running("--namespace", "one", "--control-port", str(port), "--ready-json") as process:
            assert ready(process)["one"]["control_url"] == f"http://127.0.0.1:{port}/one"


TOO_LONG = "n" * 51
REFUSED: dict[str, tuple[list[str], str]] = {
    "an unknown tier": (["--namespace", "one", "--tier", "gold"], "tier is 'gold'; it takes premium or standard"),
    "no name": (["--namespace", "=5672"], "'' is no namespace name; it takes 1 to 50 letters"),
    "a name with a dot": (["--namespace", "a.b"], "'a.b' is no namespace name; it takes 1 to 50 letters"),
    "a name with a digit first": (["--namespace", "1a"], "'1a' is no namespace name; it takes 1 to 50 letters"),
    "a name with a hyphen last": (["--namespace", "a-"], "'a-' is no namespace name; it takes 1 to 50 letters"),
    "a name with a line feed": (["--namespace", "a\n"], "'a\\n' is no namespace name; it takes 1 to 50 letters"),
    "a name that is too long": (["--namespace", TOO_LONG], f"'{TOO_LONG}' is no namespace name; it takes 1 to 50"),
    "port 0": (["--namespace", "one=0"], "namespace 'one' asks for port '0'; it takes a number from 1 to 65535"),
    "port 65536": (["--namespace", "one=65536"], "asks for port '65536'; it takes a number from 1 to 65535"),
    "a port that is no number": (["--namespace", "one=amqp"], "asks for port 'amqp'; it takes a number from 1 to"),
    "no port": (["--namespace", "one="], "asks for port ''; it takes a number from 1 to 65535"),
    "a name twice": (["--namespace", "one", "--namespace", "One"], "the namespace 'One' is named twice"),
    "TLS with a port": (
        ["--tls", "--namespace", "one=5672"],
        "namespace 'one' asks for port 5672, but with TLS the SDK always uses 5671",
    ),
    "a host that is not this machine": (
        ["--namespace", "one", "--host", "192.0.2.254"],
        "cannot listen on 192.0.2.254:0",
    ),
    "a host that is none": (["--namespace", "one", "--host", "a..b"], "namespace 'one' cannot listen on a..b:0"),
    "a control port above 65535": (
        ["--namespace", "one", "--control-port", "70000"],
        "the control API asks for port 70000; it takes a number from 0 to 65535",
    ),
}


class TestRefusals:
    @pytest.mark.parametrize("what", REFUSED)
    def test_are_one_sentence_and_exit_code_2_for(self, what: str) -> None:
        arguments, text = REFUSED[what]
        done = run("broker", "--ready-json", *arguments)
        self.is_one_sentence(done, text)

    @pytest.mark.parametrize("option", ["--namespace", "--control-port"])
    def test_are_one_sentence_and_exit_code_2_for_a_port_in_use(self, option: str) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            given = (
                ["--namespace", f"one={port}"] if option == "--namespace" else ["--namespace", "one", option, str(port)]
            )
            done = run("broker", "--ready-json", *given)
        self.is_one_sentence(done, f"cannot listen on 127.0.0.1:{port}: Address already in use")

    def is_one_sentence(self, done: subprocess.CompletedProcess[str], text: str) -> None:
        assert done.returncode == 2
        assert done.stdout == ""
        assert done.stderr.startswith("spark-sb-sink: ")
        assert text in done.stderr
        assert done.stderr.count("\n") == 1, done.stderr
        assert not {"Traceback", "╭", "│"} & set(re.findall(r"\w+|[╭│]", done.stderr))

    def test_of_the_option_parser_are_one_sentence_too(self) -> None:
        self.is_one_sentence(run("broker", "--nonsense"), "no such option: --nonsense; `spark-sb-sink broker --help`")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["broker"], "missing option '--namespace'; `spark-sb-sink broker --help` shows what it takes."),
        (["broker", "--namespace"], "option '--namespace' requires an argument"),
        (["broker", "--namespace", "a", "extra"], "unexpected extra argument"),
        (["nonsense"], "no such command 'nonsense'; `spark-sb-sink --help`"),
        (["status"], "missing option '--conf-file'; `spark-sb-sink status --help`"),
        (["quarantine", "show", "--conf-file", "x"], "missing argument 'ID'; `spark-sb-sink quarantine show --help`"),
        (["cost", "--syphons", "-1"], "invalid value for '--syphons'"),
        (["cost", "--rate", "many"], "invalid value for '--rate'"),
    ],
)
def test_what_the_option_parser_refuses_is_one_sentence_with_what_to_type(arguments: list[str], told: str) -> None:
    assert told in sentence(in_process(*arguments))


@pytest.mark.parametrize("command", ["status", "doctor"])
def test_ctrl_c_ends_a_look_at_a_silent_namespace_at_once_and_without_a_word(command: str, tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()  # accepts, as the kernel does, and says nothing
        side = (
            f"Endpoint=sb://{{}}:{silent.getsockname()[1]}/;SharedAccessKeyName=n;SharedAccessKey=azE=;"
            "UseDevelopmentEmulator=true"
        )
        file = tmp_path / "pair.toml"
        sides = {"primary": side.format("127.0.0.1"), "secondary": side.format("localhost")}
        file.write_text(toml({**sides, "primary_name": "p", "send_timeout": "60s"}))
        with subprocess.Popen(
            [*PROGRAM, command, "--conf-file", str(file)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job ignores it
        ) as process:
            try:
                silent.settimeout(60)
                connection, _ = silent.accept()
                process.send_signal(signal.SIGINT)
                out, err = process.communicate(timeout=30)
            finally:
                process.kill()
            connection.close()
    assert (process.returncode, out, err) == (130, "", "")


def test_its_version_is_one_line() -> None:
    done = in_process("--version")
    assert (done.code, done.out, done.err) == (0, f"spark-sb-sink {__version__}\n", "")


def test_a_command_without_arguments_shows_its_help() -> None:
    for arguments, shown in (([], "quarantine"), (["quarantine"], "Everything about one")):
        done = in_process(*arguments)
        assert shown in done.out + done.err
        assert "Traceback" not in done.err


def test_help_names_the_commands() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert "broker" in done.stdout
    assert "demo" in done.stdout


def gone(pid: int) -> bool:
    """Whether a process has ended; one that its new parent has not yet waited for counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


class TestBrokerProcess:
    def test_dies_with_its_parent_even_when_that_is_killed(self) -> None:
        code = (
            "from spark_sb_sink.broker import BrokerProcess\n"
            "broker = BrokerProcess('one')\n"
            "print(broker.pid, flush=True)\n"
            "input()\n"
        )
        parent = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not gone(pid)
        parent.kill()
        parent.communicate()
        await_that(lambda: gone(pid))

    def test_that_cannot_start_says_why(self) -> None:
        with pytest.raises(ControlError) as caught:
            BrokerProcess("one", tier="gold")
        assert str(caught.value) == (
            "the broker did not start: spark-sb-sink: tier is 'gold'; it takes premium or standard"
        )

    def test_stops_with_0_and_more_than_once(self) -> None:
        broker = BrokerProcess("one")
        assert broker.running
        assert broker.stop() == 0
        assert broker.stop() == 0
        assert not broker.running

    def test_that_has_stopped_answers_control_calls_with_one_sentence(self) -> None:
        with BrokerProcess("one") as broker:
            handle = broker["one"]
        with pytest.raises(ControlError, match="GET / on one: the broker does not answer") as caught:
            handle.overview()
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        ("method", "path", "body", "text"),
        [
            ("POST", "/queues", {}, "the field 'name' is missing"),
            ("POST", "/queues", {"name": 5}, "name is 5"),
            ("POST", "/queues", {"name": None}, "name is None"),
            ("POST", "/queues", {"name": "q", "colour": "red"}, "colour"),
            ("POST", "/queues", {"name": "/"}, "'/' is no entity name."),
            ("POST", "/delete", {"name": "none"}, "The messaging entity 'sb://primary/none' could not be found."),
            ("POST", "/faults", {"kind": "flood"}, "kind is 'flood'; it takes one of black-hole, busy"),
            (
                "POST",
                "/faults",
                {"kind": "busy", "count": 0},
                "busy: count is 0; it takes a whole number of at least 1",
            ),
            ("POST", "/faults", {"kind": "shape", "latency": "long"}, "latency"),
            ("POST", "/policies", {"name": "p", "claims": ["Fly"]}, "it takes one or more of Listen, Manage, Send"),
            ("POST", "/policies", {"name": "p", "claims": None}, "claims is None"),
            ("POST", "/policies", {"name": "p", "claims": [{}]}, "claims"),
            ("POST", "/bearers", {"claims": ["Send"], "lifetime": "x"}, "lifetime is 'x'"),
            ("POST", "/clock", {"advance": None}, "advance is None"),
            ("POST", "/journal", {"limit": 0}, "limit is 0; it takes at least 1"),
            ("POST", "/journal", {"limit": None}, "limit is None"),
            ("POST", "/idle-detach", {"seconds": -1}, "seconds is -1; it takes more than 0"),
            ("GET", "/counters?entity=none", None, "could not be found"),
            ("GET", "/nothing", None, "Not Found"),
        ],
    )
    def test_refuses_a_control_call_with_one_sentence(
        self, broker: BrokerProcess, method: str, path: str, body: dict[str, Any] | None, text: str
    ) -> None:
        with pytest.raises(ControlError) as caught:
            broker["primary"].call(method, path, body)
        said = str(caught.value)
        assert said.startswith(f"{method} {path} on primary: ")
        assert text in said
        assert "\n" not in said
        assert "Traceback" not in broker.errors()
