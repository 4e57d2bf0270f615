"""Message body compression as the sysFlag names it.

bit 0 = compressed; bits 8-10 = type: 1 LZ4 (frame format), 2 ZSTD, 3 ZLIB, 0 = written by a 4.x
client = ZLIB. Producers compress bodies above a threshold, brokers store them untouched, consumers
decompress lazily. A few kilobytes can expand to gigabytes, so every reader has a limit, and a
process keeps the unpacked body of only one received message at a time.
"""

from __future__ import annotations

import weakref
import zlib
from collections import deque
from typing import Any, cast

from saturnmq.runtime.errors import InvalidParameter, MessageIllegal

COMPRESSED_FLAG = 0x1
TYPE_MASK = 0x700
LZ4, ZSTD, ZLIB = 1, 2, 3
TYPE_SHIFT = 8
NAMES = {"lz4": LZ4, "zstd": ZSTD, "zlib": ZLIB}

RLE_BLOCK = 1  # of zstd: one byte that is repeated

BODY_BYTES_MAX = 64 << 20
"""Largest body a consumer unpacks: sixteen times the broker's default maxMessageSize."""


def sys_flag_of(kind: int) -> int:
    """The sysFlag bits of a body compressed with `kind`."""
    return COMPRESSED_FLAG | kind << TYPE_SHIFT


def compress(body: bytes | bytearray | memoryview, kind: int = ZLIB, level: int = 5) -> bytes:
    if kind == ZLIB:
        return zlib.compress(body, level)
    if kind == LZ4:
        import lz4.frame

        return cast(bytes, lz4.frame.compress(bytes(body)))
    if kind == ZSTD:
        import zstandard

        return zstandard.ZstdCompressor(level=level).compress(body)
    raise InvalidParameter(f"compression type {kind} is unknown; use one of {sorted(NAMES)}")


def decompress(
    body: bytes | bytearray | memoryview, sys_flag: int, bytes_max: int = BODY_BYTES_MAX
) -> bytes:
    """The plain body of a stored body; MessageIllegal when it is damaged or above the limit."""
    if not sys_flag & COMPRESSED_FLAG:
        return bytes(body)
    kind = (sys_flag & TYPE_MASK) >> TYPE_SHIFT or ZLIB
    decompressor: Any
    if kind == ZLIB:
        decompressor = zlib.decompressobj()
    elif kind == LZ4:
        import lz4.frame

        decompressor = lz4.frame.LZ4FrameDecompressor()
    elif kind == ZSTD:
        return _decompress_zstd(bytes(body), bytes_max)
    else:
        raise MessageIllegal(f"compression type {kind} of sysFlag {sys_flag:#x} is unknown")
    try:
        # One byte above the limit is requested, to tell "exactly full" from "there is more".
        plain = decompressor.decompress(bytes(body), bytes_max + 1)
    except (zlib.error, RuntimeError, EOFError) as error:
        raise MessageIllegal(f"compressed body of {len(body)} B is damaged: {error}") from None
    if len(plain) > bytes_max:
        raise _too_large(len(body), bytes_max)
    if not decompressor.eof:
        raise MessageIllegal(f"compressed body of {len(body)} B is cut off")
    return cast(bytes, plain)


class Unpacked:
    """Keeps the unpacked body of a received message until the body of another one is unpacked:
    `body` is None from then on. 200 messages of 2 KB may unpack to 64 MiB each."""

    __slots__ = ("__weakref__", "body")

    def __init__(self, body: bytes) -> None:
        self.body: bytes | None = body


# The objects that may still have a body, the newest last. Threads share the deque: each call on it
# is one step.
_unpacked: deque[weakref.ref[Unpacked]] = deque()


def unpack(packed: bytes, sys_flag: int) -> tuple[bytes, Unpacked]:
    """A plain body, and the object that keeps it for a while; see `decompress`."""
    _let_go(0)  # before the new one takes its memory
    body = decompress(packed, sys_flag)
    kept = Unpacked(body)
    _unpacked.append(weakref.ref(kept))
    _let_go(1)
    return body, kept


def _let_go(count: int) -> None:
    """Empty all but the newest `count`."""
    while len(_unpacked) > count:
        try:
            older = _unpacked.popleft()()
        except IndexError:  # another thread was faster
            return
        if older is not None:
            older.body = None


def _decompress_zstd(body: bytes, bytes_max: int) -> bytes:
    import io

    import zstandard

    try:
        content_size = zstandard.frame_content_size(body)  # -1: the frame does not say
        if content_size > bytes_max:
            raise _too_large(len(body), bytes_max)
        with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(body)) as reader:
            # The read allocates this much memory, however little data there is.
            plain = reader.read((bytes_max if content_size < 0 else content_size) + 1)
        is_whole = _has_last_block(body) if content_size < 0 else len(plain) >= content_size
    except zstandard.ZstdError as error:
        raise MessageIllegal(f"compressed body of {len(body)} B is damaged: {error}") from None
    if len(plain) > bytes_max:
        raise _too_large(len(body), bytes_max)
    if not is_whole:
        raise MessageIllegal(f"compressed body of {len(body)} B is cut off")
    return plain


def _has_last_block(frame: bytes) -> bool:
    """Whether a zstd frame has all its blocks (RFC 8878, 3.1.1): a reader of the library ends
    without a word where the frame does."""
    import zstandard

    position = zstandard.frame_header_size(frame)
    checksum = 4 if zstandard.get_frame_parameters(frame).has_checksum else 0
    while position + 3 <= len(frame):
        block = int.from_bytes(frame[position : position + 3], "little")
        is_last, kind, size = block & 1, block >> 1 & 3, block >> 3
        position += 3 + (1 if kind == RLE_BLOCK else size)
        if is_last:
            return position + checksum <= len(frame)
    return False


def _too_large(size: int, bytes_max: int) -> MessageIllegal:
    return MessageIllegal(
        f"a body of {size} B expands to more than {bytes_max} B; raise the limit or read raw_body"
    )
