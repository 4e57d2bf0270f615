"""Message ids and host bytes.

    offset id   store host address (4 or 16 B), i32 port, i64 physical offset   32 or 56 hex digits
    unique id   ip (4 or 16 B), u16 pid, i32 random, i32 ms since the month began, u16 counter

Upper-case hex. The broker returns offset ids in send replies; a client sends 33 and 36 to the
address inside one. The producer puts a unique id into UNIQ_KEY of every message; it is the
message id users see and the key under which a message can be found.
"""

from __future__ import annotations

import datetime
import ipaddress
import itertools
import struct
from collections.abc import Sequence
from typing import Protocol

from saturnmq.runtime.errors import InvalidParameter


class _Runtime(Protocol):
    """The part of the runtime door that ids need."""

    def now_ms(self) -> int: ...


def encode_host(ip: str, port: int) -> bytes:
    """The 8 (IPv4) or 20 (IPv6) bytes of a host field: address, i32 port."""
    return ipaddress.ip_address(ip).packed + struct.pack(">i", port)


def encode_address(address: str) -> bytes:
    """Host bytes of "ip:port" or "[ip]:port"."""
    ip, _, port = address.rpartition(":")
    return encode_host(ip.strip("[]"), int(port))


def decode_host(data: bytes) -> str:
    """ "ip:port" of the 8 or 20 bytes of a host field."""
    address = ipaddress.ip_address(bytes(data[:-4]))
    port = int.from_bytes(data[-4:], "big")
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def offset_message_id(host_bytes: bytes, port: int, offset: int) -> str:
    """The offset id of the frame at physical `offset` on the store at `host_bytes` (4 or 16 B)."""
    return f"{host_bytes.hex().upper()}{port & 0xFFFFFFFF:08X}{offset & (1 << 64) - 1:016X}"


def decode_message_id(text: str) -> tuple[str, int, int]:
    """Returns (ip, port, physical offset) of an offset id."""
    if len(text) not in (32, 56):
        raise InvalidParameter(
            f"offset message id {text!r} has {len(text)} characters; 32 or 56 are allowed"
        )
    try:
        data = bytes.fromhex(text)  # which passes over blanks, so it may be too short
        port, offset = struct.unpack(">iq", data[-12:])
        return str(ipaddress.ip_address(data[:-12])), port, offset
    except (ValueError, struct.error):
        raise InvalidParameter(f"offset message id {text!r} is not hexadecimal") from None


def batch_ids(host_bytes: bytes, port: int, physical_offset: int, sizes: Sequence[int]) -> str:
    """The comma-joined offset ids of frames of `sizes` that lie back to back."""
    head = f"{host_bytes.hex().upper()}{port & 0xFFFFFFFF:08X}"
    ids = []
    for size in sizes:
        ids.append(f"{head}{physical_offset:016X}")
        physical_offset += size
    return ",".join(ids)


class UniqueIds:
    """Unique ids of one process; `next()` is on the path of every message sent.

    Invariant: (time, counter) never repeats, even when the clock stands still or runs backwards:
    time only rises, and when the counter comes round within one value of it, it is moved on.
    Java counts from the start of the *local* month; `utc_offset_ms` shifts ours accordingly.
    """

    __slots__ = (
        "_batches",
        "_counter",
        "_elapsed",
        "_head",
        "_month_start",
        "_now_ms",
        "_offset",
        "_prefix",
        "_salt",
        "_time",
        "_used",
    )

    def __init__(
        self, runtime: _Runtime, ip: str, pid: int, *, salt: int = 0, utc_offset_ms: int = 0
    ) -> None:
        """`salt` stands for Java's class-loader hash, which distinguishes two producers of one
        pid."""
        address = ipaddress.ip_address(ip).packed
        self._prefix = f"{address.hex().upper()}{pid & 0xFFFF:04X}"
        self._salt = salt & 0xFFFFFFFF
        self._batches = itertools.count()  # several threads may ask at once
        self._now_ms = runtime.now_ms
        self._offset = utc_offset_ms
        self._month_start = _month_start(runtime.now_ms() + utc_offset_ms)
        self._time = -1
        self._head = ""
        self._elapsed = ""
        self._counter = 0
        self._used = 0

    def next(self) -> str:
        now = self._now_ms()
        if now > self._time or self._used == 0x10000:
            self._advance(now)
        self._used += 1
        counter = self._counter
        self._counter = (counter + 1) & 0xFFFF
        return f"{self._head}{counter:04X}"

    def _advance(self, now: int) -> None:
        self._time = now if now > self._time else self._time + 1
        self._used = 0
        elapsed = self._time + self._offset - self._month_start
        if elapsed >= 31 * 86_400_000:  # some month has ended; an exact border does not matter
            self._month_start = _month_start(self._time + self._offset)
            elapsed = self._time + self._offset - self._month_start
        self._elapsed = f"{elapsed & 0xFFFFFFFF:08X}"
        self._head = f"{self._prefix}{self._salt:08X}{self._elapsed}"

    def batch_head(self) -> str:
        """The beginning of the ids of one batch; the id of message n, below 65,536, ends with n as
        four hex digits. The random field counts the batches on from the salt, so that the ids of
        two batches, and those of `next()`, differ even if the clock stands still."""
        now = self._now_ms()
        if now > self._time:
            self._advance(now)
        number = (self._salt + 1 + next(self._batches) % 0xFFFFFFFF) & 0xFFFFFFFF
        return f"{self._prefix}{number:08X}{self._elapsed}"


def _month_start(now_ms: int) -> int:
    now = datetime.datetime.fromtimestamp(now_ms / 1000, datetime.UTC)
    start = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return int(start.timestamp() * 1000)
