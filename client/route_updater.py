"""Keeping routes fresh: ask a nameserver, get notified of changes, ask again after failures.

Every topic that was asked for once is kept up to date. Our nameservers notify at once
(ROUTE_CHANGED, for requests with `saturnWatch=true`); RocketMQ's do not, so all routes are polled
every 30 s, as in the Java client. When the connection to the nameserver in use breaks, all routes
are requested anew, from another one or from the same one when it is back: its watches ended with
the connection.

A nameserver that comes back knows nothing until the brokers have registered again, one after the
other. So a broker that is missing in a fresh route, but has an open connection to us, stays in it
for `MISSING_S`. And a nameserver that knows no broker at all cannot say that a topic does not
exist: its brokers may be about to start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any

from saturnmq.client.routes import RouteCache, from_template
from saturnmq.protocol import fastjson
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.route import TopicRoute, brokers_in
from saturnmq.protocol.topics import AUTO_CREATE_TOPIC
from saturnmq.runtime.door import Runtime
from saturnmq.runtime.errors import (
    ConnectionLost,
    RequestTimeout,
    RouteNotFound,
    SaturnError,
    TopicNotExist,
)
from saturnmq.runtime.supervision import Supervisor

log = logging.getLogger(__name__)

REFRESH_PAUSE_S = 1.0
REGAIN_PAUSE_S = 0.05
REGAIN_PAUSE_MAX_S = 1.0
# Brokers look for a lost nameserver every second.
MISSING_S = 3.0
ANSWERED = (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST)


class RouteUpdater:
    """Keeps the RouteTable of one client fresh. Loop thread only."""

    def __init__(
        self,
        runtime: Runtime,
        tasks: Supervisor,
        routes: RouteCache,
        ask: Callable[..., Awaitable[Any]],
        *,
        is_connected: Callable[[str], bool],
        on_change: Callable[[str], None],
        template_queues: int,
    ) -> None:
        """`ask` sends a request to a nameserver and returns what the given function reads from the
        answer; `is_connected` says whether a connection to an address is open."""
        self._runtime = runtime
        self._tasks = tasks
        self._routes = routes
        self._ask_nameserver = ask
        self._is_connected = is_connected
        self._on_change = on_change
        self._template_queues = template_queues
        self._wanted: dict[str, bool] = {}  # topic -> may be created from the template
        self._guessed: dict[str, None] = {}  # topics whose route is the template's
        self._fetching: dict[str, asyncio.Future[TopicRoute]] = {}
        self._outdated: dict[str, None] = {}  # changed while they were being fetched
        self._asked_at: dict[str, float] = {}
        self._missing_since: dict[tuple[str, str], float] = {}
        self._losses = 0
        self._regaining = False
        self.closed = False

    async def route(self, topic: str, *, refresh: bool, create: bool) -> TopicRoute:
        """The known route; a fresh one if none is known, or with `refresh`; see
        ClientCore.route."""
        self._wanted[topic] = self._wanted.get(topic, False) or create
        known = self._routes.route(topic)
        if known is not None and not refresh:
            return known
        try:
            return await asyncio.shield(self._fetch(topic))
        except SaturnError:
            if known is not None:
                return known
            raise

    def refresh_soon(self, topic: str) -> None:
        """Ask again because something failed; at most once a second per topic."""
        self._wanted.setdefault(topic, False)
        now = self._runtime.monotonic()
        if not self.closed and now - self._asked_at.get(topic, -1e9) >= REFRESH_PAUSE_S:
            self._fetch(topic)

    def on_routes_changed(self, topics: Iterable[str]) -> None:
        """Refresh these routes: a nameserver says that they changed."""
        for topic in topics:
            for each in (topic, *self._guessed) if topic == AUTO_CREATE_TOPIC else (topic,):
                if each in self._fetching:
                    self._outdated[each] = None
                elif each in self._wanted and not self.closed:
                    self._fetch(each)

    def broker_lost(self) -> None:
        """Refresh routes after the connection to a broker broke: perhaps no nameserver names it any
        more."""
        self.on_routes_changed([topic for topic, _ in self._missing_since])

    def nameserver_lost(self) -> None:
        """Ask for everything again after the connection to the nameserver in use broke."""
        self._losses += 1
        if self._wanted and not self._regaining and not self.closed:
            self._regaining = True
            self._tasks.keep(self._regain, name="client-nameserver")

    async def _regain(self) -> None:
        pause = REGAIN_PAUSE_S
        while not self.closed:
            losses = self._losses
            try:
                for topic in list(self._wanted):
                    await self._renew(topic)
                if losses == self._losses:
                    break
            except (ConnectionLost, RequestTimeout) as error:
                log.debug("no nameserver answers, again in %g s: %s", pause, error)
            await self._runtime.sleep(pause)
            pause = min(2 * pause, REGAIN_PAUSE_MAX_S)
        self._regaining = False

    async def _renew(self, topic: str) -> None:
        """Fetch a route; an error of the network is raised, an error in the answer is not."""
        try:
            await asyncio.shield(self._fetch(topic))
        except (ConnectionLost, RequestTimeout):
            raise
        except SaturnError as error:
            log.debug("route of %s not refreshed: %s", topic, error)

    async def poll(self, interval: float) -> None:
        """Refresh every route again and again, until cancelled."""
        while True:
            await self._runtime.sleep(interval)
            for topic in list(self._wanted):
                try:
                    await self._renew(topic)
                except SaturnError as error:
                    log.debug("route of %s not refreshed: %s", topic, error)

    def _fetch(self, topic: str) -> asyncio.Future[TopicRoute]:
        """The fetch of a route that is under way, or a new one."""
        done = self._fetching.get(topic)
        if done is None:
            done = self._fetching[topic] = self._runtime.create_future()
            done.add_done_callback(_seen)
            self._tasks.once(
                partial(self._fetch_into, done, topic),
                name=f"route {topic}",
                failed=partial(_fail, done),
            )
        return done

    async def _fetch_into(self, done: asyncio.Future[TopicRoute], topic: str) -> None:
        try:
            route = await self._newest(topic)
        except SaturnError as error:
            _fail(done, error)
            return
        except asyncio.CancelledError:
            done.cancel()
            raise
        finally:
            self._outdated.pop(topic, None)
            self._fetching.pop(topic, None)
        route = self._with_missing(topic, route)
        changed = self._routes.update(topic, route)
        if not done.done():
            done.set_result(route)
        if changed:
            self._on_change(topic)

    async def _newest(self, topic: str) -> TopicRoute:
        """Ask until no notice has come meanwhile: it may tell of a topic that did not exist yet."""
        while True:
            self._outdated.pop(topic, None)
            try:
                route = await self._ask(topic)
            except (TopicNotExist, RouteNotFound):
                if topic not in self._outdated:
                    raise
            else:
                if topic not in self._outdated:
                    return route

    async def _ask(self, topic: str) -> TopicRoute:
        self._asked_at[topic] = self._runtime.monotonic()
        route = await self._find(topic)
        leaderless: list[str] = []
        if route is None:
            has_moved_on, leaderless = await self._look_round(topic)
            if has_moved_on:
                route = await self._find(topic)
        if route is not None:
            return route
        none = " and none may create it" if self._wanted.get(topic) else ""
        then = "create it first (saturnmq topic create)"
        if leaderless:
            then = (
                f"{' and '.join(leaderless)} may have it, without a master now: bring that back, "
                "or promote a slave (saturnmq admin promote), before you create it"
            )
        raise TopicNotExist(f"no route of topic {topic!r}: no broker serves it{none}; {then}")

    async def _look_round(self, topic: str) -> tuple[bool, list[str]]:
        """Whether the nameserver that was asked knows no broker, and another one, which does, is
        in use now; and the broker names without a master. RouteNotFound: none knows any."""
        asked = 0

        def read(answer: Command) -> list[str]:
            nonlocal asked
            asked += 1
            brokers = brokers_in(answer)
            if not brokers:
                raise RouteNotFound(
                    f"no route of topic {topic!r}: no nameserver knows a broker yet; start one, "
                    "or look at the brokers' namesrvAddr"
                )
            return [data.broker_name for data in brokers if data.master is None]

        request = Command.request(RequestCode.GET_BROKER_CLUSTER_INFO)
        leaderless = await self._ask_nameserver(request, read)
        return asked > 1, leaderless

    async def _find(self, topic: str) -> TopicRoute | None:
        route = await self._answer(topic)
        if route is not None:
            self._guessed.pop(topic, None)
            return route
        if self._wanted.get(topic) and (
            topic in self._guessed or self._routes.route(topic) is None
        ):
            template = await self._answer(AUTO_CREATE_TOPIC)
            if template is not None:
                route = from_template(topic, template, self._template_queues)
                if route.queues:
                    self._guessed[topic] = None
                    return route
        return None

    async def _answer(self, topic: str) -> TopicRoute | None:
        ext = {"topic": topic, "acceptStandardJsonOnly": "true", "saturnWatch": "true"}
        request = Command.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext)
        route: TopicRoute | None = await self._ask_nameserver(request, _read_route, ok=ANSWERED)
        return route

    def _with_missing(self, topic: str, route: TopicRoute) -> TopicRoute:
        """`route`, completed with brokers that a freshly started nameserver does not know yet."""
        known = self._routes.route(topic)
        if known is None:
            return route
        now = self._runtime.monotonic()
        names = {data.broker_name for data in route.brokers}
        for data in known.brokers:
            key = (topic, data.broker_name)
            if data.broker_name in names:
                self._missing_since.pop(key, None)
                continue
            if key not in self._missing_since:
                self._missing_since[key] = now
                self._runtime.call_later(MISSING_S + 0.1, self.on_routes_changed, (topic,))
            lives = any(self._is_connected(address) for address in data.addresses.values())
            if not lives or now - self._missing_since[key] >= MISSING_S:
                del self._missing_since[key]
                continue
            route.brokers.append(data)
            route.queues += [each for each in known.queues if each.broker_name == data.broker_name]
        route.brokers.sort(key=lambda data: data.broker_name)
        route.queues.sort(key=lambda data: data.broker_name)
        return route


def _read_route(answer: Command) -> TopicRoute | None:
    """The route in the answer, if there is one."""
    if answer.code != ResponseCode.SUCCESS or not answer.body:
        return None
    return TopicRoute.from_json(fastjson.loads(answer.body))


def _fail(done: asyncio.Future[TopicRoute], error: SaturnError) -> None:
    if not done.done():
        done.set_exception(error)


def _seen(done: asyncio.Future[TopicRoute]) -> None:
    if not done.cancelled():
        done.exception()  # perhaps nobody waits any more
