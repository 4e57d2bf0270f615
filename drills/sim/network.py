"""SimNetwork: TCP between simulated nodes, in memory and in virtual time.

A connection is two one-way streams. Bytes keep their order within a stream and arrive after the
latency of its link, in chunks that have nothing to do with the writes (also one byte at a time),
through `BufferedProtocol.get_buffer` and `buffer_updated` as asyncio would deliver them. Its faults
are those of TCP. A connection dies with any suffix of either stream undelivered. A partition holds
bytes back (TCP would retransmit) and lets connects time out. A dead machine stays silent for a
while before its peers learn of it. Bytes are never altered, lost from the middle, or reordered.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context
from typing import Any

from saturnmq.drills.sim.loop import SimLoop
from saturnmq.runtime.errors import ConfigError, ConnectFailed

Buffer = bytes | bytearray | memoryview
HIGH_WATER = 64 * 1024
CONNECT_TIMEOUT_S = 3.0  # as the native runtime's


class SimListener:
    """A listening port; `address` is what peers connect to."""

    def __init__(
        self,
        network: SimNetwork,
        node: str,
        host: str,
        port: int,
        factory: Callable[[], asyncio.BaseProtocol],
    ) -> None:
        self._network = network
        self.node = node
        self.host = host
        self.port = port
        self.factory = factory
        self.address = f"{host}:{port}"

    def close(self) -> None:
        self._network.unlisten(self)


class SimTransport(asyncio.Transport):
    """One end of a connection, with the part of `asyncio.Transport` that a Remoting endpoint
    uses.
    """

    def __init__(
        self,
        network: SimNetwork,
        node: str,
        local: tuple[str, int],
        remote: tuple[str, int],
        protocol: asyncio.BaseProtocol | None,
        *,
        number: int,
    ) -> None:
        super().__init__({"sockname": local, "peername": remote})
        self._network = network
        self._loop = network.loop
        self.node = node
        self.number = number
        self._context = network.context(node)
        self._protocol: Any = protocol  # none before the connection was accepted
        self.peer: SimTransport = self
        # The stream towards this end: (time of arrival, bytes); None is the peer's orderly end.
        self._inbox: deque[tuple[float, memoryview | None]] = deque()
        self._wake: asyncio.TimerHandle | None = None
        self._read_paused = False
        self._high, self._low = HIGH_WATER, HIGH_WATER // 4
        self._write_paused = False
        self._in_flight = 0  # bytes that this end wrote and the peer has not read yet
        self._last_arrival = 0.0
        self._closing = False
        self._dead = False
        self._ended = False  # the peer's orderly end has been read

    # asyncio.Transport

    def write(self, data: Buffer | Any) -> None:
        if self._closing or self._dead:
            return
        size = len(memoryview(data).cast("B")) if not isinstance(data, bytes) else len(data)
        if not size:
            return
        # The caller may reuse its buffer as soon as write returns, as with a real socket.
        copied = memoryview(bytes(data))
        self._in_flight += size
        self._network.trace.note("net.write", f"{self.number} {size}", copied)
        self.peer._receive(copied)
        if self._in_flight > self._high and not self._write_paused:
            self._write_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Buffer | Any]) -> None:
        self.write(b"".join(bytes(part) for part in list_of_data))

    def close(self) -> None:
        if self._closing or self._dead:
            return
        self._closing = True
        self.peer._receive(None)
        self._cancel_wake()
        self._inbox.clear()
        self._loop.call_soon(self._lose, None, context=self._context)

    def abort(self) -> None:
        if self._dead or (self._closing and not self._in_flight):
            return
        self._closing = True
        self._cancel_wake()
        self._inbox.clear()
        self._loop.call_soon(self._lose, None, context=self._context)
        self.peer._reset_after(self._network.latency(self.node, self.peer.node))

    def is_closing(self) -> bool:
        return self._closing or self._dead

    def get_write_buffer_size(self) -> int:
        return self._in_flight

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return (self._low, self._high)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = HIGH_WATER if high is None else high
        self._low = self._high // 4 if low is None else low

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self._read_paused = True

    def resume_reading(self) -> None:
        self._read_paused = False
        self._schedule()

    def is_reading(self) -> bool:
        return not self._read_paused and not self._closing

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    # the stream towards this end

    def _receive(self, data: memoryview | None) -> None:
        if self._dead or self._closing:
            return
        latency = self._network.latency(self.peer.node, self.node)
        arrival = max(self._last_arrival, self._loop.time() + latency)
        self._last_arrival = arrival
        self._inbox.append((arrival, data))
        self._schedule()

    def _schedule(self) -> None:
        if self._wake is None and self._inbox and not self._read_paused and not self._dead:
            self._wake = self._loop.call_at(self._inbox[0][0], self._deliver, context=self._context)

    def _cancel_wake(self) -> None:
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None

    def _deliver(self) -> None:
        self._wake = None
        if self._dead or self._closing or not self._inbox:
            return
        if self._network.is_blocked(self.peer.node, self.node):
            return  # heal() schedules again
        now = self._loop.time()
        budget = self._network.draw_chunk()
        while self._inbox and not self._read_paused and not self._closing:
            arrival, data = self._inbox[0]
            if arrival > now:
                break
            if data is None:
                self._inbox.popleft()
                self._ended = True
                self._protocol.eof_received()
                self.close()
                return
            if budget <= 0:
                break
            budget -= self._feed(data, budget)
        self._schedule()

    def _feed(self, data: memoryview, budget: int) -> int:
        """Hands the protocol the next chunk; returns its size."""
        is_buffered = isinstance(self._protocol, asyncio.BufferedProtocol)
        size = min(len(data), budget)
        if is_buffered:
            view = memoryview(self._protocol.get_buffer(-1)).cast("B")
            if not len(view):
                raise RuntimeError("get_buffer() returned an empty buffer")
            size = min(size, len(view))
            view[:size] = data[:size]
            view.release()
        arrival, _ = self._inbox.popleft()
        if size < len(data):
            self._inbox.appendleft((arrival, data[size:]))
        self._network.trace.note("net.read", f"{self.number} {size}")
        self.peer._drained(size)
        if is_buffered:
            self._protocol.buffer_updated(size)
        else:
            self._protocol.data_received(bytes(data[:size]))
        return size

    def _drained(self, size: int) -> None:
        self._in_flight -= size
        if self._write_paused and self._in_flight <= self._low and not self._dead:
            self._write_paused = False
            self._loop.call_soon(self._resume_writing, context=self._context)

    def _resume_writing(self) -> None:
        if not self._write_paused and not self._closing and not self._dead:
            self._protocol.resume_writing()

    # ends

    def _reset_after(self, delay: float) -> None:
        """The other end is gone: this end hears of it after `delay`, whatever was still under
        way is lost.
        """
        if not self._dead and not self._closing:
            self._loop.call_later(delay, self._reset, context=self._context)

    def _reset(self) -> None:
        if self._dead or self._closing:
            return
        if self._network.is_blocked(self.peer.node, self.node):
            self._network.park_reset(self)
            return
        self._closing = True
        self._cancel_wake()
        self._inbox.clear()
        self._lose(ConnectionResetError(104, "Connection reset by peer"))

    def _lose(self, error: Exception | None) -> None:
        if self._dead:
            return
        self._dead = True
        self._network.forget(self)
        self._network.trace.note("net.lost", f"{self.number} {type(error).__name__}")
        if self._protocol is not None:
            self._protocol.connection_lost(error)

    def vanish(self) -> None:
        """The machine of this end is gone: nothing is called here any more."""
        self._dead = True
        self._closing = True
        self._cancel_wake()
        self._inbox.clear()
        self._network.forget(self)


class SimNetwork:
    """All links of a simulated cluster. `latency_s` is (low, high) of a one-way trip."""

    def __init__(
        self,
        loop: SimLoop,
        seed: int | str,
        latency_s: tuple[float, float] = (0.00005, 0.001),
        tiny_chunks: float = 0.1,
    ) -> None:
        self.loop = loop
        self.trace = loop.trace
        self._rng = random.Random(f"{seed}/network")
        self._latency_s = latency_s
        self._tiny_chunks = tiny_chunks
        self._listeners: dict[tuple[str, int], SimListener] = {}
        self._transports: dict[int, SimTransport] = {}
        self._blocked: dict[tuple[str, str], int] = {}  # how many partitions hold this way back
        self._slow: dict[tuple[str, str], tuple[float, float]] = {}
        self._contexts: dict[str, Context] = {}
        self._parked: list[SimTransport] = []
        self._next_number = 1
        self._next_port = 40000

    def join(self, node: str, context: Context) -> None:
        """Run the network's callbacks to this node in this context from now on."""
        self._contexts[node] = context

    def context(self, node: str) -> Context | None:
        return self._contexts.get(node)

    def latency(self, source: str, target: str) -> float:
        low, high = self._slow.get((source, target), self._latency_s)
        return self._rng.uniform(low, high)

    def draw_chunk(self) -> int:
        """Draw the size of the next read: mostly a socket buffer full, sometimes next to
        nothing."""
        if self._rng.random() < self._tiny_chunks:
            return self._rng.randint(1, 64)
        return self._rng.choice((1448, 16384, 65536, 262144))

    def listen(
        self, node: str, host: str, port: int, factory: Callable[[], asyncio.BaseProtocol]
    ) -> SimListener:
        if port == 0:
            port = self._draw_port()
        if (host, port) in self._listeners:
            raise ConfigError(f"cannot listen on {host}:{port}: it is in use; choose another port")
        listener = SimListener(self, node, host, port, factory)
        self._listeners[host, port] = listener
        return listener

    def unlisten(self, listener: SimListener) -> None:
        if self._listeners.get((listener.host, listener.port)) is listener:
            del self._listeners[listener.host, listener.port]

    async def connect(
        self, node: str, ip: str, host: str, port: int, protocol: asyncio.BaseProtocol
    ) -> SimTransport:
        await asyncio.sleep(self.latency(node, host) * 2)
        listener = self._listeners.get((host, port))
        if listener is not None and (
            self.is_blocked(node, listener.node) or self.is_blocked(listener.node, node)
        ):
            await asyncio.sleep(CONNECT_TIMEOUT_S)
            raise ConnectFailed(f"no connection to {host}:{port} within {CONNECT_TIMEOUT_S:g} s")
        if listener is None:
            raise ConnectFailed(f"no connection to {host}:{port}: connection refused")
        number = self._next_number
        self._next_number += 2
        local = (ip, self._draw_port())
        near_end = SimTransport(self, node, local, (host, port), protocol, number=number)
        far_end = SimTransport(self, listener.node, (host, port), local, None, number=number + 1)
        near_end.peer, far_end.peer = far_end, near_end
        self._transports[number] = near_end
        self._transports[number + 1] = far_end
        self.trace.note("net.connect", f"{node} {host}:{port} {number}")
        # The kernel has the connection now; the listening process accepts it in a turn of its own.
        self.loop.call_soon(self._accept, listener, far_end, context=self.context(listener.node))
        await asyncio.sleep(0)
        protocol.connection_made(near_end)
        return near_end

    @staticmethod
    def _accept(listener: SimListener, transport: SimTransport) -> None:
        if not transport.is_closing():
            protocol = listener.factory()
            transport.set_protocol(protocol)
            protocol.connection_made(transport)

    def _draw_port(self) -> int:
        self._next_port += 1
        return self._next_port

    def forget(self, transport: SimTransport) -> None:
        self._transports.pop(transport.number, None)

    # faults

    def connections(self, a: str, b: str) -> list[SimTransport]:
        """The `a` ends of all connections between two nodes."""
        return [t for t in list(self._transports.values()) if t.node == a and t.peer.node == b]

    def kill(self, transport: SimTransport) -> None:
        """The connection dies now; both ends hear of it, each after a latency of its own."""
        self.trace.note("fault.kill", str(transport.number))
        for end in (transport, transport.peer):
            end._reset_after(self.latency(end.peer.node, end.node))

    def partition(self, sources: Iterable[str], targets: Iterable[str]) -> None:
        """Blocks bytes from every source to every target; call it twice for both directions."""
        targets = list(targets)
        for source in sources:
            for target in targets:
                self._blocked[source, target] = self._blocked.get((source, target), 0) + 1
                self.trace.note("fault.partition", f"{source} {target}")

    def mend(self, sources: Iterable[str], targets: Iterable[str]) -> None:
        """Ends one `partition` of the same nodes; what was held back arrives now."""
        targets = list(targets)
        for source in sources:
            for target in targets:
                left = self._blocked.get((source, target), 1) - 1
                self._blocked[source, target] = left
                if not left:
                    del self._blocked[source, target]
                self.trace.note("fault.mend", f"{source} {target}")
        self._flow()

    def heal(self) -> None:
        """Everything flows again, at its usual speed; what was held back arrives now."""
        self._blocked.clear()
        self._slow.clear()
        self.trace.note("fault.heal")
        self._flow()

    def _flow(self) -> None:
        parked, self._parked = self._parked, []
        for transport in parked:
            transport._reset_after(0.0)
        for transport in list(self._transports.values()):
            transport._schedule()

    def slow_down(self, source: str, target: str, latency_s: tuple[float, float] | None) -> None:
        """Another latency for one direction of one link; None for the usual one."""
        self.trace.note("fault.slow", f"{source} {target} {latency_s}")
        if latency_s is None:
            self._slow.pop((source, target), None)
        else:
            self._slow[source, target] = latency_s

    def is_blocked(self, source: str, target: str) -> bool:
        return (source, target) in self._blocked

    def park_reset(self, transport: SimTransport) -> None:
        self._parked.append(transport)

    def drop_node(self, node: str, reset_peers_after: float | None) -> None:
        """The machine is gone: its ports close, its ends fall silent, and peers hear a reset after
        the given time.

        None leaves the peers with half-open connections until they give up by themselves.
        """
        for key in [key for key, listener in self._listeners.items() if listener.node == node]:
            del self._listeners[key]
        for transport in list(self._transports.values()):
            if transport.node == node:
                transport.vanish()
                if reset_peers_after is not None and transport.peer.node != node:
                    transport.peer._reset_after(reset_peers_after)
