"""Replication frames, both dialects and both ways, without I/O.

RocketMQ's classic protocol (docs/internals/protocol.md 7.1), spoken with Java peers:

| direction | bytes |
|---|---|
| slave to master, "report" | i64 end of the slave's log. Nothing else ever |
| master to slave, "transfer" | i64 offset of the first byte, i32 size, then `size` raw log bytes |
| master to slave, heartbeat | a transfer of size 0 with the offset of the next byte to send |

Ours, between our own nodes. A slave of ours opens with the i64 GREETING in front of its first
report. A Java master uses the last whole 8 bytes it has read and takes a -1 for "nothing reported
yet", so it never notices. A master of ours answers with a HELLO, whose first i64 is negative, as no
Java master's can be. From then on, on this connection:

| direction | bytes |
|---|---|
| both, "control" | i64 kind < 0, i32 size, u32 CRC-32 of the body, i64 0, then that body: JSON |
| | with i64 1 instead the body ends with a signature of 32 bytes (`signing.py`) |
| master to slave, "transfer" | i64 offset, i32 size, u32 rolling checksum, i64 confirmed, bytes |
| slave to master, "report" | i64 appended, i64 flushed |

The rolling checksum covers all log bytes transferred on this connection, these included (`roll`).
`confirmed` is the position up to which the slave's consumers may see. A heartbeat is a transfer of
size 0.

A master that shares a secret with its slaves adds a `nonce` to its HELLO. A slave that shares the
secret answers with PROVE, which is signed and has a nonce of its own. From then on all control
frames are signed, and the master says HELLO again.

A transfer may cut a message anywhere but never crosses a segment's end; that is the sender's duty.
Header and body must fit the 4 MiB buffer of a Java slave, or it stalls for ever: BODY_MAX. Java
reads the last whole 8 bytes as the report, so reports are written in one piece. An impossible frame
(a size too large, a wrong checksum) raises MalformedFrame; the connection must then be closed, as
nothing in the stream marks a new start.
"""

import struct
from enum import IntEnum
from typing import Any, NamedTuple

from saturnmq.runtime.errors import MalformedFrame

from . import fastjson
from .kernels import crc32
from .signing import SIGNATURE_BYTES, Seal

_REPORT = struct.Struct(">q")
_HEADER = struct.Struct(">qi")
_OUR_REPORT = struct.Struct(">qq")
_OUR_HEADER = struct.Struct(">qiIq")
REPORT_SIZE = _REPORT.size
BODY_MAX = 4 * 1024 * 1024 - _OUR_HEADER.size
assert _REPORT.size == 8, "i64"
assert _HEADER.size == 12, "i64 and i32"
assert _OUR_REPORT.size == 16, "two i64"
assert _OUR_HEADER.size == 24, "i64, i32, u32 and i64"
GREETING = -1
CONTROL_MAX = 1 << 20
FIRST_BUFFER = 8 * 1024

Buffer = bytes | bytearray | memoryview


class Kind(IntEnum):
    """The meaning of a control frame."""

    HELLO = -2  # master: who I am, my epochs
    JOIN = -3  # slave: who I am, where to go on
    REFUSE = -4  # master: the reason of a refusal; it closes then
    GROUP = -5  # master: the slaves that have joined meanwhile
    ACCEPT = -6  # master: the log of the slave that asked is a prefix so far
    PROVE = -7  # slave: proof that it knows the secret


class Transfer(NamedTuple):
    """Log bytes from `offset` on; empty in a heartbeat. The data is a slice of the buffer."""

    offset: int
    data: memoryview
    rolled: int = -1  # the rolling checksum; -1: the classic protocol has none
    confirmed: int = -1


class Control(NamedTuple):
    """The document of a control frame; if it is signed, also the signed bytes and the signature."""

    kind: Kind
    document: dict[str, Any]
    text: bytes = b""
    signature: bytes = b""


class SlaveReport(NamedTuple):
    """The position of a slave's log; in the classic protocol the flushed position is unknown
    (-1)."""

    appended: int
    flushed: int = -1


def roll(rolled: int, data: Buffer) -> int:
    """The rolling checksum after `data`. Both ends roll over the same transfers."""
    return (rolled * 31 + crc32(data)) & 0xFFFFFFFF


def encode_report(appended: int) -> bytes:
    """A classic report."""
    return _REPORT.pack(appended)


def encode_our_report(appended: int, flushed: int) -> bytes:
    return _OUR_REPORT.pack(appended, flushed)


def encode_greeting(appended: int) -> bytes:
    """A slave's first bytes: the greeting, and the report that a Java master uses."""
    return _REPORT.pack(GREETING) + _REPORT.pack(appended)


def encode_transfer_header(offset: int, size: int) -> bytes:
    """The header before `size` log bytes in the classic protocol; size 0 is a heartbeat."""
    _check_size(size)
    return _HEADER.pack(offset, size)


def encode_our_transfer_header(offset: int, size: int, rolled: int, confirmed: int) -> bytes:
    _check_size(size)
    return _OUR_HEADER.pack(offset, size, rolled, confirmed)


