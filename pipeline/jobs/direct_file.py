"""A big file that is written once, from its begin to its end, around the page cache.

An archive is not read while it is made, and what a job writes would only push out of memory what
brokers on the same machine serve from there. The system's own way costs a copy into fresh pages,
too: 2 to 5 times as dear as the disk itself, measured on a virtual machine. So bytes are gathered
in blocks, and one block goes to the disk while the next one is filled. File systems that cannot do
that (memory, some networks) are written to as ever, in the same blocks.
"""

from __future__ import annotations

import errno
import mmap
import os
import zlib
from concurrent.futures import Executor, Future

BLOCK = 4 << 20  # a multiple of every disk's sector, and of a page
_SECTOR = 4096


class DirectFile:
    """A file as Arrow's writers expect it. An OSError of the disk is raised by the next call, at
    the latest by `close`; after it the file is worth nothing."""

    def __init__(self, path: str, writer: Executor, *, durable: bool) -> None:
        """A new file; with `durable` it survives a power cut once it is closed. `writer` writes the
        blocks, one after the other: an executor with one thread, which files may share."""
        self._writer = writer
        self._durable = durable
        self._fd = _open(path)
        self._blocks = [mmap.mmap(-1, BLOCK)]  # memory is taken as it is filled
        self._filled = 0  # of the first block
        self._size = 0
        self.crc = 0  # CRC-32 of all that was written
        self._under_way: Future[None] | None = None

    @property
    def closed(self) -> bool:
        return self._fd < 0

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        """Nothing: what is not a whole block stays until `close`."""

    def write(self, data: bytes | memoryview) -> int:
        rest = memoryview(data).cast("B")
        size = len(rest)
        if self.closed:
            return size
        self.crc = zlib.crc32(rest, self.crc)
        while len(rest):
            part = rest[: BLOCK - self._filled]
            self._blocks[0][self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            rest = rest[len(part) :]
            if self._filled == BLOCK:
                self._send(BLOCK)
        self._size += size
        return size

    def close(self) -> None:
        """Write the rest."""
        if self.closed:
            return
        try:
            if self._filled:
                end = -(-self._filled // _SECTOR) * _SECTOR
                self._blocks[0][self._filled : end] = bytes(end - self._filled)
                self._send(end)
            self._settle()
            os.ftruncate(self._fd, self._size)
            if self._durable:
                os.fsync(self._fd)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close it as it is. Bytes that an Arrow writer writes at its own end are dropped."""
        if self._under_way is not None:
            self._under_way.exception()  # its descriptor and block are in use until then
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
        self._blocks.clear()

    def _send(self, size: int) -> None:
        self._settle()
        if len(self._blocks) == 1:
            self._blocks.append(mmap.mmap(-1, BLOCK))
        self._under_way = self._writer.submit(_write, self._fd, self._blocks[0], size)
        self._blocks.reverse()
        self._filled = 0

    def _settle(self) -> None:
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.result()


def _open(path: str) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(path, flags | getattr(os, "O_DIRECT", 0), 0o644)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    # Linux refuses the flag after it has made the file.
    return os.open(path, flags & ~os.O_EXCL, 0o644)


def _write(fd: int, block: mmap.mmap, size: int) -> None:
    with memoryview(block) as whole:
        done = 0
        while done < size:
            with whole[done:size] as rest:
                done += os.write(fd, rest)
