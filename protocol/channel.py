"""A connection for one thread that waits for each answer, without a loop or another thread in
between.

A lone synchronous send is all latency, and every change of threads costs as much as the broker's
work. The user of a channel takes the answers in the order of the requests, and has no more requests
open than fit into the buffers on the way. Or it waits for nothing: one thread at a time posts
requests, another one takes what answers there are. Requests of the peer are not expected on it and
are dropped.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial

from saturnmq.runtime import forks, local_sockets
from saturnmq.runtime.door import Runtime, split_address, why_no_connection
from saturnmq.runtime.errors import ConnectFailed, ConnectionLost, RequestTimeout, SaturnError
from saturnmq.runtime.lookout import Lookout

from .credentials import Credentials, sign
from .remoting import (
    FLAG_RESPONSE,
    MAX_FRAME,
    Body,
    Command,
    encode_head,
    frame_size,
    parse_answer,
)

RECEIVE_BUFFER = 16 * 1024


class Channel:
    """One blocking connection to `address`."""

    def __init__(
        self,
        runtime: Runtime,
        address: str,
        timeout_s: float,
        *,
        look_s: float = 0.0,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        """Raises ConnectFailed when no peer answers in `timeout_s`. With `look_s` the thread looks
        for an answer for so long before it sleeps (`runtime/lookout.py`). Over TLS there are
        requests only, no posts. With `credentials` requests and posts are signed."""
        self._now = runtime.monotonic
        self.address, self._credentials = address, credentials
        try:
            host, port = split_address(address)
            near = local_sockets.dial(host, port) if tls is None else None
            self._socket = near or socket.create_connection((host, port), timeout_s)
            if tls is not None:
                self._socket = _secured(self._socket, tls, host)
        except (OSError, ValueError) as error:  # a route may name any address
            raise ConnectFailed(
                f"no connection to {address}: {why_no_connection(error)}"
            ) from error
        if near is None:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(None)
        readable = select.poll()  # select() takes no descriptors above 1023
        readable.register(self._socket, select.POLLIN)
        self._readable = partial(readable.poll, 0)
        self._lookout = Lookout(self._now, self._readable, look_s) if look_s else None
        forks.register(self)
        self._timeout_s = 0.0
        self._view = memoryview(bytearray(RECEIVE_BUFFER))
        self._start = self._end = 0
        self._opaque = self._code = 0
        self._unanswered: deque[int] = deque()  # the opaque of each request
        self._used_at = self._now()

    def idle_s(self) -> float:
        """Seconds since the last answer."""
        return self._now() - self._used_at

    def is_silent_since(self, moment: float) -> bool:
        """Whether no answer came after `moment`. Whoever set a timer then asks this, not `idle_s`:
        a loop's timer may be a millisecond early."""
        return self._used_at <= moment

    def fileno(self) -> int:
        """The number of its socket, for a loop that waits for answers."""
        return self._socket.fileno()

    def is_alive(self) -> bool:
        """Whether the peer has kept the connection open; for a connection that was idle."""
        return not self._readable()

    def request(self, command: Command, timeout_s: float) -> Command:
        """The response to `command`. After RequestTimeout or ConnectionLost it is unknown whether
        the request was carried out, and the channel must be closed."""
        self.ask(command, timeout_s)
        response = self.answer()
        response.body = bytes(response.body)
        return response

    def ask(self, command: Command, timeout_s: float) -> None:
        """The first half of `request`: the caller can do something else before it reads the
        answer."""
        self.ask_all((command,), timeout_s)

    def ask_all(self, commands: Sequence[Command], timeout_s: float) -> None:
        """Send several requests in one go; each has its own `answer`."""
        parts: list[Body] = []
        for command in commands:
            self._opaque = command.opaque = (self._opaque + 1) & 0x7FFFFFFF
            self._code = command.code
            self._unanswered.append(command.opaque)
            parts += self._written(command)
        if timeout_s != self._timeout_s:
            self._set_timeout(timeout_s)
        try:
            self._send(parts)
        except OSError as error:
            raise self._failure(error) from error

    def post(self, command: Command) -> list[Body]:
        """Send a request with the opaque that it has, without waiting for anything; returns the
        parts that the socket did not take: they have to follow, by `post_rest`, before anything
        else. The answer comes by `take`. ConnectionLost: the connection is at its end."""
        self._code = command.code
        return self.post_rest(self._written(command))

    def _written(self, command: Command) -> list[Body]:
        if self._credentials is not None:
            sign(command, self._credentials)
        return [encode_head(command), command.body]

    def post_rest(self, parts: Sequence[Body]) -> list[Body]:
        """Send as much of `parts` as the socket takes now; returns the others, as `post` does."""
        try:
            sent = self._socket.sendmsg(parts, (), socket.MSG_DONTWAIT)
        except BlockingIOError:
            return list(parts)
        except OSError as error:
            raise self._failure(error) from error
        return list(_behind(parts, sent))

    def take(self) -> list[Command]:
        """The answers that are there, in any order; their bodies are valid until the next call.
        ConnectionLost: the connection is at its end."""
        self._shift()
        try:
            self._read(socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        except OSError as error:
            raise self._failure(error) from error
        self._used_at = self._now()
        return [frame for frame in iter(self._frame, None) if frame.flag & FLAG_RESPONSE]

    def answer(self) -> Command:
        """The response to the oldest unanswered request, with the time-out counted from now; its
        body is valid until the next call."""
        until = self._now() + self._timeout_s
        try:
            while True:
                response = self._receive(until)
                if response.flag & FLAG_RESPONSE and response.opaque == self._unanswered[0]:
                    self._unanswered.popleft()
                    self._used_at = self._now()
                    return response
        except OSError as error:
            raise self._failure(error) from error

    def _failure(self, error: OSError) -> SaturnError:
        if isinstance(error, (TimeoutError, BlockingIOError)):
            return RequestTimeout(
                f"no answer from {self.address} to request {self._code} in {self._timeout_s:g} s"
            )
        return ConnectionLost(
            f"connection to {self.address} lost ({error.strerror or error}) before the answer to "
            f"request {self._code}"
        )

    def _set_timeout(self, timeout_s: float) -> None:
        if isinstance(self._socket, ssl.SSLSocket):  # which does not heed the kernel's
            self._socket.settimeout(max(timeout_s, 0.001))
            self._timeout_s = timeout_s
            return
        # The kernel keeps the time-out: Python's own time-out asks poll() before every call.
        seconds, rest = divmod(max(timeout_s, 0.001), 1.0)
        value = struct.pack("ll", int(seconds), int(rest * 1e6))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
        self._timeout_s = timeout_s

    def _send(self, parts: Sequence[Body]) -> None:
        if isinstance(self._socket, ssl.SSLSocket):  # which has no sendmsg
            self._socket.sendall(b"".join(parts))
            return
        for part in _behind(parts, self._socket.sendmsg(parts)):
            self._socket.sendall(part)

    def _receive(self, until: float) -> Command:
        """The next frame; its body is valid until the next call. TimeoutError if bytes are missing
        after `until`, as when a peer sends byte by byte."""
        self._shift()
        while (frame := self._frame()) is None:
            if self._now() > until:
                raise TimeoutError
            if self._lookout is not None:
                self._lookout.look()
            self._read(0)
        return frame

    def _shift(self) -> None:
        """Remove the frames that were taken from the front of the buffer."""
        rest = self._end - self._start
        if rest and self._start:
            self._view[:rest] = self._view[self._start : self._end]
        self._start, self._end = 0, rest

    def _frame(self) -> Command | None:
        """The next frame in the buffer; None if some of it is missing, for which there is room once
        those before it are removed."""
        start = self._start
        size = frame_size(self._view, start, self._end)
        if size and start + size <= self._end:
            self._start = start + size
            return parse_answer(self._view[start : start + size])
        if size > len(self._view):
            larger = memoryview(bytearray(min(size, MAX_FRAME + 4)))
            larger[: self._end] = self._view[: self._end]
            self._view = larger
        return None

    def _read(self, flags: int) -> None:
        count = self._socket.recv_into(self._view[self._end :], 0, flags)
        if not count:
            raise ConnectionResetError("closed by the peer")
        self._end += count

    def forked(self) -> None:
        """A child sends no request on it and reads no answer."""
        if self._socket.fileno() >= 0:
            forks.Socket(self._socket.fileno()).cut()

    def abort(self) -> None:
        """Fail the request under way, from another thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()


def _secured(sock: socket.socket, tls: ssl.SSLContext, host: str) -> ssl.SSLSocket:
    """The socket with TLS over it, once the handshake is over."""
    try:
        return tls.wrap_socket(sock, server_hostname=host)
    except BaseException:
        sock.close()
        raise


def _behind(parts: Sequence[Body], sent: int) -> Iterator[Body]:
    """All of `parts` but the first `sent` bytes."""
    for part in parts:
        if sent < len(part):
            yield memoryview(part)[max(0, sent) :]
        sent -= len(part)
