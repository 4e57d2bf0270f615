"""Clients of gRPC with TLS."""

from __future__ import annotations

import contextlib
import socket
import ssl

from saturnmq.runtime.door import split_address

PATIENCE_S = 30.0


def client_hello(offer: str = "h2") -> bytes:
    """The first record of a TLS client."""
    context = ssl.create_default_context()
    context.set_alpn_protocols([offer])
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(received, sent, server_hostname="localhost").do_handshake()
    return sent.read()


def spoken(address: str) -> str | None:
    """The protocol that a TLS client and the node at this address agree upon."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(split_address(address), PATIENCE_S) as opened,
        context.wrap_socket(opened) as secured,
    ):
        return secured.selected_alpn_protocol()
