"""The administration side of a namespace: ATOM over HTTPS, as ServiceBusAdministrationClient and its aio twin speak it.

Owns addresses, authorization and status codes; the XML is in `atom`, properties in `descriptions`, rules in `rules`.
A GET of a queue or topic that is not there answers 200 with a feed that has no entries, as the service does; of a
subscription or a rule, 404. `AutoDeleteOnIdle` is kept but not acted on.
"""

import asyncio
from dataclasses import fields
from urllib.parse import parse_qsl, unquote
from xml.etree.ElementTree import Element

from aiohttp import ClientPayloadError, web

from spark_sb_sink.broker import atom, descriptions, rules
from spark_sb_sink.broker.addresses import Address, Call, refused
from spark_sb_sink.broker.descriptions import KINDS, Described
from spark_sb_sink.broker.entities import Queue, Subscription, Topic
from spark_sb_sink.broker.faults import BlackHole
from spark_sb_sink.broker.filters import DEFAULT_RULE, Rule
from spark_sb_sink.broker.namespace import Namespace
from spark_sb_sink.broker.queue import RefusedError
from spark_sb_sink.broker.security import MANAGE, TokenRefusedError
from spark_sb_sink.broker.settings import Settings, SettingsError

MAX_PAGE = 100
READ_WITHIN = 60.0
"""No client can hold a request open for longer by sending its body slowly."""
_LISTED = {"queues": Queue, "topics": Topic}
_CLAIMS = {"GET": "EntityRead", "PUT": "EntityWrite", "DELETE": "EntityDelete"}


