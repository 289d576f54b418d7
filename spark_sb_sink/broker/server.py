"""The broker as one process: its namespaces, each on its own address or port, and the control API beside them."""

import asyncio
import logging
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from spark_sb_sink.broker import certificates, control
from spark_sb_sink.broker.administration import Administration
from spark_sb_sink.broker.clock import Clock
from spark_sb_sink.broker.faults import BlackHole, Fault, Hung, Refuse
from spark_sb_sink.broker.listener import Listener
from spark_sb_sink.broker.namespace import TIERS, Namespace
from spark_sb_sink.broker.security import ROOT_POLICY, Policy

TLS_PORT = 5671
"""The port that the SDK uses with TLS, whatever the address says."""
_EVERYWHERE = "0.0.0.0"  # noqa: S104
_LOG = logging.getLogger(__name__)


def _is_ours(record: logging.LogRecord) -> bool:
    """Whether what the HTTP server logs is about this program: what a client sent that is no HTTP is not."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


_LOG.addFilter(_is_ours)


class BrokerError(ValueError):
    """The broker cannot start as asked; one sentence that says why."""


@dataclass(frozen=True)
class Spec:
    """A namespace to host. Port 0 is any free one; host None is loopback, an address of its own with TLS."""

    name: str
    port: int = 0
    tier: str = "standard"
    host: str | None = None


class _Front:
    """The way from a socket to the administration side: its first request ends the listener's deadline."""

    listener: Listener

    def __init__(self, administration: Administration) -> None:
        self._administration = administration

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        self.listener.asked(request.transport)
        return await self._administration.handle(request)


@dataclass(eq=False)
class Hosted:
    """A namespace with its socket."""

    namespace: Namespace
    listener: Listener
    http: web.Server
    tls: bool
    deaf: set[asyncio.Transport] = field(default_factory=set)
    """Administration connections that a black hole has silenced."""

    @property
    def endpoint(self) -> str:
        return f"{self.listener.host}:{self.listener.port}"

    def connection_string(self, policy: Policy | None = None) -> str:
        policy = policy or self.namespace.guard.policies[ROOT_POLICY]
        suffix = "" if self.tls else ";UseDevelopmentEmulator=true"
        return f"Endpoint=sb://{self.endpoint}/;SharedAccessKeyName={policy.name};SharedAccessKey={policy.key}{suffix}"

    def hang(self, fault: Fault, entity: str | None) -> Hung:
        """Put a fault in force, at once, also for connections that are open."""
        hung = self.namespace.faults.hang(fault, entity)
        match fault:
            case Refuse():
                self.cut(entity)
            case BlackHole(after="accept"):
                self.listener.silence(entity)
                if entity is None:
                    self._silence_http()
            case BlackHole():
                for connection in self.listener.connections:
                    if connection.attached(entity):
                        connection.fall_silent()
        return hung

    def undo(self, fault_id: int | None = None) -> None:
        shapes = {connection: connection.shape() for connection in self.listener.connections}
        if fault_id is None:
            self.namespace.faults.clear()
        else:
            self.namespace.faults.undo(fault_id)
        for connection, before in shapes.items():
            if connection.shape() != before:
                connection.release()
        self.listener.end_silent()
        if not self.namespace.faults.black_hole(None, "accept"):
            for transport in self.deaf:
                transport.abort()
            self.deaf.clear()

    def _silence_http(self) -> None:
        """Open administration connections fall silent too: what they send is no longer read."""
        for handler in list(self.http.connections):
            if handler.transport is not None:
                handler.transport.pause_reading()
                self.deaf.add(handler.transport)

    def cut(self, entity: str | None = None) -> int:
        if entity is None:
            for handler in list(self.http.connections):
                if handler.transport is not None:
                    handler.transport.abort()
        return self.listener.cut_all(entity)

    def stop(self) -> None:
        self.cut()
        self.listener.stop()


