"""The door of a gateway: gRPC over HTTP/2 on the event loop of its node, in plain text and TLS on
one port (`http2/`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from saturnmq.gateway.calls import CallFailed, GrpcStatus
from saturnmq.gateway.http2.grpc_calls import end_with
from saturnmq.gateway.http2.socket_side import GrpcSocket
from saturnmq.gateway.http2.stream import Stream
from saturnmq.gateway.opening import Opening
from saturnmq.protocol.connections import Connections
from saturnmq.protocol.tls import Certificates
from saturnmq.runtime.door import Listener, Runtime

log = logging.getLogger(__name__)

MESSAGES = 10  # of the largest that there are, in one request: Rust's client sends several
PROPERTIES_BYTES = 64 << 10  # of a message beside its body, at most

Begin = Callable[[Stream, str], None]
"""Told of a call of this client's, when its headers are there, and when all of its request is."""
TOO_EARLY = CallFailed(GrpcStatus.UNAVAILABLE, "the node starts: try again")


class Door:
    """The server. It listens from `listen` on, and serves from `serve` on; calls that come before
    are told to try again."""

    def __init__(
        self,
        runtime: Runtime,
        connections: Connections,
        tls: Certificates,
        body_max: int,
    ) -> None:
        """`body_max`: the largest body of a message that the node takes."""
        self._runtime = runtime
        self._connections = connections
        self._tls = tls
        self._message_max = MESSAGES * (body_max + PROPERTIES_BYTES)
        self._begin_call: Begin | None = None
        self._listener: Listener | None = None
        self._open: set[GrpcSocket] = set()
        self._warned = False

    async def listen(self, host: str, port: int) -> str:
        """Bind the port, any free one for 0; its address. ConfigError: it is not free."""
        self._listener = await self._runtime.listen(host, port, self._accept)
        return self._listener.address

    def serve(self, begin: Begin) -> None:
        self._begin_call = begin

    async def close(self) -> None:
        """End all calls."""
        if self._listener is not None:
            self._listener.close()
        for each in list(self._open):
            each.http2.leave()
            each.http2.flush()
            each.close("the server ends")
        await asyncio.sleep(0)

    def _accept(self) -> GrpcSocket:
        made = GrpcSocket(
            self._runtime,
            self._connections,
            self._begin,
            self._tls,
            self._refused,
            self._open.discard,
            self._message_max,
        )
        self._open.add(made)
        return made

    def _refused(self, peer: str, kind: Opening) -> None:
        """Tell of the first connection that nothing here serves; there may be thousands."""
        level = logging.DEBUG if self._warned else logging.WARNING
        self._warned = True
        if kind is Opening.TLS:
            text = "there is no certificate; set tlsCertPath and tlsKeyPath"
        else:
            text = "this port serves gRPC only"
        log.log(level, "%s speaks %s: %s", peer, kind.value, text)

    def _begin(self, stream: Stream, peer: str) -> None:
        if self._begin_call is None:
            end_with(stream, TOO_EARLY)
        else:
            self._begin_call(stream, peer)
