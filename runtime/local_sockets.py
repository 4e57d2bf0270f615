"""Unix sockets beside the ports of a server, for clients on its machine.

Bytes cross a Unix socket for less than half of the processor time that TCP takes on loopback. So a
server may also listen on a socket that is named after its address, and whoever connects to an
address looks for that socket first.

The names are in Linux's abstract namespace: they are no files, and end with their process. Each
network namespace has its own, so a client finds the socket exactly where the address is one of its
own machine; a container that is not on the server's network finds none. A name is anybody's to
take. Hence a client only talks to a socket of its own user or of root, and takes TCP otherwise.

The kernel gives a Unix socket room for 208 KiB that the other side has not read yet, and never
more, as it does with TCP. A batch or an answer to a pull has up to 2 MiB. It would cross in ten
parts, each with a change to the other process and back, and no part while the sender's loop waits
for Python's lock. So both sides ask for room for all of it. `net.core.wmem_max` limits that. Where
it is 208 KiB as well, as it was in all older kernels, connections that carry such bytes take TCP.
"""

from __future__ import annotations

import os
import socket
import struct

from .door import LOCAL, join_address

BACKLOG = 1024
SEND_BUFFER = 2 << 20  # bytes: a full batch, or a full answer to a pull
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


def bind(host: str, port: int) -> socket.socket | None:
    """The socket of this address, to listen on; None if there is none here, or another process has
    it."""
    sock = _made()
    if sock is None:
        return None
    try:
        sock.setblocking(False)
        sock.bind(_name(host, port))
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        return None
    return sock


def dial(host: str, port: int, *, bulk: bool = False) -> socket.socket | None:
    """A connection to the socket of this address; None if there is none, or none to be trusted. For
    `bulk`, None also where the system leaves too little room."""
    sock = _made()
    if sock is None:
        return None
    try:
        sock.setblocking(False)  # it is there at once, or the server has no time for another one
        if widen(sock) >= SEND_BUFFER // 2 or not bulk:
            sock.connect(_name(host, port))
            if _owner(sock) in (0, os.geteuid()):
                return sock
    except OSError:
        pass
    sock.close()
    return None


def _made() -> socket.socket | None:
    """None: no descriptor is left. TCP, which is tried then, says so."""
    try:
        return socket.socket(socket.AF_UNIX)
    except OSError:
        return None


def widen(sock: socket.socket) -> int:
    """Ask for room for SEND_BUFFER bytes on their way; how many the system gives."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // 2  # the rest is the kernel's own


def _name(host: str, port: int) -> bytes:
    return f"{LOCAL}{join_address(host, port)}".encode()


def _owner(sock: socket.socket) -> int:
    """The user of the process that listens."""
    found = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(found)
    return int(uid)
