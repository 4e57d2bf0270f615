"""The message frame: CommitLogs consist of frames, and pull replies carry them unchanged.

    off  type     field                      off (IPv4 hosts)  type     field
      0  i32      TOTALSIZE                  48  8 or 20 B  BORNHOST (address, i32 port)
      4  i32      MAGICCODE                  56  i64        STORETIMESTAMP
      8  i32      BODYCRC                    64  8 or 20 B  STOREHOST
     12  i32      QUEUEID                    72  i32        RECONSUMETIMES
     16  i32      FLAG                       76  i64        PREPAREDTRANSACTIONOFFSET
     20  i64      QUEUEOFFSET                84  i32 + B    BODY
     28  i64      PHYSICALOFFSET                 i8 + B     TOPIC (magic V2: i16 + B)
     36  i32      SYSFLAG                        i16 + B    PROPERTIES
     40  i64      BORNTIMESTAMP

Big-endian. BODYCRC is the IEEE CRC-32 of the stored body & 0x7FFFFFFF. A V2 frame is written only
for topics above 127 bytes. sysFlag bits 4 and 5 say which hosts are IPv6 (12 bytes longer). A
segment ends with BLANK: i32 bytes left, i32 BLANK_MAGIC. Zeros mark the end of the written part.

With `crc_property` the last 20 bytes of the properties are `__CRC32#` 0x01, ten digits, 0x02: the
CRC of everything before them, decimal, *least significant digit first* (RocketMQ's
enabledAppendPropCRC).

The broker's writer is the only author of frames; slaves copy them, reput and recovery scan them,
consumers decode them. After a crash a frame may be torn: size, magic, lengths, its own offset and
the CRC are checked before any field is used.

This module is the readable reference for one frame. Reading, writing and scanning many at once is
in `frame_reference.py` and, compiled, in `frame_kernel/`.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from saturnmq.protocol.properties import PROPERTIES_BYTES_MAX, decode_properties

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
BLANK_MAGIC = 0xCBD43194
BLANK = struct.Struct(">iI")  # bytes left, BLANK_MAGIC
BLANK_BYTES = BLANK.size  # always left behind the last frame of a segment
assert BLANK_BYTES == 8

TRANSACTION_MASK = 0xC
TRANSACTION_NONE, TRANSACTION_PREPARED, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK = 0, 0x4, 0x8, 0xC
BORN_HOST_V6 = 0x10
STORE_HOST_V6 = 0x20
HOST_MASK = BORN_HOST_V6 | STORE_HOST_V6
NEED_UNWRAP, INNER_BATCH = 0x40, 0x80  # of a frame that holds a batch: `inner_batch.py`
WRAPPED = INNER_BATCH | NEED_UNWRAP

HEAD = struct.Struct(">iIiiiqqiq")  # TOTALSIZE .. BORNTIMESTAMP
TAIL = struct.Struct(">iqi")  # RECONSUMETIMES, PREPAREDTRANSACTIONOFFSET, body length
_LENGTHS = struct.Struct(">4xI28xi44xI")  # magic, sysFlag, and the body's if hosts are IPv4
_BODY_AT = _LENGTHS.size
FRAME_BYTES_MIN = HEAD.size + 8 + 8 + 8 + TAIL.size + 1 + 2
SIZE = struct.Struct(">i")
OFFSET = struct.Struct(">q")
MAGIC_AT, BODY_CRC_AT, QUEUE_OFFSET_AT, PHYSICAL_OFFSET_AT, SYS_FLAG_AT = 4, 8, 20, 28, 36
STORE_TIMESTAMP_AT_V4, STORE_TIMESTAMP_AT_V6 = HEAD.size + 8, HEAD.size + 20
BODY_LENGTH_AT_V4 = HEAD.size + 8 + 8 + 8 + TAIL.size - 4
NUMBERS_AT_V4 = (
    (0, 4), (4, 4), (8, 4), (12, 4), (16, 4), (20, 8), (28, 8), (36, 4), (40, 8), (56, 8), (72, 4),
    (76, 8), (84, 4),
)  # fmt: skip
"""(position, bytes) of each number of fixed place, if both hosts are IPv4."""
assert HEAD.size == 48
assert TAIL.size == 16
assert _BODY_AT == 88
assert BODY_LENGTH_AT_V4 + 4 == _BODY_AT
assert FRAME_BYTES_MIN == 91
assert STORE_TIMESTAMP_AT_V6 + OFFSET.size <= FRAME_BYTES_MIN
assert {(SYS_FLAG_AT, 4), (STORE_TIMESTAMP_AT_V4, 8), (BODY_LENGTH_AT_V4, 4)} < {*NUMBERS_AT_V4}
assert SIZE.size == MAGIC_AT
assert MAGIC_AT + 4 == BODY_CRC_AT
assert QUEUE_OFFSET_AT + OFFSET.size == PHYSICAL_OFFSET_AT
assert PHYSICAL_OFFSET_AT + OFFSET.size == SYS_FLAG_AT
assert len({MAGIC_V1, MAGIC_V2, BLANK_MAGIC}) == 3

TOPIC_BYTES_V1_MAX = 127
CRC_PREFIX = b"__CRC32#\x01"
CRC_PROPERTY_BYTES = 20
assert len(CRC_PREFIX) + 10 + 1 == CRC_PROPERTY_BYTES


@dataclass(frozen=True, slots=True)
class Frame:
    """A whole, valid frame. `body`, `topic` and `raw_properties` are copies."""

    size: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    store_timestamp: int
    store_host: bytes
    reconsume_times: int
    prepared_offset: int
    body: bytes
    topic: bytes
    raw_properties: bytes

    @property
    def properties(self) -> dict[str, str]:
        return decode_properties(self.raw_properties)


@dataclass(frozen=True, slots=True)
class Blank:
    """The rest of this segment, `size` bytes, holds nothing."""

    size: int


@dataclass(frozen=True, slots=True)
class End:
    """Nothing was written here yet (zeros), or there are no bytes at all."""


@dataclass(frozen=True, slots=True)
class NeedMore:
    """The bytes stop before the frame does; `size` is its whole size, 0 if even that field is
    cut."""

    size: int


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that are no frame. The reason is for logs and reports."""

    why: str


