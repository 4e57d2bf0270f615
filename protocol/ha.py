"""RocketMQ's classic replication frames, both ways, without I/O (remoting.md 5.1).

| direction | bytes |
|---|---|
| slave to master, "report" | i64 end of the slave's log. Nothing else ever |
| master to slave, "transfer" | i64 offset of the first byte, i32 size, then `size` raw log bytes |
| master to slave, heartbeat | a transfer of size 0 with the offset of the next byte to send |

Who writes and reads: the two ends of an HA connection. A transfer may cut a message anywhere but
never crosses a segment's end; that is the sender's duty, the frame does not show it. Header and
body must fit the 4 MiB buffer of a Java slave, or it stalls for ever: BODY_MAX. Java reads the
last whole 8 bytes of what came in as the report, so a report is always written in one piece. An
offset or size that cannot be (negative, too large) raises MalformedFrame; the connection must
then be closed, as nothing in the stream marks a new start.
"""

import struct
from typing import NamedTuple

from .errors import MalformedFrame

_REPORT = struct.Struct(">q")
_HEADER = struct.Struct(">qi")
REPORT_SIZE = _REPORT.size
HEADER_SIZE = _HEADER.size
BODY_MAX = 4 * 1024 * 1024 - HEADER_SIZE
assert HEADER_SIZE == 12, "i64 and i32"

Buffer = bytes | bytearray | memoryview


class Transfer(NamedTuple):
    """Log bytes from `offset` on; empty in a heartbeat."""

    offset: int
    data: Buffer

    @property
    def is_heartbeat(self) -> bool:
        return not len(self.data)


def encode_report(end_offset: int) -> bytes:
    """The slave's report."""
    return _REPORT.pack(end_offset)


def encode_transfer_header(offset: int, size: int) -> bytes:
    """What goes before `size` log bytes; a heartbeat with size 0."""
    if not 0 <= size <= BODY_MAX:
        raise ValueError(f"transfer of {size} bytes: 0 to {BODY_MAX} fit a Java slave's buffer")
    return _HEADER.pack(offset, size)


def encode_transfer(offset: int, data: Buffer = b"") -> list[Buffer]:
    """A transfer as parts to be written in this order; the log bytes are not copied."""
    head = encode_transfer_header(offset, len(data))
    return [head, data] if len(data) else [head]


def parse_transfer(
    view: memoryview, start: int, end: int, body_max: int = BODY_MAX
) -> tuple[Transfer, int] | None:
    """The transfer at `start` and where the next one begins, or None while it is incomplete.

    Its data is a slice of `view`, not a copy.
    """
    if end - start < HEADER_SIZE:
        return None
    offset, size = _HEADER.unpack_from(view, start)
    if offset < 0 or not 0 <= size <= body_max:
        raise MalformedFrame(
            f"transfer of {size} bytes at offset {offset}: 0 to {body_max} bytes at an offset "
            "from 0 on are allowed"
        )
    body = start + HEADER_SIZE
    if end - body < size:
        return None
    return Transfer(offset, view[body : body + size]), body + size


class TransferDecoder:
    """Bytes in, transfers out; the slave's end of the stream."""

    def __init__(self, body_max: int = BODY_MAX) -> None:
        self._body_max = body_max
        self._rest = bytearray()

    @property
    def pending(self) -> int:
        """Bytes of an incomplete transfer."""
        return len(self._rest)

    def feed(self, data: Buffer) -> list[Transfer]:
        """The transfers that are complete now; each owns its data."""
        self._rest += data
        if len(self._rest) < HEADER_SIZE:
            return []
        transfers: list[Transfer] = []
        start = 0
        with memoryview(self._rest) as view:
            while True:
                parsed = parse_transfer(view, start, len(view), self._body_max)
                if parsed is None:
                    break
                transfer, start = parsed
                with memoryview(transfer.data) as part:
                    transfers.append(Transfer(transfer.offset, bytes(part)))
                if isinstance(transfer.data, memoryview):
                    transfer.data.release()  # or the buffer below could not shrink
        del self._rest[:start]
        return transfers


class ReportDecoder:
    """Bytes in, reports out; the master's end of the stream."""

    def __init__(self) -> None:
        self._rest = b""

    @property
    def pending(self) -> int:
        """Bytes of an incomplete report."""
        return len(self._rest)

    def feed(self, data: Buffer) -> list[int]:
        """The reports that are complete now, oldest first."""
        whole = self._rest + bytes(data)
        end = len(whole) - len(whole) % REPORT_SIZE
        self._rest = whole[end:]
        offsets = [offset for (offset,) in _REPORT.iter_unpack(whole[:end])]
        for offset in offsets:
            if offset < 0:
                raise MalformedFrame(f"report of offset {offset}: it cannot be negative")
        return offsets
