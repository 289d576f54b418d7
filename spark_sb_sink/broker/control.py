"""The control API: faults, entities, time and books of a running broker, as JSON over HTTP on loopback."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

from aiohttp import web

from spark_sb_sink.broker import faults
from spark_sb_sink.broker.entities import Topic
from spark_sb_sink.broker.fields import is_number
from spark_sb_sink.broker.filters import CORRELATION_FIELDS, CorrelationFilter, FalseFilter, Rule
from spark_sb_sink.broker.queue import RefusedError
from spark_sb_sink.broker.security import CLAIMS
from spark_sb_sink.broker.settings import Settings

if TYPE_CHECKING:
    from spark_sb_sink.broker.server import Broker, Hosted


class BadRequestError(ValueError):
    """A call that cannot be taken; one sentence that says why."""


class _Call:
    """One request: its namespace and its JSON body, with fields taken out by name."""

    def __init__(self, broker: "Broker", hosted: "Hosted", request: web.Request, body: dict[str, Any]) -> None:
        self.broker = broker
        self.hosted = hosted
        self.namespace = hosted.namespace
        self.request = request
        self.body = body

    def take(self, name: str, kind: type, default: Any = ...) -> Any:
        """A field of the body. `float` takes any number; null stands for a default of None, and for nothing else."""
        value = self.body.pop(name, default)
        if value is ...:
            raise BadRequestError(f"the field {name!r} is missing")
        if value is None and default is None:
            return None
        right = is_number(value) and isinstance(value, (int, kind)) if kind in (int, float) else isinstance(value, kind)
        if not right:
            raise BadRequestError(f"{name} is {value!r}; it takes {_WORDS[kind]}")
        return value

    def entity(self) -> str | None:
        """The field `entity`; none is the whole namespace."""
        name = self.take("entity", str, None)
        if name == "":
            raise BadRequestError("entity is empty; leave it out for the whole namespace")
        return cast(str | None, name)

    def known_entity(self) -> str | None:
        """The name of the entity that the field `entity` belongs to: what is for it must not pass it by unnoticed."""
        path = self.entity()
        return None if path is None else self.namespace.known(path)

    def claims(self) -> set[str]:
        claims = self.take("claims", list)
        if not claims or not all(isinstance(claim, str) and claim in CLAIMS for claim in claims):
            raise BadRequestError(f"claims are {claims!r}; it takes one or more of {', '.join(sorted(CLAIMS))}")
        return set(claims)

    def done(self) -> None:
        """All fields were taken; one that is left over was a mistake, and nothing has been done yet."""
        if self.body:
            raise BadRequestError(f"there is no field {next(iter(self.body))!r} in this call")


Handler = Callable[[_Call], Any]
_WORDS = {str: "text", bool: "true or false", int: "a whole number", float: "a number", list: "a list", dict: "a map"}
_LONGEST_STEP = 10 * 365 * 86400.0


def _overview(call: _Call) -> Any:
    return {
        "name": call.namespace.name,
        "tier": call.namespace.tier.name,
        "running": call.hosted.listener.running,
        "connections": len(call.hosted.listener.connections),
        "entities": call.namespace.overview(),
    }


def _list_faults(call: _Call) -> Any:
    return [hung.as_json() for hung in call.namespace.faults]


def _hang(call: _Call) -> Any:
    entity = call.known_entity()
    return call.hosted.hang(faults.from_json(call.body), entity).as_json()


def _undo_all(call: _Call) -> Any:
    call.hosted.undo()
    return {}


def _undo(call: _Call) -> Any:
    call.hosted.undo(int(call.request.match_info["id"]))
    return {}


def _create_queue(call: _Call) -> Any:
    name = call.take("name", str)
    return {"name": call.namespace.create_queue(name, Settings.of(call.body)).name}


def _create_topic(call: _Call) -> Any:
    name = call.take("name", str)
    return {"name": call.namespace.create_topic(name, Settings.of(call.body)).name}


def _create_subscription(call: _Call) -> Any:
    topic = call.namespace.entity(call.take("topic", str))
    if not isinstance(topic, Topic):
        raise BadRequestError(f"{topic.name!r} is a queue; only topics have subscriptions")
    name = call.take("name", str)
    correlation = call.take("correlation", dict, None)
    matches = call.take("matches", bool, True)
    wanted = None if correlation is None else _correlation(correlation)
    subscription = call.namespace.create_subscription(topic, name, Settings.of(call.body))
    if wanted is not None:
        subscription.rules = {"rule": Rule("rule", wanted)}
    elif not matches:
        subscription.rules = {"rule": Rule("rule", FalseFilter())}
    return {"path": subscription.store.path}


def _correlation(given: dict[str, Any]) -> CorrelationFilter:
    application = given.pop("properties", {})
    if not isinstance(application, dict):
        raise BadRequestError(f"properties is {application!r}; it takes an object")
    for name, value in given.items():
        if name not in CORRELATION_FIELDS or not isinstance(value, str):
            known = ", ".join(CORRELATION_FIELDS)
            raise BadRequestError(f"correlation has {name!r} as {value!r}; it takes properties, and text for {known}")
    for name, value in application.items():
        if isinstance(value, (dict, list)):
            raise BadRequestError(f"the property {name!r} is {value!r}; it takes text, a number or true or false")
    return CorrelationFilter(tuple(given.items()), tuple(application.items()))


def _delete(call: _Call) -> Any:
    name = call.take("name", str)
    call.done()
    call.namespace.delete(name)
    return {}


_FIXED = ("requires_session", "requires_duplicate_detection", "partitioned")


def _settings(call: _Call) -> Any:
    """Change how an entity behaves while it runs; links that can no longer stand are detached."""
    entity = call.namespace.entity(call.take("name", str))
    for name in _FIXED:
        if name in call.body and call.body[name] != getattr(entity.settings, name):
            raise BadRequestError(f"{name} cannot be changed once {entity.name!r} is made; delete it and make it again")
    changed = Settings.of({**asdict(entity.settings), **call.body})
    changed.check()
    call.namespace.tier.check(changed)
    for name in call.body:
        setattr(entity.settings, name, getattr(changed, name))
    call.namespace.on_change(entity.name)
    return asdict(entity.settings)


def _expire_locks(call: _Call) -> Any:
    name = call.entity()
    call.done()
    entities = list(call.namespace.entities.values()) if name is None else [call.namespace.entity(name)]
    return {"expired": sum(store.expire_locks() for entity in entities for store in entity.stores())}


def _stop(call: _Call) -> Any:
    call.done()
    call.hosted.stop()
    return {}


def _start(call: _Call) -> Any:
    call.done()
    if not call.hosted.listener.running:
        try:
            call.hosted.listener.start()
        except OSError as error:
            raise BadRequestError(f"{call.hosted.endpoint} cannot be taken again: {error.strerror}") from error
    return {}


def _cut(call: _Call) -> Any:
    entity = call.known_entity()
    call.done()
    return {"cut": call.hosted.cut(entity)}


def _journal(call: _Call) -> Any:
    message_id = call.request.query.get("id")
    if message_id is None:
        raise BadRequestError("the query takes the id of a message, as in journal?id=...")
    return [asdict(entry) for entry in call.namespace.journal.of(message_id)]


def _tally(call: _Call) -> Any:
    journal = call.namespace.journal
    return {"dropped": journal.dropped, "messages": journal.tally(call.request.query.get("entity"))}


def _set_journal(call: _Call) -> Any:
    journal = call.namespace.journal
    enabled = call.take("enabled", bool, journal.enabled)
    limit = call.take("limit", int, journal.limit)
    clear = call.take("clear", bool, False)
    call.done()
    if limit < 1:
        raise BadRequestError(f"limit is {limit}; it takes at least 1")
    journal.enabled, journal.limit = enabled, limit
    if clear:
        journal.clear()
    journal.keep_within_limit()
    return {"enabled": journal.enabled, "limit": journal.limit, "dropped": journal.dropped}


def _counters(call: _Call) -> Any:
    name = call.request.query.get("entity")
    return (call.namespace.counters if name is None else call.namespace.entity(name).counters).as_json()


def _reset_counters(call: _Call) -> Any:
    call.namespace.reset_counters()
    return {}


def _policy(call: _Call) -> Any:
    name, claims, entity = call.take("name", str), call.claims(), call.entity()
    call.done()
    policy = call.namespace.guard.add_policy(name, claims, entity)
    return {"connection_string": call.hosted.connection_string(policy)}


def _bearer(call: _Call) -> Any:
    claims, lifetime = call.claims(), call.take("lifetime", float, 3600)
    call.done()
    bearer = call.namespace.guard.add_bearer(claims, lifetime)
    return {"token": bearer.token, "expires_at": bearer.expires_at}


def _pings(call: _Call) -> Any:
    delivered = call.take("delivered", bool)
    call.done()
    call.namespace.deliver_pings = delivered
    return {}


def _idle(call: _Call) -> Any:
    seconds = call.take("seconds", float)
    call.done()
    if seconds <= 0:
        raise BadRequestError(f"seconds is {seconds}; it takes more than 0")
    call.hosted.listener.idle_detach = float(seconds)
    return {}


def _clock(call: _Call) -> Any:
    seconds = float(call.take("advance", float))
    call.done()
    if abs(seconds) > _LONGEST_STEP:
        raise BadRequestError(f"advance is {seconds:g}; it takes seconds, up to ten years of them")
    call.broker.clock.advance(seconds)
    for hosted in call.broker.hosted.values():
        hosted.namespace.tick()
    return {"now": call.broker.clock.now()}


_ROUTES: list[tuple[str, str, Handler]] = [
    ("GET", "/{namespace}", _overview),
    ("GET", "/{namespace}/faults", _list_faults),
    ("POST", "/{namespace}/faults", _hang),
    ("DELETE", "/{namespace}/faults", _undo_all),
    ("DELETE", "/{namespace}/faults/{id:[0-9]+}", _undo),
    ("POST", "/{namespace}/queues", _create_queue),
    ("POST", "/{namespace}/topics", _create_topic),
    ("POST", "/{namespace}/subscriptions", _create_subscription),
    ("POST", "/{namespace}/delete", _delete),
    ("POST", "/{namespace}/settings", _settings),
    ("POST", "/{namespace}/expire-locks", _expire_locks),
    ("POST", "/{namespace}/stop", _stop),
    ("POST", "/{namespace}/start", _start),
    ("POST", "/{namespace}/cut", _cut),
    ("GET", "/{namespace}/journal", _journal),
    ("GET", "/{namespace}/journal/tally", _tally),
    ("POST", "/{namespace}/journal", _set_journal),
    ("GET", "/{namespace}/counters", _counters),
    ("DELETE", "/{namespace}/counters", _reset_counters),
    ("POST", "/{namespace}/policies", _policy),
    ("POST", "/{namespace}/bearers", _bearer),
    ("POST", "/{namespace}/pings", _pings),
    ("POST", "/{namespace}/idle-detach", _idle),
    ("POST", "/{namespace}/clock", _clock),
]


def application(broker: "Broker") -> web.Application:
    app = web.Application(client_max_size=16 * 1024 * 1024, middlewares=[_in_json])
    for method, path, handler in _ROUTES:
        app.router.add_route(method, path, _adapt(broker, handler))
    return app


@web.middleware
async def _in_json(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """What the HTTP side itself refuses (no such path, no such method, too large) in the form of all other refusals."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        return _error(error.status, f"{request.method} {request.path}: {error.reason}")


def _adapt(broker: "Broker", handler: Handler) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def run(request: web.Request) -> web.StreamResponse:
        hosted = broker.hosted.get(request.match_info["namespace"].lower())
        if hosted is None:
            return _error(404, f"there is no namespace {request.match_info['namespace']!r} here")
        raw = await request.read()
        try:
            body = json.loads(raw) if raw else {}
            json.dumps(body, ensure_ascii=False).encode()  # half a surrogate pair is JSON, but no text
        except (ValueError, RecursionError) as error:
            return _error(400, f"the body is no JSON: {error}")
        if not isinstance(body, dict):
            return _error(400, "the body takes a JSON object")
        try:
            return web.json_response(handler(_Call(broker, hosted, request, cast(dict[str, Any], body))))
        except RefusedError as error:
            return _error(error.status, error.text)
        except ValueError as error:  # BadRequestError, SettingsError, FaultError: each one sentence
            return _error(400, str(error))

    return run


def _error(status: int, text: str) -> web.Response:
    return web.json_response({"error": text}, status=status)