Outcome = Frame | Blank | End | NeedMore | Damage


def size_of(frame: bytes | bytearray | memoryview, pos: int = 0) -> int:
    """TOTALSIZE of the frame or BLANK at `pos`."""
    size: int = SIZE.unpack_from(frame, pos)[0]
    return size


def store_timestamp_of(head: bytes | memoryview) -> int | None:
    """STORETIMESTAMP of the frame that begins with these bytes; None if they are too few."""
    if len(head) < FRAME_BYTES_MIN:
        return None
    has_v6 = head[SYS_FLAG_AT + 3] & BORN_HOST_V6
    at = STORE_TIMESTAMP_AT_V6 if has_v6 else STORE_TIMESTAMP_AT_V4
    stamp: int = OFFSET.unpack_from(head, at)[0]
    return stamp


def seal_body(frame: bytearray) -> None:
    """Make the CRC that the frame's head has of its body right; both hosts are IPv4."""
    body = memoryview(frame)[_BODY_AT:][: SIZE.unpack_from(frame, BODY_LENGTH_AT_V4)[0]]
    SIZE.pack_into(frame, BODY_CRC_AT, crc32(body))


def crc32(data: bytes | bytearray | memoryview) -> int:
    return zlib.crc32(data) & 0x7FFFFFFF


def message_size(
    body_bytes: int,
    topic_bytes: int,
    properties_bytes: int,
    born_host_bytes: int = 8,
    store_host_bytes: int = 8,
) -> int:
    """TOTALSIZE of a frame; `properties_bytes` as stored, so with any CRC property."""
    long_topic = 1 if topic_bytes > TOPIC_BYTES_V1_MAX else 0
    hosts = born_host_bytes + store_host_bytes - 16
    return FRAME_BYTES_MIN + long_topic + hosts + body_bytes + topic_bytes + properties_bytes


def own_properties(properties: bytes) -> bytes:
    """The properties without the CRC property of their frame: it does not hold for another
    frame."""
    return properties[:-CRC_PROPERTY_BYTES] if has_crc_property(properties) else properties


def has_crc_property(properties: bytes) -> bool:
    """Whether the last property is the frame's CRC (docs/internals/format.md 2.2)."""
    at = len(properties) - CRC_PROPERTY_BYTES
    return (
        at >= 0
        and properties.startswith(CRC_PREFIX, at)
        and properties[-1] == 2
        and (at == 0 or properties[at - 1] == 2)
    )


