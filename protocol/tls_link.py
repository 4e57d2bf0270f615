"""The socket of a server's endpoint that takes plain text and TLS: the first byte decides.

A connection of plain text is handed over to its endpoint for good, so TLS costs it nothing. Under
TLS the endpoint goes on as it is. The link is its transport, decrypts what comes and encrypts what
leaves, in a memory BIO, because the first bytes are read before anybody knows what they are.

A step of a handshake costs as much as many requests. So handshakes share a part of each turn of the
loop (`runtime/turns.py`), and a connection whose step has to wait is not read meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Iterable
from typing import Any, cast

from saturnmq.runtime.door import Runtime
from saturnmq.runtime.turns import Turns

from .endpoint import Endpoint
from .remoting import Body
from .tls import HANDSHAKE, NO_TLS_ANSWER, SESSION_BYTES, Certificates, Tls

log = logging.getLogger(__name__)


class TlsLink(asyncio.Protocol):
    """The protocol of the socket, and the transport of the endpoint."""

    def __init__(
        self, runtime: Runtime, endpoint: Endpoint, certificates: Certificates, turns: Turns
    ) -> None:
        self._runtime = runtime
        self._turns = turns
        self._endpoint = endpoint
        self._certificates = certificates
        self._socket: asyncio.Transport
        self._tls: Tls | None = None
        self._is_plain = self._paused = False
        self._unshaken = bytearray()  # of a handshake: what waits for its turn
        self._plain = bytearray()  # of what came: what the endpoint has not taken yet
        self._counted = 0

    # -- the socket's side -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = cast(asyncio.Transport, transport)
        self._endpoint.connection_made(cast(asyncio.BaseTransport, self))

    def data_received(self, data: bytes) -> None:
        if self._tls is not None and self._tls.is_open:
            self._decrypt(self._tls, data)
        elif self._is_plain or (self._tls is None and not self._unshaken and data[0] != HANDSHAKE):
            self._is_plain = True
            self._plain += data
            self._deliver()
        else:
            if self._endpoint.closed:  # nobody would give the memory back
                return
            is_in_line = bool(self._unshaken)
            self._unshaken += data
            self._endpoint.budget.hold(len(data))
            if not is_in_line and not self._turns.when_free(self._shake_hands):
                self._socket.pause_reading()

    def _shake_hands(self) -> None:
        """One step of the handshake."""
        if self._socket.is_closing():
            return
        data, self._unshaken = bytes(self._unshaken), bytearray()
        self._endpoint.budget.hold(-len(data))
        if not self._paused:
            self._socket.resume_reading()
        if self._tls is not None:
            self._decrypt(self._tls, data)
        elif (context := self._certificates()) is None:
            log.warning("%s speaks TLS: there is no certificate", self._endpoint.peer_address)
            self._socket.write(NO_TLS_ANSWER)
            self._endpoint.close("it speaks TLS, and there is no certificate")
        else:
            self._tls = Tls(context)
            self._endpoint.budget.hold(SESSION_BYTES)
            self._decrypt(self._tls, data)

    def _decrypt(self, tls: Tls, data: bytes) -> None:
        endpoint = self._endpoint
        try:
            plain, out, is_over = tls.received(data)
        except ssl.SSLError as error:
            log.debug("%s: TLS: %s", endpoint.peer_address, error.reason or error)
            self._socket.write(tls.last_word())
            endpoint.close("TLS failed")
            return
        if out:
            self._socket.write(out)
        self._plain += plain
        self._deliver()
        if is_over:
            endpoint.close("closed by the peer")

    def _deliver(self) -> None:
        """Give the endpoint what it takes."""
        endpoint, plain = self._endpoint, self._plain
        while plain and not self._paused and not endpoint.closed:
            view = endpoint.get_buffer(len(plain))
            count = min(len(view), len(plain))
            view[:count] = plain[:count]
            del plain[:count]
            endpoint.buffer_updated(count)
        if endpoint.closed:
            return
        endpoint.budget.hold(len(plain) - self._counted)
        self._counted = len(plain)
        if self._is_plain and not plain:
            self._socket.set_protocol(endpoint)
            endpoint.use(self._socket)

    def _go_on(self) -> None:
        if self._socket.is_closing():
            return
        self._deliver()
        if not self._paused:
            self._socket.resume_reading()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._endpoint.connection_lost(exc)
        # Cut the cycle between the two: a node's collector would never free it (`cli/garbage.py`).
        del self._endpoint

    def pause_writing(self) -> None:
        self._endpoint.pause_writing()

    def resume_writing(self) -> None:
        self._endpoint.resume_writing()

    # -- the endpoint's side ---------------------------------------------------------------------

    def write(self, data: Body) -> None:
        if self._tls is None:  # the answer to a connection that is refused before its first byte
            self._socket.write(data)
        elif self._tls.is_open and data:
            self._socket.write(self._tls.send(bytes(data)))

    def writelines(self, list_of_data: Iterable[Body]) -> None:
        self.write(b"".join(list_of_data))

    def pause_reading(self) -> None:
        self._paused = True
        self._socket.pause_reading()

    def resume_reading(self) -> None:
        self._paused = False
        if self._plain:
            self._runtime.call_soon(self._go_on)
        else:
            self._socket.resume_reading()

    def get_write_buffer_size(self) -> int:
        return self._socket.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """As the socket's; not the socket itself, past which nobody may write."""
        return default if name == "socket" else self._socket.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self._socket.is_closing()

    def close(self) -> None:
        if self._tls is not None and not self.is_closing():
            self._socket.write(self._tls.goodbye())
        self._socket.close()

    def abort(self) -> None:
        self._socket.abort()
