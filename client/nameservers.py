"""The nameserver in use, as the Java client chooses it: a client sticks to one, begun with by
chance, and goes on to the next one when it fails.

The routes that nameservers give are kept by `route_updater.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from saturnmq.client.connections import OK, ServerConnections
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.door import Runtime
from saturnmq.runtime.errors import (
    ConnectionLost,
    MalformedFrame,
    RequestTimeout,
    RouteNotFound,
    SaturnError,
    UnsupportedRequest,
)

log = logging.getLogger(__name__)
T = TypeVar("T")


class NameserverRotation:
    """The nameservers, of which one is in use. Loop thread only."""

    def __init__(
        self, runtime: Runtime, connections: ServerConnections, addresses: Sequence[str]
    ) -> None:
        """`addresses` has at least one address."""
        self._connections = connections
        self._addresses = addresses
        self._at = runtime.random.randrange(len(addresses))
        self.trouble: SaturnError | None = None
        """Why the last request had no use; None: a nameserver answered it."""
        self.told = False
        """Whether the application knows of the trouble."""

    @property
    def current(self) -> str:
        """The address of the nameserver in use."""
        return self._addresses[self._at]

    def _go_on(self) -> None:
        self._at = (self._at + 1) % len(self._addresses)

    async def reach(self) -> Endpoint | None:
        """The connection to the first nameserver that can be reached; that one is in use then."""
        for _ in self._addresses:
            try:
                return await self._connections.connect(self.current)
            except SaturnError:
                self._go_on()
        return None

    async def ask(
        self,
        cmd: Command,
        read: Callable[[Command], T],
        timeout_s: float | None = None,
        ok: Collection[int] = OK,
    ) -> T:
        """The result of `read` for the answer of the nameserver in use. When the network fails or
        `read` finds that the answer is malformed, or says nothing (RouteNotFound), the next ones
        are asked in turn."""
        last: SaturnError | None = None
        for _ in self._addresses:
            address = self.current
            request = Command.request(cmd.code, dict(cmd.ext or {}), cmd.body)
            try:
                found = read(await self._connections.invoke(address, request, timeout_s, ok))
            except (ConnectionLost, RequestTimeout, MalformedFrame, RouteNotFound) as error:
                last = error
                if isinstance(error, MalformedFrame):
                    log.warning("nameserver %s answers nonsense: %s", address, error)
                if isinstance(error, RequestTimeout):
                    self._connections.drop(address)
                self._go_on()
            except UnsupportedRequest as error:  # it is none
                self.trouble = type(error)(f"{address}: {error}")
                raise
            else:
                self.trouble, self.told = None, False
                return found
        self.trouble = last
        raise last or RouteNotFound("no nameserver configured")
