"""Memory of the tables that grow by requests: topics, groups, offsets, consumers, queue locks.

They count in the process's budget (`protocol/budget.py`), of which they may have a part. Beyond
that part new entries are refused with SYSTEM_BUSY; existing ones stay, change and are served. Sizes
are estimates by the number of entries. Each new entry is counted when it comes, and now and then
all are counted anew, since entries go in many ways.

Topics, groups and offsets are each sent as one document in one frame: all three to slaves, topics
also to nameservers, which would otherwise lose the broker from their routes. So the sizes of these
documents are bounded as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from saturnmq.protocol.budget import Budget
from saturnmq.runtime.errors import SystemBusy

SHARE = 4  # the tables may have 1 / SHARE of the process's memory
# Bytes of one entry, with its part of the document that is written when the table is saved.
OFFSET, GROUP, TOPIC, MEMBER, LOCK = 600, 2000, 1500, 1500, 400
# Of one document: slaves also get, for each topic, the end of the log, and a frame has 16 MiB.
TEXT_BYTES = 10 << 20


class TableMemory:
    """The memory of one broker's tables."""

    def __init__(self, whole: Budget) -> None:
        name = f"of topics, groups and offsets: memoryBudgetBytes / {SHARE}"
        self._part = Budget(whole.limit // SHARE, name, whole)
        self.counts: Mapping[int, Callable[[], int]] = {}
        """The number of entries, by the bytes of one."""

    def take(self, size: int, what: str) -> None:
        """Take memory for `what`. SystemBusy: there is no room."""
        assert size > 0, f"{what} takes {size} bytes"
        self._part.take(size, what)

    def count(self) -> None:
        """Count all anew."""
        self._part.hold(sum(size * number() for size, number in self.counts.items()) - self.used)

    @property
    def used(self) -> int:
        return self._part.used

    def validate(self) -> None:
        """AssertionError: less than nothing is counted."""
        for size, number in self.counts.items():
            assert size > 0, f"an entry of {size} bytes"
            assert number() >= 0, f"{number()} entries of {size} bytes"
        assert self.used >= 0, f"the tables have {self.used} bytes"


class TableText:
    """The bytes that the entries of one table have as JSON."""

    def __init__(self, what: str, sizes: Callable[[], Iterable[int]]) -> None:
        """`sizes` gives the sizes of all present entries."""
        self._what = what
        self._sizes = sizes
        self._bytes = 0

    def count(self) -> None:
        """Count all anew."""
        self._bytes = sum(self._sizes())

    def grow(self, more: int) -> None:
        """Grow by an entry that came or changed; below 0, shrink by one that went."""
        self._bytes += more

    def validate(self) -> None:
        """AssertionError: it was not told of an entry that came, changed or went."""
        counted = sum(self._sizes())
        assert self._bytes == counted, f"the {self._what}: {self._bytes} are known of {counted}"

    def check(self, more: int) -> None:
        """Check that there is room for so much more. SystemBusy: there is none."""
        check_text(self._what, self._bytes, more)


def fits_frame(size: int) -> bool:
    """Whether a table whose text has this size fits into one frame."""
    return size <= TEXT_BYTES


def check_text(what: str, size: int, more: int) -> None:
    """Check that a table whose text has this size has room for so much more. SystemBusy: it has
    none."""
    if more > 0 and not fits_frame(size + more):
        raise SystemBusy(
            f"the {what} of this broker have {size} bytes, the limit is {TEXT_BYTES}: {more} more "
            "would not fit into one frame; delete some"
        )
