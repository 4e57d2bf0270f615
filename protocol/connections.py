"""The connections of one server: their number, their origins, and the choice of those that must
end.

A connection beyond the limits, of the process or of its peer's address (or IPv6 network, /64), is
answered once, with SYSTEM_BUSY and the limit, and closed. A connection ends if it

- has not sent a whole request `frame_s` after it came, or after the first byte of that request;
- has sent nothing for `idle_s` (RocketMQ's serverChannelMaxIdleTimeSeconds);
- has not read its pending bytes for `frame_s`.

Memory. Each connection has a part of the process's budget: its receive buffer, and replies that its
peer does not read. When memory is short, connections give way that have left a request unfinished,
or replies unread, for longer than a moment, the oldest first (`Endpoint.give_way`). A peer that
sends and reads at a usual speed is not affected.
"""

from __future__ import annotations

import logging
from asyncio import BaseProtocol
from collections import Counter
from collections.abc import Callable, Iterator
from ipaddress import IPv6Address
from itertools import chain, islice
from typing import Protocol

from saturnmq.runtime.door import Runtime
from saturnmq.runtime.errors import SystemBusy
from saturnmq.runtime.turns import Turns

from .budget import Budget
from .endpoint import Endpoint, Handler
from .inner_endpoint import Dropped, InnerClient, InnerEndpoint
from .limits import Limits
from .remoting import ReadFrame, parse_frame
from .tls import Certificates
from .tls_link import TlsLink

log = logging.getLogger(__name__)

SWEEP_S = 1.0  # between two looks at a connection
SLICE = 1000  # connections examined in one call
REFUSING_MAX = 64  # refused connections that get the reason; further ones are cut
REFUSING_S = 3.0  # time for a refused connection to send a request
STOOD_S = 3.0  # this process stood still if it examined none for so long
RELIEF_S = 0.1  # between two searches for connections that give way
SLOW_S = 1.0  # a connection that needs less never gives way
SHARE = 4  # a connection may hold this part of the process's memory
TELL_S = 10.0  # between two lines of the log


