"""Memory of the tables that grow by requests: topics, groups, offsets, consumers, queue locks.

They count in the process's budget (`protocol/budget.py`) and have a part of it at most. Beyond that
nothing new is remembered, SYSTEM_BUSY; what is there stays, changes and is served. Sizes are
estimates by the number of entries: each new one is counted when it comes, and now and then all are
counted anew, since they go in many ways.

Topics, groups and offsets are told as one document each, in one frame: topics to nameservers, which
would lose the broker from their routes, all of them to slaves. So what their texts may have is
bounded as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from saturnmq.protocol.budget import Budget
from saturnmq.runtime.errors import SystemBusy

SHARE = 4  # the tables may have this part of the process's memory
# Bytes of one entry, with its part of the document that is written when the table is saved.
OFFSET, GROUP, TOPIC, MEMBER, LOCK = 600, 2000, 1500, 1500, 400
# Of all entries: slaves are told of each topic where the log ended, too, and a frame has 16 MiB.
TEXT_BYTES = 10 << 20


class TableMemory:
    """Of one broker."""

    def __init__(self, whole: Budget) -> None:
        name = f"of topics, groups and offsets: memoryBudgetBytes / {SHARE}"
        self._part = Budget(whole.limit // SHARE, name, whole)
        self.counts: Mapping[int, Callable[[], int]] = {}
        """By the bytes of one: how many there are."""

    def take(self, size: int, what: str) -> None:
        """`what` is about to be remembered: SystemBusy if there is no room."""
        self._part.take(size, what)

    def count(self) -> None:
        """Count all anew."""
        self._part.hold(sum(size * number() for size, number in self.counts.items()) - self.used)

    @property
    def used(self) -> int:
        return self._part.used


class TableText:
    """The bytes that the entries of one table have as JSON."""

    def __init__(self, what: str, sizes: Callable[[], Iterable[int]]) -> None:
        """`sizes`: those of all entries there are."""
        self._what = what
        self._sizes = sizes
        self._bytes = 0

    def count(self) -> None:
        """Count all anew."""
        self._bytes = sum(self._sizes())

    def grow(self, more: int) -> None:
        """By an entry that came, changed or, below 0, went."""
        self._bytes += more

    def check(self, more: int) -> None:
        """SystemBusy: there is no room for so much more."""
        check_text(self._what, self._bytes, more)


def fits_frame(size: int) -> bool:
    """Whether others can be told a table whose text has this size."""
    return size <= TEXT_BYTES


def check_text(what: str, size: int, more: int) -> None:
    """SystemBusy: a table whose text has this size has no room for so much more."""
    if more > 0 and not fits_frame(size + more):
        raise SystemBusy(
            f"the {what} of this broker have {size} bytes, the limit is {TEXT_BYTES}: {more} more "
            "could not be told in one frame; delete some"
        )