def is_torn(properties: bytes) -> bool:
    """Whether zeros lie in place of the CRC property, or of the 0x02 before it: a page or sector at
    the end of a frame never reached the disk. Messages whose properties end like this are
    refused."""
    return not has_crc_property(properties) and 0 in properties[-CRC_PROPERTY_BYTES - 1 :]


def stored_properties_size(properties: bytes, crc_property: bool) -> int:
    """Bytes of the stored properties field: a CRC property adds 20, and a missing 0x02 adds 1."""
    properties = own_properties(properties)
    if not crc_property:
        return len(properties)
    return len(properties) + CRC_PROPERTY_BYTES + (properties[-1:] not in (b"", b"\x02"))


def crc_property_of(frame_crc: int) -> bytes:
    return CRC_PREFIX + f"{frame_crc:010d}"[::-1].encode() + b"\x02"


def with_reconsume_times(frame: bytes | bytearray | memoryview, times: int) -> bytes:
    """A copy of a whole frame with another reconsumeTimes, and its frame CRC, if it has one."""
    copy = bytearray(frame)
    sys_flag = int.from_bytes(copy[SYS_FLAG_AT : SYS_FLAG_AT + 4], "big")
    hosts = sum(20 if sys_flag & bit else 8 for bit in (BORN_HOST_V6, STORE_HOST_V6))
    at = HEAD.size + hosts + 8
    copy[at : at + 4] = times.to_bytes(4, "big")
    if copy[-CRC_PROPERTY_BYTES:].startswith(CRC_PREFIX):
        copy[-CRC_PROPERTY_BYTES:] = crc_property_of(crc32(memoryview(copy)[:-CRC_PROPERTY_BYTES]))
    return bytes(copy)


def encode_frame(
    *,
    physical_offset: int,
    queue_offset: int,
    queue_id: int,
    flag: int,
    sys_flag: int,
    born_timestamp: int,
    born_host: bytes,
    store_timestamp: int,
    store_host: bytes,
    reconsume_times: int,
    prepared_offset: int,
    body: bytes | bytearray | memoryview,
    topic: bytes,
    properties: bytes,
    crc_property: bool = False,
) -> bytes:
    """Encode one frame. The host bits of sysFlag follow from the hosts, whatever the caller set."""
    if {len(born_host), len(store_host)} - {8, 20}:
        raise ValueError("a host has 8 bytes (IPv4) or 20 (IPv6)")
    if not 0 < len(topic) <= 32767:
        raise ValueError(f"a topic of {len(topic)} B cannot be stored")
    sys_flag &= ~HOST_MASK
    sys_flag |= BORN_HOST_V6 if len(born_host) == 20 else 0
    sys_flag |= STORE_HOST_V6 if len(store_host) == 20 else 0
    properties = own_properties(properties)
    properties_size = stored_properties_size(properties, crc_property)
    if properties_size > PROPERTIES_BYTES_MAX:
        raise ValueError(f"properties of {properties_size} B exceed {PROPERTIES_BYTES_MAX} B")
    size = message_size(len(body), len(topic), properties_size, len(born_host), len(store_host))
    long_topic = len(topic) > TOPIC_BYTES_V1_MAX
    parts = [
        HEAD.pack(
            size,
            MAGIC_V2 if long_topic else MAGIC_V1,
            crc32(body),
            queue_id,
            flag,
            queue_offset,
            physical_offset,
            sys_flag,
            born_timestamp,
        ),
        born_host,
        store_timestamp.to_bytes(8, "big", signed=True),
        store_host,
        TAIL.pack(reconsume_times, prepared_offset, len(body)),
        body,
        len(topic).to_bytes(2 if long_topic else 1, "big"),
        topic,
        properties_size.to_bytes(2, "big"),
        properties,
    ]
    if crc_property:
        if properties_size > len(properties) + CRC_PROPERTY_BYTES:
            parts.append(b"\x02")
        frame = b"".join(parts)
        frame += crc_property_of(crc32(frame))
    else:
        frame = b"".join(parts)
    assert len(frame) == size, f"a frame of {len(frame)} bytes, its head says {size}"
    return frame