def network(host: str) -> str:
    """The key under which connections count together: an IPv4 address, or an IPv6 network of 64
    bits, since one machine may have all of its addresses."""
    try:
        address = IPv6Address(host.strip("[]").partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return f"{IPv6Address(int(address) >> 64 << 64)}/64"


class Connection(Protocol):
    """A connection as the limits see it: an Endpoint, or a connection of gRPC
    (`gateway/http2/socket_side.py`)."""

    closed: bool
    last_received: float
    peer_address: str
    budget: Budget

    @property
    def unsent(self) -> int:
        """Bytes that the socket has not taken yet."""
        ...

    def close(self, reason: str) -> None: ...

    def abort(self, reason: str) -> None: ...

    def unfinished_s(self, now: float) -> float: ...

    def unread_s(self, now: float) -> float: ...

    def held_up_s(self, now: float) -> float: ...

    def excuse(self, now: float) -> None: ...

    def rest(self, now: float) -> None: ...

    def give_way(self) -> None: ...


class Connections:
    """The accepted connections; `accept` makes the protocol object of a new one."""

    def __init__(
        self,
        runtime: Runtime,
        limits: Limits,
        handler: Handler,
        on_close: Callable[[Endpoint], None],
        *,
        read_frame: ReadFrame = parse_frame,
    ) -> None:
        self._runtime = runtime
        self.limits = limits
        self._handler = handler
        self._on_close = on_close
        self._read_frame = read_frame
        self.turns = Turns(runtime)
        self._hosts: dict[Connection, str] = {}
        self._by_host: Counter[str] = Counter()
        self._refusing: dict[Connection, None] = {}
        self._sweep: Iterator[Connection] = iter(())
        self._next_sweep = self._next_relief = 0.0
        self._called_at = runtime.monotonic()
        self._logged_at, self._unlogged = -TELL_S, 0
        self.budget = Budget(limits.memory_bytes, "memoryBudgetBytes")
        self.budget.relieve = self._relieve
        self.certificates: Certificates | None = None  # with these, TLS is taken beside plain text
        self.refused = 0
        self.ended = 0  # too slow, silent, or closed when memory was short

    def __len__(self) -> int:
        return len(self._hosts)

    def close(self, why: str) -> None:
        """Close all connections once the bytes for their peers are sent."""
        for endpoint in [*self._hosts, *self._refusing]:
            endpoint.close(why)

    def accept(self) -> BaseProtocol:
        """The protocol object of a new connection."""
        endpoint = Endpoint(
            self._runtime,
            self._handler,
            self._left,
            server=True,
            turns=self.turns,
            on_open=self._came,
            budget=self.part(),
            read_frame=self._read_frame,
        )
        if self.certificates is None:
            return endpoint
        return TlsLink(self._runtime, endpoint, self.certificates, self.turns)

    def accept_inside(
        self, peer_address: str, client: InnerClient, on_drop: Dropped
    ) -> InnerEndpoint:
        """A connection of a client that is in this process, on behalf of this peer."""
        return InnerEndpoint(
            self._runtime,
            self._handler,
            peer_address,
            client,
            on_open=self._came,
            on_close=self._left,
            on_drop=on_drop,
            budget=self.part(),
        )

    def part(self) -> Budget:
        """The budget of one connection."""
        name = f"of one connection: memoryBudgetBytes / {SHARE}"
        return Budget(self.budget.limit // SHARE, name, self.budget)

    def _came(self, endpoint: Endpoint) -> None:
        why = self.admit(endpoint)
        if not why:
            return
        if len(self._refusing) >= REFUSING_MAX:
            endpoint.abort(why)
            return
        self._refusing[endpoint] = None
        endpoint.refuse(SystemBusy(why))

    def _left(self, endpoint: Endpoint) -> None:
        self._refusing.pop(endpoint, None)
        if self.leave(endpoint):
            self._on_close(endpoint)

    def admit(self, connection: Connection) -> str:
        """Count a new connection, and watch it from now on; the reason if it is refused."""
        host = network(connection.peer_address.rpartition(":")[0])
        limits, count = self.limits, self._by_host[host]
        if len(self._hosts) >= limits.connections:
            why = f"{len(self._hosts)} connections are open, the limit is maxConnections"
        elif count >= limits.per_address:
            why = f"{count} connections of {host} are open, the limit is maxConnectionsPerAddress"
        else:
            self._hosts[connection] = host
            self._by_host[host] = count + 1
            return ""
        self.refused += 1
        why += ": close those that are not needed, or raise it"
        self._log_some("connection of %s refused: %s", connection.peer_address, why)
        return why

    def leave(self, connection: Connection) -> bool:
        """Count it no more; whether it was counted."""
        host = self._hosts.pop(connection, None)
        if host is None:
            return False
        self._by_host[host] -= 1
        if not self._by_host[host]:
            del self._by_host[host]
        return True

    # ending connections

    async def run(self) -> None:
        """Expire connections until cancelled, for a server without such a loop."""
        while True:
            await self._runtime.sleep(SWEEP_S)
            self.expire(self._runtime.monotonic())

    def expire(self, now: float) -> None:
        """End overdue connections. To be called every second at least; each call examines some of
        them."""
        stood_s, self._called_at = now - self._called_at, now
        if stood_s > STOOD_S:
            for endpoint in [*self._hosts, *self._refusing]:
                endpoint.excuse(now)
        looked_at = 0
        for endpoint in islice(self._sweep, SLICE):
            looked_at += 1
            self._look_at(endpoint, now)
        if looked_at < SLICE and now >= self._next_sweep:
            self._next_sweep = now + SWEEP_S
            self._sweep = chain(list(self._hosts), list(self._refusing))

    def _look_at(self, endpoint: Connection, now: float) -> None:
        if endpoint.closed:
            return
        limits = self.limits
        endpoint.rest(now)
        unfinished_s, unread_s = endpoint.unfinished_s(now), endpoint.unread_s(now)
        silent_s = now - endpoint.last_received
        if endpoint in self._refusing:
            if unfinished_s > REFUSING_S or silent_s > REFUSING_S:
                endpoint.abort("refused")
        elif unread_s > limits.frame_s:
            self._end(endpoint, f"has not read {endpoint.unsent} bytes for {unread_s:.0f} s")
        elif unfinished_s > limits.frame_s:
            self._end(
                endpoint,
                f"has sent no whole request within {limits.frame_s:g} s (frameTimeoutSeconds)",
            )
        elif not unread_s and silent_s > limits.idle_s:
            self._end(
                endpoint,
                f"has sent nothing for {limits.idle_s:g} s (serverChannelMaxIdleTimeSeconds)",
            )

    def _end(self, endpoint: Connection, why: str) -> None:
        self.ended += 1
        self._log_some("connection of %s ends: it %s", endpoint.peer_address, why)
        endpoint.abort(why)

    def _relieve(self) -> None:
        """Have connections give way while memory is short."""
        now = self._runtime.monotonic()
        if now < self._next_relief:
            return
        self._next_relief = now + RELIEF_S
        slow = [
            (endpoint.held_up_s(now), number, endpoint)
            for number, endpoint in enumerate(self._hosts)
            if endpoint.held_up_s(now) > SLOW_S
        ]
        budget, enough = self.budget, self.budget.limit * 3 // 4
        for seconds, _, endpoint in sorted(slow, reverse=True):
            if budget.used <= enough:
                break
            self.ended += 1
            self._log_some(
                "memory is short: %s gives way; it held %d bytes for %.0f s",
                endpoint.peer_address,
                endpoint.budget.used,
                seconds,
            )
            endpoint.give_way()

    def _log_some(self, text: str, *values: object) -> None:
        """Log some cases only: there may be thousands in a second."""
        self._unlogged += 1
        now = self._runtime.monotonic()
        if now - self._logged_at >= TELL_S:
            log.warning(text + "; %d such cases since the last line", *values, self._unlogged)
            self._logged_at, self._unlogged = now, 0

    # figures

    def status(self) -> dict[str, str]:
        """The figures for the runtime information."""
        budget = self.budget
        return {
            "connections": str(len(self)),
            "connectionsMax": str(self.limits.connections),
            "connectionsRefused": str(self.refused),
            "connectionsEnded": str(self.ended),
            "memoryBudgetBytes": str(budget.limit),
            "memoryUsedBytes": str(budget.used),
            "memoryMostUsedBytes": str(budget.most),
            "memoryRefused": str(budget.refused),
        }
