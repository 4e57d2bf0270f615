"""The socket of one connection to a gRPC port: plain text or TLS by its first bytes, the limits of
connections, and the HTTP/2 behind it.

TLS is ended here, by a memory BIO: the first bytes are read before anybody knows what they are. The
steps of handshakes share turns with those of Remoting (`protocol/tls_link.py`).
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import cast

from saturnmq.gateway.opening import HTTP1_ANSWER, Opening, judge
from saturnmq.protocol.connections import Connections
from saturnmq.protocol.tls import NO_TLS_ANSWER, SESSION_BYTES, Certificates, Tls
from saturnmq.runtime.door import Runtime, Transport, join_address

from .connection import Http2Connection
from .frames import BadFrames
from .grpc_calls import end_late, refuse
from .stream import Stream

log = logging.getLogger(__name__)

BASE_BYTES = 4 << 10  # of an idle connection
LINGER_S = 5.0  # time for the client of a closed connection to read the rest


class GrpcSocket(asyncio.Protocol):
    def __init__(
        self,
        runtime: Runtime,
        connections: Connections,
        begin: Callable[[Stream, str], None],
        tls: Certificates,
        on_refused: Callable[[str, Opening], None],
        on_closed: Callable[[GrpcSocket], None],
        message_max: int,
    ) -> None:
        self._runtime = runtime
        self._connections = connections
        self._tls_context = tls
        self._on_refused = on_refused
        self._on_closed = on_closed
        self.budget = connections.part()
        self.peer_address = ""
        self.closed = False
        self.last_received = runtime.monotonic()
        self._transport: Transport | None = None
        self._start = bytearray()  # before its kind is known, or its handshake has a turn
        self._is_in_line = False  # for a turn of its handshake, or for its frames that came
        self._tls: Tls | None = None
        self._opening_since = 0.0  # 0: it speaks HTTP/2 by now
        self._is_judged = self._is_started = False
        self._unread_since = 0.0
        self._counted = 0
        self.http2 = Http2Connection(
            runtime,
            self.budget,
            self._send,
            lambda stream: begin(stream, self.peer_address),
            refuse,
            message_max,
            connections.turns,
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(Transport, transport)
        host, port = transport.get_extra_info("peername", ("", 0))[:2]
        self.peer_address = join_address(host, port)
        self.last_received = self._opening_since = self._runtime.monotonic()
        if self._connections.admit(self):
            self.closed = True
            self._transport.abort()
            self._on_closed(self)
            return
        self.budget.hold(BASE_BYTES)

    def data_received(self, data: bytes) -> None:
        self.last_received = self._runtime.monotonic()
        if self.closed:
            return
        if self._is_started:
            self._decrypt(data)
        elif self._is_judged and self._tls is None:
            self._plain(data)
        else:
            self._start += data
            if not self._is_judged:
                self._open()
            elif not self._is_in_line:
                self._shake_hands_in_turn()

    def _open(self) -> None:
        kind = judge(self._start)
        if kind is Opening.UNFINISHED:
            self._count()
            return
        context = self._tls_context() if kind is Opening.TLS else None
        self._is_judged = True
        if context is not None:
            self._tls = Tls(context)
            self.budget.hold(SESSION_BYTES)
            self._shake_hands_in_turn()
            return
        start, self._start = bytes(self._start), bytearray()
        if kind is Opening.PLAIN:
            self.http2.start()
            self._plain(start)
        else:
            assert self._transport is not None, "bytes come from a transport"
            self._on_refused(self.peer_address, kind)
            if kind is Opening.HTTP1:
                self._transport.write(HTTP1_ANSWER)
            elif kind is Opening.TLS:
                self._transport.write(NO_TLS_ANSWER)
            self.close(f"it speaks {kind.value}")

    def _shake_hands_in_turn(self) -> None:
        assert self._transport is not None, "bytes come from a transport"
        self._is_in_line = True
        if not self._connections.turns.when_free(self._shake_hands):
            self._count()
            self._read_on()

    def _shake_hands(self) -> None:
        """One step of the handshake."""
        self._is_in_line = False
        if self.closed or self._transport is None:
            return
        self._read_on()
        start, self._start = bytes(self._start), bytearray()
        self._decrypt(start)

    def _decrypt(self, data: bytes) -> None:
        assert self._tls is not None, "it speaks TLS"
        assert self._transport is not None, "bytes come from a transport"
        try:
            plain, out, is_over = self._tls.received(data)
        except ssl.SSLError as error:
            log.debug("%s: TLS: %s", self.peer_address, error.reason or error)
            self._transport.write(self._tls.last_word())
            self.close("TLS failed")
            return
        if out:
            self._transport.write(out)
        if self._tls.is_open and not self._is_started:
            self._is_started = True
            self.http2.start()
        if plain:
            self._plain(plain)
        if is_over:
            self.close("closed by the client")

    def _plain(self, data: bytes) -> None:
        try:
            self.http2.received(data)
            if self.http2.is_greeted:
                self._opening_since = 0.0
        except BadFrames as error:
            log.info("%s: %s", self.peer_address, error)
            self._send([self.http2.goodbye(error)])
            self.close(str(error))
        if self.http2.is_behind and not (self.closed or self._is_in_line):
            self._is_in_line = True
            self._connections.turns.wait(self._go_on)
            self._read_on()

    def _go_on(self) -> None:
        """Handle more of the frames that came in a read before."""
        self._is_in_line = False
        if not self.closed:
            self._plain(b"")
            self._read_on()

    def _read_on(self) -> None:
        """Start or stop reading, as the state requires."""
        if self._transport is None or self.closed:
            return
        if self._unread_since or self._is_in_line:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _send(self, pieces: list[bytes]) -> None:
        if self._transport is None or self.closed:
            return
        data = b"".join(pieces)
        if self._tls is not None:
            if not self._tls.is_open:
                return  # nothing can be said before the handshake is over
            try:
                data = self._tls.send(data)
            except ssl.SSLError as error:
                self.abort(f"TLS: {error.reason or error}")
                return
        self._transport.write(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._shut()

    def pause_writing(self) -> None:
        self._unread_since = self._runtime.monotonic()
        self.http2.pause()
        self._read_on()
        self._count()

    def resume_writing(self) -> None:
        self._unread_since = 0.0
        if self._transport is not None and not self.closed:
            self._read_on()
            self.http2.resume()
        self._count()

    # the end

    def close(self, reason: str) -> None:
        """Send what waits for the client, then close."""
        self._end(linger=True)

    def abort(self, reason: str) -> None:
        """Close without sending what waits."""
        self._end(linger=False)

    def _end(self, *, linger: bool) -> None:
        if self.closed or self._transport is None:
            return
        transport = self._transport
        if linger and not self._unread_since:  # nothing counts the rest any more
            transport.close()
            if transport.get_write_buffer_size():
                self._runtime.call_later(LINGER_S, transport.abort)
        else:
            transport.abort()
        self._shut()

    def _shut(self) -> None:
        if self.closed:
            return
        self.closed = True
        self.http2.close()
        self.budget.close()
        self._connections.leave(self)
        self._on_closed(self)

    # use of memory and time (`protocol/connections.py`)

    @property
    def unsent(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def _count(self) -> None:
        if not self.closed:
            waiting = self.unsent + len(self._start) + self.http2.buffered
            more, self._counted = waiting - self._counted, waiting
            self.budget.hold(more)
            if more > 0:
                self.budget.has_room(0)  # if there is none, slow connections give way

    def unfinished_s(self, now: float) -> float:
        opening_s = now - self._opening_since if self._opening_since else 0.0
        return max(opening_s, self.http2.partial_s(now))

    def unread_s(self, now: float) -> float:
        return now - self._unread_since if self._unread_since else 0.0

    def held_up_s(self, now: float) -> float:
        started_s = self.unfinished_s(now) if self._start else 0.0
        return self.unread_s(now) or max(started_s, self.http2.held_up_s(now))

    def excuse(self, now: float) -> None:
        self.last_received = now
        self._opening_since = self._opening_since and now
        self._unread_since = self._unread_since and now
        self.http2.excuse(now)

    def rest(self, now: float) -> None:
        """Periodic care: count what waits, and ask a silent client whether it lives."""
        before = self._counted
        self._count()
        if self._unread_since and self._counted < before:
            self._unread_since = now
        silent_s = now - self.last_received
        if not self._opening_since and silent_s > self._connections.limits.idle_s / 3:
            self.http2.ping()
        for stream in self.http2.late(now, self._connections.limits.frame_s):
            end_late(stream)

    def give_way(self) -> None:
        self.abort("memory is short")
