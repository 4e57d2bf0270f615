"""Answers of a nameserver that many ask for: encoded once, until a route changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from saturnmq.protocol import fastjson

from .routes import RouteTable

ROUTES_BYTES_MAX = 4 << 20  # of routes of single topics


class EncodedAnswers:
    """Bodies of answers about one table of routes."""

    def __init__(self, routes: RouteTable) -> None:
        self._routes = routes
        self._as_of = -1  # changes of the table
        self._views: dict[int, bytes] = {}
        self._topics: dict[str, bytes] = {}
        self._topics_bytes = 0

    def _forget_if_changed(self) -> None:
        if self._as_of != self._routes.changes:
            self._as_of = self._routes.changes
            self._views.clear()
            self._topics.clear()
            self._topics_bytes = 0

    def view(self, code: int, view: Callable[[], Any]) -> bytes:
        """A view of the whole table, which a request of this code asks for."""
        self._forget_if_changed()
        body = self._views.get(code)
        if body is None:
            body = self._views[code] = fastjson.dumps(view())
        return body

    def route(self, topic: str, order: str | None = None) -> bytes:
        """The route of this topic, with its order configuration. TopicNotExist: it has none."""
        if order is not None:
            route = self._routes.route(topic)
            route.order_topic_conf = order
            return fastjson.dumps(route.to_json())
        self._forget_if_changed()
        body = self._topics.get(topic)
        if body is None:
            body = fastjson.dumps(self._routes.route(topic).to_json())
            if self._topics_bytes + len(body) > ROUTES_BYTES_MAX:
                self._topics.clear()
                self._topics_bytes = 0
            self._topics[topic] = body
            self._topics_bytes += len(body)
        return body
