"""The client side of HTTP/2 and gRPC as bytes: right frames, and whatever else is asked for. Pure.

It is written apart from the server's side (`gateway/http2/`), so that the two check each other.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY = range(8)
WINDOW_UPDATE, CONTINUATION = 8, 9
END_STREAM, END_HEADERS, PADDED, HAS_PRIORITY, ACK = 1, 4, 8, 32, 1
ENABLE_PUSH, INITIAL_WINDOW, MAX_FRAME = 2, 4, 5
Pair = tuple[bytes, bytes]


class ParsedFrame(NamedTuple):
    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def number(self) -> int:
        """The payload of RST_STREAM and WINDOW_UPDATE; the error of a GOAWAY."""
        return int.from_bytes(self.payload[4:8] if self.kind == GOAWAY else self.payload, "big")


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


def settings(*pairs: tuple[int, int]) -> bytes:
    return frame(SETTINGS, payload=b"".join(struct.pack(">HI", *pair) for pair in pairs))


def window(stream: int, more: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, more.to_bytes(4, "big"))


def reset(stream: int) -> bytes:
    return frame(RST_STREAM, 0, stream, (8).to_bytes(4, "big"))


def parsed(data: bytes) -> list[ParsedFrame]:
    found = []
    while data:
        end = 9 + int.from_bytes(data[:3], "big")
        assert len(data) >= end, "a frame is cut"
        kind, flags, stream = struct.unpack_from(">BBI", data, 3)
        found.append(ParsedFrame(kind, flags, stream, data[9:end]))
        data = data[end:]
    return found


def integer(value: int, bits: int, first: int = 0) -> bytes:
    """RFC 7541, 5.1."""
    most = (1 << bits) - 1
    if value < most:
        return bytes((first | value,))
    out, value = [first | most], value - most
    while value >= 128:
        out.append(value % 128 | 128)
        value //= 128
    return bytes((*out, value))


def text(data: bytes) -> bytes:
    return integer(len(data), 7) + data


def block(headers: Iterable[Pair], *, kept: bool = False) -> bytes:
    """Headers as literals; `kept` puts them into the table."""
    return b"".join((b"@" if kept else b"\0") + text(name) + text(value) for name, value in headers)


def message(data: bytes = b"", packed: int = 0) -> bytes:
    return struct.pack(">BI", packed, len(data)) + data


def request_headers(path: str, **more: str) -> list[Pair]:
    pairs = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "x",
        "te": "trailers",
        "content-type": "application/grpc",
    } | {name.replace("_", "-"): value for name, value in more.items()}
    return [(name.encode(), value.encode("latin-1")) for name, value in pairs.items()]


def call(stream: int, path: str = "/test/Echo", data: bytes | None = b"", **more: str) -> bytes:
    """A whole call; without `data` its headers only."""
    head = frame(HEADERS, END_HEADERS, stream, block(request_headers(path, **more)))
    if data is None:
        return head
    return head + frame(DATA, END_STREAM, stream, message(data))


def answer_headers(payload: bytes) -> dict[str, str]:
    """The headers of a server that keeps none: literals, and entries of the static table."""
    found, at = {}, 0
    while at < len(payload):
        if payload[at] & 128:
            assert payload[at] == 0x88, "of the static table only :status 200 is used"
            found[":status"], at = "200", at + 1
            continue
        assert payload[at] == 0
        at += 1
        pair = []
        for _ in range(2):
            size, at = payload[at], at + 1
            if size == 127:
                shift = 0
                while True:
                    size += (payload[at] & 127) << shift
                    shift, at = shift + 7, at + 1
                    if payload[at - 1] < 128:
                        break
            pair.append(payload[at : at + size].decode("latin-1"))
            at += size
        found[pair[0]] = pair[1]
    return found