@dataclass(eq=False)
class Broker:
    """All of it, inside a running event loop."""

    clock: Clock = field(default_factory=Clock)
    hosted: dict[str, Hosted] = field(default_factory=dict)
    control_url: str = ""
    ca_file: Path | None = None
    _folder: tempfile.TemporaryDirectory[str] | None = None
    _control: web.AppRunner | None = None

    async def start(self, specs: list[Spec], *, tls: bool = False, control_port: int = 0) -> None:
        if not specs:
            raise BrokerError("there is no namespace to host; name at least one with --namespace NAME")
        self._folder = tempfile.TemporaryDirectory(prefix="spark-sb-sink-broker-")
        try:
            hosts = await self._host_all(specs, tls)
            self.ca_file, context = certificates.make(Path(self._folder.name), hosts)
            for hosted in self.hosted.values():
                hosted.listener.use_tls(context)
                hosted.listener.start()
            await self._serve_control(control_port)
        except BaseException:
            await self.close()
            raise

    async def _host_all(self, specs: list[Spec], tls: bool) -> list[str]:
        hosts: list[str] = []
        for spec in specs:
            if spec.tier not in TIERS:
                raise BrokerError(f"tier is {spec.tier!r}; it takes {' or '.join(sorted(TIERS))}")
            if spec.name.lower() in self.hosted:
                raise BrokerError(f"the namespace {spec.name!r} is named twice")
            if tls and spec.port not in (0, TLS_PORT):
                raise BrokerError(
                    f"namespace {spec.name!r} asks for port {spec.port}, but with TLS the SDK always uses {TLS_PORT}; "
                    "leave the port out, and each namespace gets a loopback address of its own"
                )
            namespace = Namespace(spec.name, TIERS[spec.tier], self.clock)
            administration = Administration(namespace)
            front = _Front(administration)
            http: web.Server = web.Server(front, logger=_LOG)
            front.listener = listener = self._bind(namespace, spec, tls, http)
            # On all addresses at once, the names that clients find it by cannot be known.
            own = {listener.host, "localhost", "127.0.0.1", spec.name.lower()}
            namespace.guard.hosts = frozenset() if listener.host == _EVERYWHERE else frozenset(own)
            namespace.guard.port = listener.port
            hosts.append(listener.host)
            self.hosted[spec.name.lower()] = Hosted(namespace, listener, http, tls)
        return hosts

    def _bind(self, namespace: Namespace, spec: Spec, tls: bool, http: web.Server) -> Listener:
        candidates = [spec.host] if spec.host else ["127.0.0.1"] if not tls else [f"127.0.0.{n}" for n in range(2, 255)]
        port = TLS_PORT if tls else spec.port
        last: OSError | UnicodeError | None = None
        for host in candidates:
            listener = Listener(namespace, host, port, http)
            try:
                listener.bind()
            except (OSError, UnicodeError) as error:  # UnicodeError: a host name that no name service would take
                last = error
                continue
            return listener
        where = f"{candidates[0]}:{port}" if len(candidates) == 1 else f"port {port} on any loopback address"
        reason = (last.strerror if isinstance(last, OSError) else None) or str(last)
        raise BrokerError(f"namespace {spec.name!r} cannot listen on {where}: {reason}")

    async def _serve_control(self, port: int) -> None:
        if not 0 <= port <= 65535:
            raise BrokerError(f"the control API asks for port {port}; it takes a number from 0 to 65535")
        # The control API gives out keys and breaks things: it is for this machine only, whatever --host says.
        self._control = web.AppRunner(control.application(self), access_log=None)
        await self._control.setup()
        site = web.TCPSite(self._control, "127.0.0.1", port)
        try:
            await site.start()
        except OSError as error:
            # asyncio puts a text of its own into strerror, which names the address a second time.
            why = os.strerror(error.errno) if error.errno else str(error)
            raise BrokerError(f"the control API cannot listen on 127.0.0.1:{port}: {why}") from error
        bound = self._control.addresses[0]
        self.control_url = f"http://127.0.0.1:{bound[1]}"

    def ready(self) -> dict[str, dict[str, Any]]:
        """What a client needs to know of each namespace."""
        return {
            hosted.namespace.name: {
                "connection_string": hosted.connection_string(),
                "ca_file": str(self.ca_file),
                "control_url": f"{self.control_url}/{hosted.namespace.name}",
            }
            for hosted in self.hosted.values()
        }

    async def close(self) -> None:
        for hosted in self.hosted.values():
            hosted.listener.close()
            await hosted.http.shutdown(1.0)
        if self._control is not None:
            await self._control.cleanup()
        if self._folder is not None:
            self._folder.cleanup()
        # The loop's next turn lets cut connections close their sockets.
        await asyncio.sleep(0)
