"""TLS of a connection that a server accepted, on a port that takes plain text, too.

A TLS client begins with a record of type 22; neither a Remoting frame nor HTTP/2 does. RocketMQ's
servers tell the two apart in this way, too (`tls.server.mode=permissive`).
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable

HANDSHAKE = 0x16
NO_TLS_ANSWER = bytes.fromhex("15 0301 0002 02 28")
"""A fatal alert of TLS, handshake_failure: there is no certificate."""
READ = 64 << 10
SESSION_BYTES = 18 << 10  # of the memory of an idle one

Certificates = Callable[[], ssl.SSLContext | None]
"""The certificate in use, for each new connection; None: there is no TLS."""


class Tls:
    """TLS of one connection, without a socket."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._in, self._out, server_side=True)
        self.is_open = False

    def received(self, data: bytes) -> tuple[bytes, bytes, bool]:
        """(plain text, bytes to send, is it at its end). ssl.SSLError: it cannot go on."""
        self._in.write(data)
        found, is_over = [], False
        try:
            if not self.is_open:
                self._object.do_handshake()
                self.is_open = True
            while part := self._object.read(READ):
                found.append(part)
            is_over = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            is_over = True
        return b"".join(found), self._out.read(), is_over

    def send(self, data: bytes) -> bytes:
        self._object.write(data)
        return self._out.read()

    def last_word(self) -> bytes:
        """The alert that tells the client why it cannot go on."""
        return self._out.read()

    def goodbye(self) -> bytes:
        """The end of what this side sends."""
        with contextlib.suppress(ssl.SSLError):  # the peer has not answered it yet, or has left
            self._object.unwrap()
        return self._out.read()
