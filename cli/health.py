"""`saturnmq health`: whether one node serves, asked as a client would.

A health check runs every few seconds for as long as its node does. `python -m saturnmq.cli.health`
is the same without the other commands, and takes a sixth of the time.
"""

from __future__ import annotations

import socket
import sys

from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.remoting import Command, FrameDecoder, encode_head
from saturnmq.runtime.errors import ConnectFailed, ConnectionLost, SaturnError

TIMEOUT_S = 3.0


def check(address: str, timeout_s: float = TIMEOUT_S) -> None:
    """Ask the node for its state; a SaturnError when it gives no answer.

    Any answer will do: a nameserver does not know the request and says so.
    """
    host, _, port = address.rpartition(":")
    digits = port if port.isascii() and port.isdigit() and len(port) < 6 else "0"
    if not host or not 0 < int(digits) < 65536:
        raise ConnectFailed(f"{address!r} is not an address: write host:port, the port 1-65535")
    try:
        link = socket.create_connection((host.strip("[]"), int(port)), timeout_s)
    except (OSError, ValueError) as error:  # ValueError: no host can have that name
        raise ConnectFailed(f"no connection to {address}: {error}") from error
    decoder = FrameDecoder()
    with link:
        try:
            link.sendall(encode_head(Command.request(RequestCode.GET_BROKER_RUNTIME_INFO)))
            while data := link.recv(1 << 16):
                if decoder.feed(data):
                    return
        except OSError as error:
            raise ConnectionLost(f"{address} accepts but does not answer: {error}") from error
    raise ConnectionLost(f"{address} closed the connection instead of answering")


def main() -> None:
    """Exit status 0 when the node at the one argument serves, else 1 and why."""
    try:
        check(sys.argv[1])
    except SaturnError as problem:
        sys.exit(f"saturnmq: {problem}")


if __name__ == "__main__":
    main()
