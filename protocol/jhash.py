"""Java's `String.hashCode` and the tag code built on it.

A tag code travels in every ConsumeQueue entry and every heartbeat, an index key hash in every
IndexFile item; both are the 32-bit Java hash, so brokers and clients of both kinds must agree on it
to the bit. h = 31 * h + c over UTF-16 code units, wrapped to a signed 32-bit integer; a character
outside the basic plane therefore counts as its two surrogates.
"""

from __future__ import annotations

import struct
from functools import lru_cache


def jhash(text: str, seed: int = 0) -> int:
    """The hash of `text`; with `seed` = the hash of a prefix, the hash of prefix + text."""
    value = seed & 0xFFFFFFFF
    if text.isascii():
        for byte in text.encode("ascii"):
            value = (31 * value + byte) & 0xFFFFFFFF
    else:
        # "surrogatepass": a lone surrogate is a legal Java char and must hash as itself.
        data = text.encode("utf-16-be", "surrogatepass")
        for unit in struct.unpack(f">{len(data) // 2}H", data):
            value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


@lru_cache(maxsize=4096)
def tags_code(tag: str | None) -> int:
    """The code stored in a ConsumeQueue entry: 0 without a tag, else the Java hash of the tag."""
    return jhash(tag) if tag else 0


def index_hash(topic: str, key: str) -> int:
    """The IndexFile hash of `topic#key`: |hash|, and 0 for the one value whose |.| overflows."""
    value = abs(jhash(f"{topic}#{key}"))
    return 0 if value == 1 << 31 else value
