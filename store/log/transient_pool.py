"""TransientStorePool: buffers of one segment each that appends go to before they reach the file.

RocketMQ's option for disks whose page cache stalls writers (docs/internals/format.md 6.2): a send
is acknowledged from memory that no file backs, and a commit every 200 ms writes it. Uncommitted
bytes are lost with the process, also after a kill, so it is off by default. When all buffers
wait to be written, appends go to the file directly, or are refused with `fail_fast`.
"""

from __future__ import annotations

from saturnmq.store.disk import Disk


class TransientStorePool:
    """A fixed number of buffers; a commit gives one back when its segment is written."""

    def __init__(self, disk: Disk, size: int, segment_bytes: int, *, fail_fast: bool) -> None:
        assert size > 0, f"a pool of {size} buffers"
        self.size = size
        self.fail_fast = fail_fast
        self._free = [disk.buffer(segment_bytes) for _ in range(size)]

    @property
    def free(self) -> int:
        return len(self._free)

    def borrow(self) -> memoryview | None:
        """A buffer whose content means nothing, or None: all are in use."""
        return self._free.pop() if self._free else None

    def give_back(self, buffer: memoryview) -> None:
        assert len(self._free) < self.size, f"all {self.size} buffers are here already"
        self._free.append(buffer)
