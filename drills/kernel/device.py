"""A disk with a volatile cache that can be told to fail.

Writes stay in the cache, in blocks of 4 KiB, until a flush puts them on the medium, a file. At a
power cut each block of the cache is, independently, kept, dropped or torn at a sector of 512 bytes:
later writes may survive earlier ones, as on a drive that reorders. A failed write changes nothing
and says so; a failed flush loses the blocks that it should have written.
"""

from __future__ import annotations

import errno
import math
import os
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

BLOCK = 4096
SECTOR = 512
LOG_FRAME = b"\xda\xa3\x20"  # the magics of both frame versions begin so


@dataclass(frozen=True)
class Fault:
    """A fault that begins at the first matching write or flush after it is armed."""

    error: int = 0  # errno of the answer; 0: none
    seconds: float = 0.0  # how long it lasts from the first hit on; 0: that one only
    flushes: bool = False  # meant for flushes, not for writes
    delay_s: float = 0.0  # each one takes so much longer
    lose: bool = False  # answered as done, and not done
    tear: float | None = None  # the power goes; so much of the cache is torn


FAULTS = {
    "dropped cache": Fault(tear=0.2),
    "torn write": Fault(tear=1.0),
    "EIO once": Fault(errno.EIO),
    "EIO for 200 ms": Fault(errno.EIO, seconds=0.2),
    "EIO for ever": Fault(errno.EIO, seconds=math.inf),
    "EIO on flush": Fault(errno.EIO, flushes=True),
    "device full": Fault(errno.ENOSPC, seconds=0.2),
    "slow disk": Fault(seconds=math.inf, delay_s=0.15),
    "lost write": Fault(lose=True),
}


class FaultyDevice:
    """See the module's text; `BlockDevice` for fuse.py. Closing it is the owner's part."""

    def __init__(self, path: Path, chance: random.Random) -> None:
        self.size = path.stat().st_size
        self.counts: Counter[str] = Counter()
        self.hit = threading.Event()
        self.hit_at = math.inf  # monotonic seconds of the first fault
        self.cut_at = math.inf  # and of the power cut
        self.lost = b""  # the bytes of a lost write
        self._chance = chance
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._cache: dict[int, bytes] = {}
        self._fault: Fault | None = None
        self._aim = b""
        self._off = False
        self._mutex = threading.Lock()

    def close(self) -> None:
        os.close(self._fd)

    def arm(self, fault: Fault, aim: bytes = b"") -> None:
        """The next write that holds `aim` (or the next flush) meets `fault`."""
        with self._mutex:
            self._fault, self._aim = fault, aim

    def power_cut(self, tear: float = 0.2) -> None:
        """The cache is gone but for what chance kept; nothing changes the medium any more."""
        with self._mutex:
            if self._off:
                return
            self._off, self.cut_at = True, time.monotonic()
            for block in sorted(self._cache):
                data, fate = self._cache[block], self._chance.random()
                if fate < tear:
                    self.counts["torn"] += 1
                    data = data[: self._chance.randrange(1, BLOCK // SECTOR) * SECTOR]
                elif fate < (1 + tear) / 2:
                    self.counts["dropped"] += 1
                    continue
                else:
                    self.counts["kept"] += 1
                os.pwrite(self._fd, data, block * BLOCK)

    # BlockDevice

    def read(self, pos: int, n: int) -> bytes:
        with self._mutex:
            first, last = pos // BLOCK, (pos + n - 1) // BLOCK
            data = b"".join(map(self._block, range(first, last + 1)))
        return data[pos - first * BLOCK :][:n]

    def write(self, pos: int, data: memoryview) -> None:
        self.counts["writes"] += 1
        met = self._meets(data)
        if met is not None and met.lose:
            self.lost = data.tobytes()
            return
        with self._mutex:
            self._put(pos, data)
        if met is not None and met.tear is not None:
            self.power_cut(met.tear)

    def flush(self) -> None:
        self.counts["flushes"] += 1
        try:
            self._meets(None)
        except OSError:
            with self._mutex:
                self._cache.clear()
            raise
        with self._mutex:
            if not self._off:
                for block, data in self._cache.items():
                    os.pwrite(self._fd, data, block * BLOCK)
                self._cache.clear()

    def _put(self, pos: int, data: memoryview) -> None:
        while data:
            block, at = divmod(pos, BLOCK)
            part = data[: BLOCK - at]
            whole = bytes(part)
            if len(part) < BLOCK:
                old = self._block(block)
                whole = old[:at] + whole + old[at + len(part) :]
            self._cache[block] = whole
            pos, data = pos + len(part), data[len(part) :]

    def _block(self, block: int) -> bytes:
        found = self._cache.get(block)
        return os.pread(self._fd, BLOCK, block * BLOCK) if found is None else found

    def _meets(self, data: memoryview | None) -> Fault | None:
        """Let the armed fault happen to a write of `data`, or to a flush; what is left to do."""
        with self._mutex:
            fault = self._fault
            if fault is None or fault.flushes != (data is None) or self._off:
                return None
            now = time.monotonic()
            if not self.hit.is_set():
                if data is not None and self._aim not in data.tobytes():
                    return None
                self.hit_at = now
                self.hit.set()
            elif now >= self.hit_at + fault.seconds:
                self._fault = None
                return None
            self.counts["faults"] += 1
        time.sleep(fault.delay_s)
        if fault.error:
            raise OSError(fault.error, os.strerror(fault.error))
        return fault
