"""A flush of the log: what to write and to sync, in a thread beside the writer."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field

from saturnmq.store.disk import SegmentFile
from saturnmq.store.offsets import PhysicalOffset


class LogFailed(Exception):
    """A write or a sync of the log failed: nobody knows what of it is on the disk."""


@dataclass(slots=True)
class FlushTicket:
    """Ranges to write from buffers and then to make durable; any thread may call `run`."""

    target: PhysicalOffset
    store_timestamp: int
    ranges: list[tuple[SegmentFile, int, int]] = field(default_factory=list)
    commits: list[tuple[SegmentFile, int, memoryview]] = field(default_factory=list)

    def __post_init__(self) -> None:
        assert self.target >= 0, f"a flush up to {self.target}"

    @property
    def only_file(self) -> SegmentFile | None:
        """The file whose sync is all that `run` has to do; None if it has more, or nothing, to
        do."""
        return self.ranges[0][0] if len(self.ranges) == 1 and not self.commits else None

    def run(self) -> None:
        for file, start, data in self.commits:
            file.write(start, data)
        for file, start, end in self.ranges:
            file.flush(start, end)
        self.check_in_place()

    def check_in_place(self) -> None:
        """After the syncs: OSError if a file has lost its name meanwhile, and its bytes with it."""
        for file, _, _ in self.ranges:
            if not file.in_place():
                raise gone(file)


def gone(file: SegmentFile) -> OSError:
    """The error that a file of the log is not in its place any more."""
    return OSError(
        errno.ESTALE,
        "it was deleted, replaced or cut short under the running broker; what it holds can be read "
        "as long as this process lives",
        file.path,
    )