def _check_size(size: int) -> None:
    if not 0 <= size <= BODY_MAX:
        raise ValueError(f"transfer of {size} bytes: 0 to {BODY_MAX} fit a Java slave's buffer")


def encode_control(kind: Kind, document: dict[str, Any], seal: Seal | None = None) -> bytes:
    """A control frame, signed with `seal` if there is one."""
    body = fastjson.dumps(document)
    if seal is not None:
        body += seal.sign(kind, body)
    return _OUR_HEADER.pack(kind, len(body), crc32(body), int(seal is not None)) + body


class Inbox:
    """The receive buffer of one connection: the bytes that the socket wrote, and the frames in it.

    `next_*` gives a frame and moves behind it, or None while it is incomplete. Call `make_room`
    after the frames of one read are handled: it overwrites the memory that they point into.
    """

    def __init__(self, size: int = FIRST_BUFFER) -> None:
        self._view = memoryview(bytearray(size))
        self._start = self._end = 0
        self._needed = 0

    def free(self) -> memoryview:
        """The space for the socket to write to."""
        return self._view[self._end :]

    def filled(self, size: int) -> None:
        self._end += size

    @property
    def pending(self) -> int:
        """Bytes of an incomplete frame."""
        return self._end - self._start

    def make_room(self) -> None:
        rest = self._end - self._start
        if self._needed > len(self._view):
            fresh = memoryview(bytearray(self._needed))
            fresh[:rest] = self._view[self._start : self._end]
            self._view = fresh
        elif self._start:
            self._view[:rest] = self._view[self._start : self._end]
        self._start, self._end = 0, rest

    def _take(self, header: int, body: int) -> memoryview | None:
        """The body behind a header of this size, once all of it is here."""
        self._needed = header + body
        if self._end - self._start < self._needed:
            return None
        at = self._start + header
        self._start += self._needed
        self._needed = 0
        return self._view[at : at + body]

    def _peek(self) -> int | None:
        if self._end - self._start < _REPORT.size:
            return None
        first: int = _REPORT.unpack_from(self._view, self._start)[0]
        return first

    # read by a slave

    def is_ours(self) -> bool | None:
        """Whether the master's first frame is a HELLO; None while it cannot be known."""
        first = self._peek()
        return None if first is None else first < 0

    def next_transfer(self) -> Transfer | None:
        """A classic transfer."""
        if self._end - self._start < _HEADER.size:
            return None
        offset, size = _HEADER.unpack_from(self._view, self._start)
        _check_transfer(offset, size)
        data = self._take(_HEADER.size, size)
        return None if data is None else Transfer(offset, data)

    def next_of_master(self) -> Transfer | Control | None:
        """A transfer or a control frame of a master of ours."""
        if self._end - self._start < _OUR_HEADER.size:
            return None
        offset, size, check, confirmed = _OUR_HEADER.unpack_from(self._view, self._start)
        if offset < 0:
            return self._control(offset, size, check, confirmed)
        _check_transfer(offset, size)
        data = self._take(_OUR_HEADER.size, size)
        return None if data is None else Transfer(offset, data, check, confirmed)

    # read by a master

    def next_report(self) -> int | None:
        """An i64 of the classic protocol: a report, or the GREETING."""
        first = self._peek()
        if first is not None:
            self._take(_REPORT.size, 0)
            if first < GREETING:
                raise MalformedFrame(f"report of offset {first}: it cannot be negative")
        return first

    def next_of_slave(self) -> SlaveReport | Control | None:
        """A report or a control frame of a slave of ours."""
        first = self._peek()
        if first is None:
            return None
        if first >= 0:
            if self.pending < _OUR_REPORT.size:
                return None
            report = SlaveReport(*_OUR_REPORT.unpack_from(self._view, self._start))
            self._take(_OUR_REPORT.size, 0)
            return report
        if self.pending < _OUR_HEADER.size:
            return None
        kind, size, check, signed = _OUR_HEADER.unpack_from(self._view, self._start)
        return self._control(kind, size, check, signed)

    def _control(self, kind: int, size: int, crc: int, signed: int) -> Control | None:
        if kind not in Kind.__members__.values() or not 0 <= size <= CONTROL_MAX:
            raise MalformedFrame(
                f"control frame of kind {kind} and {size} bytes: kinds are "
                f"{[int(k) for k in Kind]}, the limit is {CONTROL_MAX} bytes"
            )
        body = self._take(_OUR_HEADER.size, size)
        if body is None:
            return None
        data = bytes(body)
        if crc32(data) != crc:
            raise MalformedFrame(f"control frame of kind {kind}: its checksum does not match")
        text, signature = data, b""
        if signed:
            text, signature = data[:-SIGNATURE_BYTES], data[-SIGNATURE_BYTES:]
        document = fastjson.loads(text)
        if not isinstance(document, dict):
            raise MalformedFrame(f"control frame of kind {kind} holds no JSON object")
        return Control(Kind(kind), document, text, signature)


def _check_transfer(offset: int, size: int) -> None:
    if offset < 0 or not 0 <= size <= BODY_MAX:
        raise MalformedFrame(
            f"transfer of {size} bytes at offset {offset}: 0 to {BODY_MAX} bytes at an offset "
            "from 0 on are allowed"
        )
