"""Checksums of the files of an archive."""

from __future__ import annotations

import os
import zlib

_BLOCK = 1 << 20


def crc_of_last(path: str, size: int) -> int:
    """The checksum of the last bytes of a file, such as its footer, or the whole of it."""
    crc = 0
    with open(path, "rb") as file:
        file.seek(-size, os.SEEK_END)
        while block := file.read(_BLOCK):
            crc = zlib.crc32(block, crc)
    return crc


def footer_bytes(path: str) -> int:
    """The size of a Parquet file's footer, with the 8 bytes at its end that tell it."""
    with open(path, "rb") as file:
        file.seek(-8, os.SEEK_END)
        return int.from_bytes(file.read(4), "little") + 8