class Administration:
    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        self._created_at = namespace.clock.now()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            await self._black_hole(request)
            body = await asyncio.wait_for(request.read(), READ_WITHIN)
            await self._black_hole(request)
        except web.HTTPRequestEntityTooLarge:
            return self._error(413, "The body is larger than any description can be.")
        except TimeoutError:
            return self._error(408, f"The body did not come within {READ_WITHIN:g} seconds.")
        except (ClientPayloadError, ConnectionError):  # then nobody hears this
            return self._error(400, "The body ended before it was whole.")
        self.namespace.counters.management += 1
        try:
            return self._answer(request, body)
        except RefusedError as error:
            return self._error(error.status, error.text)
        except TokenRefusedError as error:
            return self._error(error.status, str(error))
        except (SettingsError, atom.AtomError) as error:
            return self._error(400, str(error))

    async def _black_hole(self, request: web.BaseRequest) -> None:
        """While the whole namespace is a black hole, no answer; then the connection is cut, as it is for AMQP."""

        def silent() -> bool:
            return any(
                hung.entity is None and isinstance(hung.fault, BlackHole) and hung.fault.after == "accept"
                for hung in self.namespace.faults
            )

        if not silent():
            return
        try:
            while silent():
                await asyncio.sleep(0.05)
                if request.transport is None or request.transport.is_closing():
                    break
        finally:
            if request.transport is not None:
                request.transport.abort()
        raise ConnectionResetError("black hole")

    def _answer(self, request: web.BaseRequest, body: bytes) -> web.Response:
        path, _, query = request.raw_path.partition("?")
        base = f"{'https' if request.secure else 'http'}://{request.host}"
        if request.method == "GET" and not path.strip("/"):
            # As the service's troubleshooting guide has it, anyone may ask for this one: "wget https://<namespace>".
            return self._response(atom.public_feed(f"{base}/", self.namespace.clock.now()), atom.FEED_TYPE)
        if request.method not in _CLAIMS:
            raise refused(405, f"The specified HTTP verb ({request.method}) is not valid.")
        address = Address.of(path)
        self._authorize(request, address.path)
        call = Call(request.method, base, path, address, dict(parse_qsl(query)), body, "If-Match" in request.headers)
        entity = self.namespace.entities.get(address.entity.lower())
        if entity is not None:
            entity.counters.management += 1
        if address.path.lower() == "$namespaceinfo" and request.method == "GET":
            return self._namespace_info(call)
        if address.listed is not None:
            return self._list(call)
        if address.rule is not None:
            return self._rule(call, self._subscription(address), address.rule)
        if address.subscription is not None:
            return self._one_subscription(call, self._topic(address.entity), address.subscription)
        return self._entity(call, entity)

    def _authorize(self, request: web.BaseRequest, path: str) -> None:
        """A token that is missing or not valid, and one without the Manage claim, are all answered with 401.

        The status codes of the REST operations ("Create Queue" and others, learn.microsoft.com) have 401 for every
        authorization failure, and 403 for quotas; the service's own text for a missing claim is "Manage,EntityRead
        claims required for this operation", with 401 (github.com/paolosalvatori/ServiceBusExplorer/issues/615).
        """
        token = request.headers.get("Authorization", "")
        if not token.startswith(("SharedAccessSignature ", "Bearer ")):
            raise TokenRefusedError("MissingToken: The Authorization header has no token that this namespace knows.")
        now = self.namespace.clock.seen_by_clients()
        grant = self.namespace.guard.check(token, f"https://{request.host}/{path}", now)
        if not grant.allows(MANAGE, path, now):
            raise TokenRefusedError(f"Manage,{_CLAIMS[request.method]} claims required for this operation.")

    # What is there

    def _topic(self, name: str) -> Topic:
        found = self.namespace.entity(name)
        if not isinstance(found, Topic):
            raise refused(400, f"{found.name!r} is a queue; only topics have subscriptions.")
        return found

    def _subscription(self, address: Address) -> Subscription:
        topic = self._topic(address.entity)
        found = topic.subscriptions.get((address.subscription or "").lower())
        if found is None:
            raise self.namespace.not_found(f"{topic.name}/Subscriptions/{address.subscription}")
        return found

    def _list(self, call: Call) -> web.Response:
        if call.method != "GET":
            raise refused(405, f"The specified HTTP verb ({call.method}) is not valid.")
        listed = call.address.listed
        if listed == "rules":
            subscription = self._subscription(call.address)
            items = [self._rule_item(call, subscription, rule) for _, rule in sorted(subscription.rules.items())]
        else:
            found: list[Described]
            if listed == "subscriptions":
                found = [each for _, each in sorted(self._topic(call.address.entity).subscriptions.items())]
            else:
                kind = _LISTED[listed or ""]
                found = [each for _, each in sorted(self.namespace.entities.items()) if isinstance(each, kind)]
            items = [self._item(call, each) for each in found]
        skip, top = call.number("$skip", 0), min(call.number("$top", MAX_PAGE), MAX_PAGE) or MAX_PAGE
        following = None
        path = unquote(call.target.strip("/"))
        if len(items) > skip + top:
            following = call.link(path, **{"$skip": str(skip + top), "$top": str(top)})
        address = call.link(path, **{"$skip": str(skip), "$top": str(top)})
        now, name = self.namespace.clock.now(), self.namespace.name
        page = atom.feed((listed or "").capitalize(), address, following, items[skip : skip + top], now, name)
        return self._response(page, atom.FEED_TYPE)

    def _namespace_info(self, call: Call) -> web.Response:
        premium = self.namespace.tier.name == "premium"
        created = atom.moment(self._created_at)
        properties = [
            atom.node("CreatedTime", created),
            atom.node("MessagingSKU", self.namespace.tier.name.capitalize()),
            *([atom.node("MessagingUnits", "1")] if premium else []),
            atom.node("ModifiedTime", created),
            atom.node("Name", self.namespace.name),
            atom.node("NamespaceType", "Messaging"),
        ]
        about = atom.description("NamespaceInfo", properties)
        address = call.link("$namespaceinfo")
        return self._entry(atom.Item(self.namespace.name, address, self._created_at, self._created_at, about))

    # Queues and topics

    def _entity(self, call: Call, entity: Queue | Topic | None) -> web.Response:
        name = call.address.entity
        match call.method:
            case "GET" if entity is None:
                return self._response(atom.public_feed(call.link(name), self.namespace.clock.now()), atom.FEED_TYPE)
            case "GET":
                return self._entry(self._item(call, self.namespace.entity(name)))
            case "DELETE":
                self.namespace.delete(name)
                return web.Response()
        kind, given = self._description(call, "QueueDescription", "TopicDescription")
        if call.update:
            found = self.namespace.entity(name)
            if kind != KINDS[type(found)]:
                raise refused(400, f"{found.name!r} is no {kind.removesuffix('Description').lower()}.")
            return self._update(call, found, atom.texts(given))
        if any(character in "?#@*\\" or not character.isprintable() for character in name):
            raise refused(400, f"{name!r} is no entity name: it has one of ? # @ * \\ or an unprintable character.")
        kept, settings = descriptions.read(kind, atom.texts(given), self.namespace.tier, Settings())
        create = self.namespace.create_queue if kind == "QueueDescription" else self.namespace.create_topic
        created = create(name, settings)
        created.description = kept
        created.counters.management += 1
        return self._entry(self._item(call, created), 201)

    def _description(self, call: Call, *kinds: str) -> tuple[str, Element]:
        element = atom.parse(call.body)
        kind = atom.local(element)
        if kind not in kinds:
            raise atom.AtomError(f"The entry has a {kind!r}, where this address takes a {' or a '.join(kinds)}.")
        if element.find(f"{{{atom.CONNECT}}}AuthorizationRules/*") is not None:
            raise SettingsError(
                "AuthorizationRules are not offered; add a policy to the namespace through the broker's control API"
            )
        return kind, element

    def _update(self, call: Call, described: Described, given: dict[str, str]) -> web.Response:
        """Change the live entity: its stores share the settings, so they are changed in place, all or none of them.

        What is not named stays as it is, and what reads as the answer to a GET does is no change.
        """
        current = dict(descriptions.answer(described, self.namespace.tier))
        given = {name: text for name, text in given.items() if current.get(name) != text}
        kind, settings = KINDS[type(described)], described.settings
        kept, changed = descriptions.read(kind, given, self.namespace.tier, settings)
        descriptions.check_update(kind, settings, changed)
        for field in fields(Settings):
            setattr(settings, field.name, getattr(changed, field.name))
        if not isinstance(described, Topic):
            described.dead_letters.settings.lock_duration = settings.lock_duration
        described.description.update(kept)
        described.updated_at = self.namespace.clock.now()
        self.namespace.on_change(described.topic.name if isinstance(described, Subscription) else described.name)
        return self._entry(self._item(call, described))

    # Subscriptions and rules

    def _one_subscription(self, call: Call, topic: Topic, name: str) -> web.Response:
        match call.method:
            case "GET":
                return self._entry(self._item(call, self._subscription(call.address)))
            case "DELETE":
                self.namespace.delete_subscription(topic, name)
                return web.Response()
        kind, given = self._description(call, "SubscriptionDescription")
        if call.update:
            return self._update(call, self._subscription(call.address), atom.texts(given))
        self._check_name(name)
        base = Settings(partitioned=topic.settings.partitioned)
        kept, settings = descriptions.read(kind, atom.texts(given), self.namespace.tier, base)
        first = self._default_rule(given)
        created = self.namespace.create_subscription(topic, name, settings)
        created.description = kept
        created.rules = {first.name.lower(): first}
        return self._entry(self._item(call, created), 201)

    def _default_rule(self, given: Element) -> Rule:
        now = self.namespace.clock.now()
        element = given.find(f"{{{atom.CONNECT}}}DefaultRuleDescription")
        if element is None:
            return rules.read(DEFAULT_RULE, given, now)
        return rules.read(atom.texts(element).get("Name", DEFAULT_RULE), element, now)

    def _rule(self, call: Call, subscription: Subscription, name: str) -> web.Response:
        path = f"{subscription.topic.name}/Subscriptions/{subscription.name}/Rules/{name}"
        existing = subscription.rules.get(name.lower())
        if existing is None and (call.method != "PUT" or call.update):
            raise self.namespace.not_found(path)
        if existing is not None and call.method == "GET":
            return self._entry(self._rule_item(call, subscription, existing))
        if existing is not None and call.method == "DELETE":
            del subscription.rules[name.lower()]
            return web.Response()
        if existing is not None and not call.update:
            raise RefusedError("com.microsoft:entity-already-exists", f"The rule {path!r} exists already.", 409)
        self._check_name(name)
        _, given = self._description(call, "RuleDescription")
        rule = rules.read(existing.name if existing is not None else name, given, self.namespace.clock.now())
        subscription.rules[name.lower()] = rule
        return self._entry(self._rule_item(call, subscription, rule), 200 if call.update else 201)

    def _check_name(self, name: str) -> None:
        if not 0 < len(name) <= 50 or any(each in "/?#@*\\" or not each.isprintable() for each in name):
            raise refused(400, f"{name!r} is no name for a subscription or a rule; it takes 1 to 50 plain characters.")

    # Answers

    def _item(self, call: Call, described: Described) -> atom.Item:
        live = self._live(described)
        children = [
            live[name] if name in live else atom.node(name, text)
            for name, text in descriptions.answer(described, self.namespace.tier)
        ]
        path = described.store.path if isinstance(described, Subscription) else described.name
        about = atom.description(KINDS[type(described)], children)
        return atom.Item(described.name, call.link(path), described.created_at, described.updated_at, about)

    def _live(self, described: Described) -> dict[str, atom.Markup]:
        """What only the broker knows of an entity, by name."""
        counts = descriptions.counts(described)
        details = [
            atom.node(f"d2p1:{name}MessageCount", str(counts.get(name, 0)))
            for name in ("Active", "DeadLetter", "Scheduled", "TransferDeadLetter", "Transfer")
        ]
        texts = {
            "MessageCount": str(sum(counts.values())),
            "IsAnonymousAccessible": "false",
            "AuthorizationRules": "",
            "CreatedAt": atom.moment(described.created_at),
            "UpdatedAt": atom.moment(described.updated_at),
            "AccessedAt": atom.moment(described.accessed_at),
            "EntityAvailabilityStatus": "Available",
        }
        if not isinstance(described, Subscription):
            texts["SizeInBytes"] = str(described.size())
        if isinstance(described, Topic):
            texts["SubscriptionCount"] = str(len(described.subscriptions))
        found = {name: atom.node(name, text) for name, text in texts.items()}
        found["CountDetails"] = atom.node("CountDetails", details, xmlns__d2p1=atom.COUNTS)
        return found

    def _rule_item(self, call: Call, subscription: Subscription, rule: Rule) -> atom.Item:
        at = subscription.created_at
        address = call.link(f"{subscription.store.path}/Rules/{rule.name}")
        return atom.Item(rule.name, address, at, at, rules.write(rule, at))

    def _entry(self, item: atom.Item, status: int = 200) -> web.Response:
        return self._response(atom.entry(item, self.namespace.name), atom.ENTRY_TYPE, status)

    def _error(self, status: int, text: str) -> web.Response:
        return self._response(atom.error(status, text), atom.ERROR_TYPE, status)

    def _response(self, document: atom.Markup, content_type: str, status: int = 200) -> web.Response:
        return web.Response(status=status, body=document.encode(), headers={"Content-Type": content_type})
