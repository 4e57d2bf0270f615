"""The times since which the messages of one delay level wait, by this process's steady clock.

Store time cannot give them: it is wall time, which steps, and it never runs backwards, so after a
clock that was ahead many messages carry one stamp of the future. This table has the times that the
process observed. An entry (end, since) says that the queue's messages before `end`, from the end of
the entry before, had come by `since`. That is too early for none of them, and too late by one grain
at most. Due messages need no entry, so there are never more entries than the delay has grains.

For messages that came before the process began, `since` is None, unless the process before wrote
it down. Then their store time counts, or the start of the process if store time lies ahead of it
or comes from another machine's clock.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise
from operator import itemgetter

GRAIN_S = 1.0
SHARE = 100  # a grain is no more than this part of the delay

Entry = tuple[int, float | None]
"""The queue offset where the entry ends; seconds of the steady clock."""

_END = itemgetter(0)


class Waits:
    """The waits in a queue that ended at `end` when the process began, at `start` on its steady
    clock."""

    def __init__(self, delay_s: float, start: float, end: int) -> None:
        self._delay = delay_s
        self._start = start
        self._entries: list[Entry] = [(end, None)] if end else []
        self._opened = -math.inf  # when the first message of the newest entry came

    def __len__(self) -> int:
        return len(self._entries)

    def validate(self) -> None:
        """AssertionError: entries are out of order, or of the future."""
        assert self._delay >= 0, f"a delay of {self._delay} s"
        for (end, _), (later, _) in pairwise(self._entries):
            assert end < later, f"an entry to {later} behind one to {end}"
        for end, since in self._entries:
            assert end > 0, f"an entry to {end}"
            assert since is None or since < math.inf, f"messages before {end} wait since {since}"

    @property
    def end(self) -> int:
        """The queue offset where the last entry ends."""
        return self._entries[-1][0] if self._entries else 0

    def came(self, end: int, now: float) -> bool:
        """Note that the queue ends at `end` since a moment ago; False if that is known."""
        if end <= self.end:
            return False
        assert now >= self._opened, f"the newest entry is of {self._opened}, it is {now}"
        if now - self._opened < min(GRAIN_S, self._delay / SHARE):
            self._entries[-1] = end, now
        else:
            self._entries.append((end, now))
            self._opened = now
            self._drop_due(now)
        return True

    def _drop_due(self, now: float) -> None:
        """Drop the entries before the last due one: their messages came earlier, so they are due
        too. The newest entry has just come and is not due."""
        due = 0
        while self._latest(self._entries[due][1]) + self._delay <= now:
            due += 1
        del self._entries[: max(due - 1, 0)]

    def _latest(self, since: float | None) -> float:
        return self._start if since is None else since

    def due(self, offset: int, stored: float) -> float:
        """The time at which the message at `offset`, which is before `end`, is due; `stored` is its
        store time on the steady clock, inf if that is not known."""
        since = self._since(offset)
        return self._delay + (min(stored, self._start) if since is None else since)

    def _since(self, offset: int) -> float | None:
        assert 0 <= offset < self.end, f"{offset} is asked for, {self.end} are known"
        return self._entries[bisect_right(self._entries, offset, key=_END)][1]

    def cut(self, end: int) -> bool:
        """Drop the messages from `end` on, which the queue has lost; False if no entry had any."""
        if end >= self.end:
            return False
        since = self._since(end)
        del self._entries[bisect_right(self._entries, end, key=_END) :]
        if end > self.end:
            self._entries.append((end, since))
        self._opened = -math.inf
        assert self.end <= end, f"cut at {end}, and known to {self.end}"
        return True

    def adopt(self, known: Iterable[Entry]) -> None:
        """Take the entries of a process that saw these messages come, as far as this queue reaches;
        entries of later messages stay."""
        taken: list[Entry] = []
        last = 0
        for its_end, since in known:
            end = min(its_end, self.end)
            if end > last:
                taken.append((end, self._since(end - 1) if since is None else since))
                last = end
        self._entries[: bisect_right(self._entries, last, key=_END)] = taken
        self._opened = -math.inf

    def waiting(self, offset: int) -> list[Entry]:
        """The entries from `offset` on, for the next process: no more of them than SHARE plus the
        grains in the last hundredth of the delay."""
        found: list[Entry] = []
        opened = -math.inf
        for end, since in self._entries[bisect_right(self._entries, offset, key=_END) :]:
            if since is not None and since - opened < self._delay / SHARE:
                found[-1] = end, since
            else:
                found.append((end, since))
                opened = -math.inf if since is None else since
        return found
