"""A broker in a process of its own, with a Python handle: what tests, the demo and benchmarks use.

Imports neither proton nor the server, only the descriptions of faults; the other side is the control API.
"""

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any, Self

from spark_sb_sink.broker.faults import Fault, to_json
from spark_sb_sink.broker.journal import Entry

# Control calls go to loopback; a proxy that the environment names has nothing to do with them.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class ControlError(RuntimeError):
    """The broker refused a control call, or did not start; the text is its own."""


@dataclass(frozen=True)
class NamespaceHandle:
    """One namespace of a running broker: where clients find it, and all that the control API can do to it."""

    name: str
    connection_string: str
    ca_file: str
    control_url: str

    def __repr__(self) -> str:
        return f"NamespaceHandle({self.name!r}, {self.control_url!r})"

    @property
    def endpoint(self) -> str:
        """`host:port`, as a fully qualified namespace for token credentials."""
        return self.connection_string.split("Endpoint=sb://", 1)[1].split("/", 1)[0]

    def call(self, method: str, path: str = "", body: dict[str, Any] | None = None, **query: str) -> Any:
        url = self.control_url + path
        if query:
            url += "?" + urllib.parse.urlencode(query)
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310 - the broker's own http URL
        try:
            with _OPENER.open(request, timeout=60) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            text = error.read().decode("utf-8", "replace")
            with contextlib.suppress(ValueError, KeyError, TypeError):
                text = json.loads(text)["error"]
            raise ControlError(f"{method} {path or '/'} on {self.name}: {text}") from None
        except OSError as error:
            why = getattr(error, "reason", error)
            raise ControlError(f"{method} {path or '/'} on {self.name}: the broker does not answer ({why})") from None

    # Entities

    def create_queue(self, name: str, **settings: Any) -> None:
        """Make a queue; settings as in `broker.settings.Settings`, durations in seconds."""
        self.call("POST", "/queues", {"name": name, **settings})

    def create_topic(self, name: str, **settings: Any) -> None:
        self.call("POST", "/topics", {"name": name, **settings})

    def create_subscription(
        self, topic: str, name: str, *, correlation: dict[str, Any] | None = None, **settings: Any
    ) -> None:
        body = {"topic": topic, "name": name, **settings}
        if correlation is not None:
            body["correlation"] = correlation
        self.call("POST", "/subscriptions", body)

    def delete(self, name: str) -> None:
        self.call("POST", "/delete", {"name": name})

    def configure(self, name: str, **settings: Any) -> None:
        """Change settings of an entity while it runs: `status`, `discard`, `lock_duration` and the rest."""
        self.call("POST", "/settings", {"name": name, **settings})

    def disable(self, name: str) -> None:
        self.configure(name, status="Disabled")

    def enable(self, name: str) -> None:
        self.configure(name, status="Active")

    # Faults

    def hang(self, fault: Fault, entity: str | None = None) -> int:
        """Put a fault in force, for one entity or for the namespace; the number undoes it."""
        return int(self.call("POST", "/faults", {**to_json(fault), "entity": entity})["id"])

    def undo(self, fault_id: int | None = None) -> None:
        """Undo one fault, or all of them."""
        self.call("DELETE", "/faults" if fault_id is None else f"/faults/{fault_id}")

    @contextlib.contextmanager
    def fault(self, fault: Fault, entity: str | None = None) -> Iterator[None]:
        """A fault for the time of a `with` block."""
        fault_id = self.hang(fault, entity)
        try:
            yield
        finally:
            self.undo(fault_id)

    def faults(self) -> list[dict[str, Any]]:
        return list(self.call("GET", "/faults"))

    def stop(self) -> None:
        """Stop serving; messages are kept for `start`."""
        self.call("POST", "/stop", {})

    def start(self) -> None:
        self.call("POST", "/start", {})

    def cut(self, entity: str | None = None) -> int:
        """Cut the open connections, once."""
        return int(self.call("POST", "/cut", {"entity": entity})["cut"])

    def expire_locks(self, entity: str | None = None) -> int:
        return int(self.call("POST", "/expire-locks", {"entity": entity})["expired"])

    def advance_clock(self, seconds: float) -> None:
        """Move the clock of the whole broker."""
        self.call("POST", "/clock", {"advance": seconds})

    def deliver_pings(self, delivered: bool) -> None:
        self.call("POST", "/pings", {"delivered": delivered})

    def idle_detach_after(self, seconds: float) -> None:
        self.call("POST", "/idle-detach", {"seconds": seconds})

    # Security

    def add_policy(self, name: str, claims: Sequence[str], entity: str | None = None) -> str:
        """Make a shared access policy; returns its connection string."""
        body = {"name": name, "claims": list(claims), "entity": entity}
        return str(self.call("POST", "/policies", body)["connection_string"])

    def add_bearer(self, claims: Sequence[str], lifetime: float = 3600.0) -> tuple[str, float]:
        """Make a bearer token; returns it with the time of its expiry."""
        answer = self.call("POST", "/bearers", {"claims": list(claims), "lifetime": lifetime})
        return str(answer["token"]), float(answer["expires_at"])

    # Books

    def overview(self) -> dict[str, Any]:
        return dict(self.call("GET"))

    def counts(self, path: str) -> dict[str, int]:
        """Messages of a queue, subscription or dead-letter sub-queue by state."""
        for entity in self.overview()["entities"].values():
            if path in entity["stores"]:
                return dict(entity["stores"][path])
        raise ControlError(f"there is no {path!r} in {self.name}")

    def counters(self, entity: str | None = None) -> dict[str, Any]:
        return dict(self.call("GET", "/counters", None, **({} if entity is None else {"entity": entity})))

    def reset_counters(self) -> None:
        self.call("DELETE", "/counters")

    def journal(self, message_id: str) -> list[Entry]:
        return [Entry(**entry) for entry in self.call("GET", "/journal", id=message_id)]

    def tally(self, entity: str | None = None) -> dict[str, dict[str, int]]:
        """For each message id, how often each thing happened to it; fails if the journal has forgotten anything."""
        answer = self.call("GET", "/journal/tally", None, **({} if entity is None else {"entity": entity}))
        if answer["dropped"]:
            raise ControlError(f"the journal of {self.name} has forgotten {answer['dropped']} entries; raise its limit")
        return dict(answer["messages"])

    def configure_journal(self, **settings: Any) -> None:
        """`enabled`, `limit`, `clear`."""
        self.call("POST", "/journal", settings)