def decode_frame(
    view: bytes | bytearray | memoryview, pos: int = 0, end: int | None = None, verify: bool = True
) -> Outcome:
    """The outcome at `pos` of `view`, looking no further than `end`."""
    data = memoryview(view)
    end = len(data) if end is None else end
    left = end - pos
    if left <= 0:
        return End()
    if left < 8:
        return NeedMore(0) if any(data[pos:end]) else End()
    size, magic = struct.unpack_from(">iI", data, pos)
    if magic == BLANK_MAGIC:
        return Blank(size) if size >= BLANK_BYTES else Damage(f"BLANK of {size} B")
    if magic not in (MAGIC_V1, MAGIC_V2):
        if size == 0 and magic == 0:
            return End()
        return Damage(f"magic {magic:#010x} is unknown")
    if size < FRAME_BYTES_MIN:
        return Damage(f"size {size} is below the smallest frame, {FRAME_BYTES_MIN}")
    if size > left:
        return NeedMore(size)
    return _decode_whole(data[pos : pos + size], magic, verify)


def frame_properties(frame: bytes | memoryview) -> bytes | None:
    """The properties of a whole frame, found by its lengths alone; None if these contradict each
    other. Nothing else is checked."""
    if len(frame) < FRAME_BYTES_MIN:
        return None
    magic, sys_flag, body_bytes = _LENGTHS.unpack_from(frame)
    at = _BODY_AT
    try:
        if sys_flag & (BORN_HOST_V6 | STORE_HOST_V6):
            at += 12 * (bool(sys_flag & BORN_HOST_V6) + bool(sys_flag & STORE_HOST_V6))
            body_bytes = int.from_bytes(frame[at - 4 : at], "big")
        at += body_bytes
        topic_bytes = frame[at]
        if magic == MAGIC_V2:
            at += 1
            topic_bytes = topic_bytes << 8 | frame[at]
        at += 1 + topic_bytes + 2
    except IndexError:
        return None
    if len(frame) - at != int.from_bytes(frame[at - 2 : at], "big"):
        return None
    return bytes(frame[at:])


def _decode_whole(data: memoryview, magic: int, verify: bool) -> Frame | Damage:
    head = HEAD.unpack_from(data)
    size, sys_flag = head[0], head[7]
    born_end = HEAD.size + (20 if sys_flag & BORN_HOST_V6 else 8)
    store_end = born_end + 8 + (20 if sys_flag & STORE_HOST_V6 else 8)
    body_at = store_end + TAIL.size
    length_bytes = 2 if magic == MAGIC_V2 else 1
    if body_at + length_bytes + 2 > size:
        return Damage(f"size {size} is too small for its hosts")
    reconsume_times, prepared_offset, body_bytes = TAIL.unpack_from(data, store_end)
    topic_at = body_at + body_bytes + length_bytes
    if body_bytes < 0 or topic_at + 2 > size:
        return Damage(f"body of {body_bytes} B in a frame of {size} B")
    topic_bytes = int.from_bytes(data[topic_at - length_bytes : topic_at], "big", signed=True)
    properties_at = topic_at + topic_bytes + 2
    if topic_bytes <= 0 or properties_at > size:
        return Damage(f"topic of {topic_bytes} B in a frame of {size} B")
    properties_bytes = int.from_bytes(data[properties_at - 2 : properties_at], "big", signed=True)
    if properties_bytes < 0 or properties_at + properties_bytes != size:
        return Damage(f"properties of {properties_bytes} B do not end where the frame does")
    body = bytes(data[body_at : body_at + body_bytes])
    if verify and crc32(body) != head[2]:
        return Damage(f"body CRC is {crc32(body)}, the frame says {head[2]}")
    raw_properties = bytes(data[properties_at:size])
    if verify and has_crc_property(raw_properties):
        stated, crc = raw_properties[-CRC_PROPERTY_BYTES:], crc32(data[:-CRC_PROPERTY_BYTES])
        if stated != crc_property_of(crc):
            return Damage(f"frame CRC is {crc}, its last property says {stated!r}")
    return Frame(
        size=size,
        body_crc=head[2],
        queue_id=head[3],
        flag=head[4],
        queue_offset=head[5],
        physical_offset=head[6],
        sys_flag=sys_flag,
        born_timestamp=head[8],
        born_host=bytes(data[HEAD.size : born_end]),
        store_timestamp=int.from_bytes(data[born_end : born_end + 8], "big", signed=True),
        store_host=bytes(data[born_end + 8 : store_end]),
        reconsume_times=reconsume_times,
        prepared_offset=prepared_offset,
        body=body,
        topic=bytes(data[topic_at : topic_at + topic_bytes]),
        raw_properties=raw_properties,
    )
