"""A full page cache, as a server has that has run for days.

Where a page of memory comes from is a large part of what a written byte costs. A virtual machine
gets each page from its host when the page is touched for the first time, and gives large free areas
back. On such a machine a figure depends on how much memory happened to be warm. In a full cache a
new page is one that held another file, for everybody and in every run. Nothing waits to be written
in it: a run that finds the dirty pages of others is as fast as the disk.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any, Self

from saturnmq.cli.output import fail

LEFT_PART = 4  # of memory may be free; the kernel keeps a tenth to a fifth while files are read
STEP_BYTES = 16 << 20
ROUNDS = 4  # of reading as much as is free
ALL, FREE = "SC_PHYS_PAGES", "SC_AVPHYS_PAGES"


class FullCache:
    """A file of holes, which takes no room on the disk; what is read of it fills memory."""

    def __init__(self) -> None:
        total = _bytes(ALL)
        self._left = total // LEFT_PART
        self._size = total // STEP_BYTES * STEP_BYTES
        self._next = 0
        self._bytes = bytearray(STEP_BYTES)
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self._file.truncate(self._size)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self._file.close()

    def fill(self) -> None:
        """Have all dirty pages written. If much memory is free, read on as much as is free, round
        and round: the part that comes next left memory first, and no page stays free that nothing
        was in yet. The kernel may give memory back meanwhile, so some rounds may be needed."""
        os.sync()
        for _ in range(ROUNDS):
            free = _bytes(FREE)
            if free <= self._left:
                return
            for _ in range(0, free, STEP_BYTES):
                os.preadv(self._file.fileno(), [self._bytes], self._next)
                self._next = (self._next + STEP_BYTES) % self._size
        free = _bytes(FREE)
        if free > self._left:
            fail(
                f"{free >> 20} MiB of memory are still free after as much was read from a file "
                f"{ROUNDS} times, the limit is {self._left >> 20} MiB: name a folder on a disk in "
                "TMPDIR"
            )


def _bytes(pages: str) -> int:
    return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")
