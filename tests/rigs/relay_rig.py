"""A TCP relay that can fall silent: it stops passing on bytes and ends, and closes nothing, as a
network does that drops all packets. Bytes and ends that came meanwhile are passed on when it heals.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

CHUNK = 1 << 16
CONNECT_S = 5.0


class Relay:
    """Relays connections to `target`, each way in a thread of its own."""

    def __init__(self, target: str, own_host: str, own_port: int) -> None:
        host, port = target.rsplit(":", 1)
        self._target = host, int(port)
        self._flows = threading.Event()
        self._flows.set()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server((own_host, own_port))
        self.address = f"{own_host}:{own_port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def fall_silent(self) -> None:
        self._flows.clear()

    def heal(self) -> None:
        self._flows.set()

    def close(self) -> None:
        for each in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self._flows.set()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # it is closed
            threading.Thread(target=self._join, args=(client,), daemon=True).start()

    def _join(self, client: socket.socket) -> None:
        self._sockets.append(client)
        self._flows.wait()
        try:
            server = socket.create_connection(self._target, CONNECT_S)
        except OSError:
            client.close()
            return
        server.settimeout(None)
        self._sockets.append(server)
        threading.Thread(target=self._pass_on, args=(server, client), daemon=True).start()
        self._pass_on(client, server)

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        """Pass on bytes until the source ends, and then the end."""
        with contextlib.suppress(OSError):
            while chunk := source.recv(CHUNK):
                self._flows.wait()
                target.sendall(chunk)
        self._flows.wait()
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)


@contextmanager
def relay(target: str, own_host: str, own_port: int) -> Iterator[Relay]:
    made = Relay(target, own_host, own_port)
    try:
        yield made
    finally:
        made.close()