class BrokerProcess:
    """Starts `spark-sb-sink broker` and stops it. It ends with this process, however that ends."""

    def __init__(
        self,
        *namespaces: str,
        tier: str | Mapping[str, str] = "standard",
        tls: bool = False,
        start_within: float = 60.0,
    ) -> None:
        """`tier`: of all namespaces, or of each by name."""
        arguments = [sys.executable, "-m", "spark_sb_sink.cli", "broker", "--ready-json", "--until-stdin-closes"]
        tiers = [tier] if isinstance(tier, str) else [f"{name}={one}" for name, one in tier.items()]
        arguments += [text for one in tiers for text in ("--tier", one)] + (["--tls"] if tls else [])
        for name in namespaces or ("primary",):
            arguments += ["--namespace", name]
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop()
        self._process = subprocess.Popen(  # noqa: S603
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors
        )
        try:
            ready = self._ready(start_within)
        except BaseException:
            self.stop()
            raise
        self.namespaces = {name: NamespaceHandle(name, **data) for name, data in ready.items()}

    def _ready(self, within: float) -> dict[str, Any]:
        timer = threading.Timer(within, self._process.kill)
        timer.start()
        try:
            line = self._process.stdout.readline() if self._process.stdout is not None else b""
        finally:
            timer.cancel()
        if not line:
            self._process.wait()
            raise ControlError(f"the broker did not start: {self.errors().strip() or 'it said nothing'}")
        return dict(json.loads(line))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def __getitem__(self, name: str) -> NamespaceHandle:
        return self.namespaces[name]

    def errors(self) -> str:
        """What the broker has written to its standard error."""
        self._errors.seek(0)
        return self._errors.read().decode("utf-8", "replace")

    def stop(self, within: float = 10.0) -> int:
        """End it with SIGTERM, with SIGKILL if it does not; returns its exit code."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(within)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        code = self._process.returncode
        if not self._errors.closed:
            self._errors.close()
        return int(code)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
