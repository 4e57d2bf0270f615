"""Requests of callers without an event loop: connections kept for the next one, nameservers asked
in turn. A process that lives for one task pays for its requests and nothing else.

A request is repeated when its connection breaks, because a kept connection may lead to a process
that has restarted: requests here must be safe to carry out twice.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any

from saturnmq.client.pool import Pool
from saturnmq.client.tls import context_of
from saturnmq.protocol import fastjson
from saturnmq.protocol.channel import Channel
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.credentials import credentials_of
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.route import TopicRoute
from saturnmq.runtime.errors import (
    ConnectFailed,
    ConnectionLost,
    RouteNotFound,
    SaturnError,
    SystemBusy,
    TopicNotExist,
    error_for,
)
from saturnmq.runtime.native import CONNECT_TIMEOUT_S, NativeRuntime

TRUSTED_S = 1.0  # a longer idle connection is checked: the peer may have closed it


class NameserversUnreachable(ConnectFailed):
    """No nameserver could be asked"""


class Channels(Pool[str, Channel]):
    """Connections by address; `take` raises ConnectFailed."""

    def __init__(self) -> None:
        runtime, tls, credentials = NativeRuntime(), context_of(None), credentials_of(None)
        super().__init__(
            lambda address: Channel(
                runtime, address, CONNECT_TIMEOUT_S, tls=tls, credentials=credentials
            ),
            Channel.close,
            usable=lambda channel: channel.idle_s() < TRUSTED_S or channel.is_alive(),
        )

    def request(self, address: str, command: Command, timeout_s: float) -> Command:
        """The response, with any code. Raises ConnectFailed, ConnectionLost or RequestTimeout."""
        try:
            return self._once(address, command, timeout_s)
        except ConnectFailed:
            raise
        except ConnectionLost:
            return self._once(address, command, timeout_s)

    def _once(self, address: str, command: Command, timeout_s: float) -> Command:
        channel = self.take(address)
        try:
            response = channel.request(command, timeout_s)
        except BaseException:
            channel.close()
            raise
        self.give_back(address, channel)
        return response

    def request_all(
        self, asks: Sequence[tuple[str, Command]], timeout_s: float
    ) -> Generator[Command | SaturnError]:
        """Send all requests at once, then give the responses in the order of the requests, or the
        error in place of a response (nothing is repeated). A body is valid until the next
        response.

        Only for few and small requests: nothing is read while they are sent. A generator that is
        not read to its end closes its connections."""
        by_address: dict[str, list[Command]] = {}
        for address, command in asks:
            by_address.setdefault(address, []).append(command)
        under_way: dict[str, Channel] = {}
        failed: dict[str, SaturnError] = {}
        idle = False  # nothing is under way
        try:
            for address, commands in by_address.items():
                try:
                    channel = under_way[address] = self.take(address)
                    channel.ask_all(commands, timeout_s)
                except SaturnError as error:
                    failed[address] = error
            for number, (address, _) in enumerate(asks, 1):
                found: Command | SaturnError | None = failed.get(address)
                if found is None:
                    try:
                        found = under_way[address].answer()
                    except SaturnError as error:
                        found = failed[address] = error
                idle = number == len(asks)
                yield found
        finally:
            for address, channel in under_way.items():
                if idle and address not in failed:
                    self.give_back(address, channel)
                else:
                    channel.close()


class Nameservers:
    """Asks one after the other until one answers; the next request begins with that one."""

    def __init__(self, addresses: Iterable[str], channels: Channels, timeout_s: float) -> None:
        self._addresses = list(addresses)
        self._channels = channels
        self._timeout_s = timeout_s
        self._routes: dict[str, tuple[float, TopicRoute]] = {}

    def ask(self, code: RequestCode, ext: Mapping[str, str] | None = None) -> dict[str, Any]:
        """The JSON object in the answer. TopicNotExist: no answering nameserver knows the topic;
        one that has just started may know less than another. NameserversUnreachable: none
        answers."""
        problems: dict[str, SaturnError] = {}
        for address in list(self._addresses):
            try:
                command = Command.request(code, dict(ext or {}))
                return document(address, self._channels.request(address, command, self._timeout_s))
            except SaturnError as error:
                problems[address] = error
                self._addresses.append(self._addresses.pop(0))
        for problem in problems.values():
            if isinstance(problem, TopicNotExist | RouteNotFound):
                raise problem
        raise NameserversUnreachable(
            f"no answer of any nameserver of {', '.join(self._addresses)} (option "
            "endpoints): check that it runs and can be reached from here\n"
            + "; ".join(f"{address}: {error}" for address, error in problems.items())
        )

    def route(self, topic: str, max_age_s: float = 0.0) -> TopicRoute | None:
        """The route of the topic, at most so many seconds old; None: the topic is nowhere. While no
        nameserver answers, the last route is used; NameserversUnreachable if there is none."""
        asked_at, route = self._routes.get(topic, (0.0, None))
        now = time.monotonic()
        if route is not None and now - asked_at < max_age_s:
            return route
        ext = {"topic": topic, "acceptStandardJsonOnly": "true"}
        try:
            route = TopicRoute.from_json(self.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext))
        except (TopicNotExist, RouteNotFound):
            self._routes.pop(topic, None)
            return None
        except NameserversUnreachable:
            if route is None:
                raise
        self._routes[topic] = now, route
        return route


def document(address: str, response: Command) -> dict[Any, Any]:
    """The JSON object in a response; an error response is raised, and so is SystemBusy for another
    body."""
    body = success(response).body
    value = fastjson.loads(body) if body else {}
    if not isinstance(value, dict):
        raise SystemBusy(f"{address} answers with {str(value)[:60]}, a JSON object is wanted")
    return value


def success(response: Command) -> Command:
    """The response; an error response is raised."""
    if response.code != ResponseCode.SUCCESS:
        raise error_for(response.code, response.remark)
    return response
