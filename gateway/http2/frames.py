"""The frames of HTTP/2 (RFC 9113) that a server of gRPC reads and writes. Pure.

length u24 | type u8 | flags u8 | stream u32 | payload
"""

from __future__ import annotations

import struct
from enum import IntEnum

HEAD = struct.Struct(">HBBBI")  # the length in two parts
HEAD_BYTES = 9
FRAME_MAX = 1 << 14  # of a payload: the least that RFC 9113 allows, and what this server asks for
WINDOW_MAX = (1 << 31) - 1
USUAL_WINDOW = 65_535
assert HEAD.size == HEAD_BYTES, "u24, two u8 and u32"

END_STREAM, END_HEADERS, PADDED, HAS_PRIORITY = 0x1, 0x4, 0x8, 0x20
ACK = 0x1


class FrameKind(IntEnum):
    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Setting(IntEnum):
    """Those that this server says or obeys."""

    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class Why(IntEnum):
    """Error codes of RFC 9113, 7, that this server says."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class BadFrames(Exception):
    """The connection cannot go on."""

    def __init__(self, why: Why, text: str) -> None:
        super().__init__(text)
        self.why = why


def frame(kind: FrameKind, flags: int, stream: int, payload: bytes = b"") -> bytes:
    size = len(payload)
    return HEAD.pack(size >> 8, size & 0xFF, kind, flags, stream) + payload


def settings(values: dict[Setting, int]) -> bytes:
    """A SETTINGS frame."""
    payload = b"".join(struct.pack(">HI", number, value) for number, value in values.items())
    return frame(FrameKind.SETTINGS, 0, 0, payload)


def window_update(stream: int, more: int) -> bytes:
    return frame(FrameKind.WINDOW_UPDATE, 0, stream, more.to_bytes(4, "big"))


def reset(stream: int, why: Why) -> bytes:
    return frame(FrameKind.RST_STREAM, 0, stream, int(why).to_bytes(4, "big"))


def goaway(last: int, why: Why, text: str = "") -> bytes:
    payload = struct.pack(">II", last, why) + text.encode()[:256]
    return frame(FrameKind.GOAWAY, 0, 0, payload)


def without_padding(flags: int, payload: bytes) -> bytes:
    """BadFrames: the padding is longer than the frame."""
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise BadFrames(Why.PROTOCOL_ERROR, "more padding than payload")
    return payload[1 : len(payload) - payload[0]]


def without_priority(flags: int, payload: bytes) -> bytes:
    """Of HEADERS without padding. BadFrames: it says that it has a priority, and has none."""
    if not flags & HAS_PRIORITY:
        return payload
    if len(payload) < 5:
        raise BadFrames(Why.FRAME_SIZE_ERROR, "HEADERS without its priority")
    return payload[5:]


def asks_for_answer(flags: int, stream: int, payload: bytes) -> bool:
    """Whether a PING is a question. BadFrames: it is no PING."""
    if stream:
        raise BadFrames(Why.PROTOCOL_ERROR, "a PING belongs to no stream")
    if len(payload) != 8:
        raise BadFrames(Why.FRAME_SIZE_ERROR, "a PING has 8 bytes")
    return not flags & ACK


def says_settings(flags: int, stream: int, payload: bytes) -> bool:
    """Whether SETTINGS say any; else they answer ours. BadFrames: they are none."""
    if stream:
        raise BadFrames(Why.PROTOCOL_ERROR, "SETTINGS belong to no stream")
    if len(payload) % 6 or (flags & ACK and payload):
        raise BadFrames(Why.FRAME_SIZE_ERROR, "SETTINGS of a wrong length")
    return not flags & ACK


def initial_window(payload: bytes, before: int) -> int:
    """The window of new streams by these SETTINGS. BadFrames: a value is out of its range."""
    window = before
    for name, value in struct.iter_unpack(">HI", payload):
        if name == Setting.INITIAL_WINDOW_SIZE:
            if value > WINDOW_MAX:
                raise BadFrames(Why.FLOW_CONTROL_ERROR, f"a window of {value} bytes")
            window = value
        elif name == Setting.MAX_FRAME_SIZE:
            if not FRAME_MAX <= value < 1 << 24:
                raise BadFrames(Why.PROTOCOL_ERROR, f"frames of {value} bytes")
        elif name == Setting.ENABLE_PUSH and value > 1:
            raise BadFrames(Why.PROTOCOL_ERROR, f"ENABLE_PUSH {value}")
    return window
