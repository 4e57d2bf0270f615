"""A shelf: the messages that wait for moments of one clock, millions of them in bounded memory.

Arrivals go into a heap. A full heap becomes a run (`runs.py`), and runs of about one size become
one larger run, so there are few. The next message is the least of the heap's first entry and of the
first entry of each run. Nothing here reads a clock or a file.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable

from saturnmq.broker.timer.entries import (
    ENTRY_BYTES,
    are_one,
    is_settled,
    moment_of,
    pack,
    unpack,
)
from saturnmq.broker.timer.runs import Run

FRESH_MAX = 16_384  # entries in the heap
ALIKE_MAX = 8  # runs of one size class
_CLASS_FACTOR = 8

Waiting = tuple[int, int, int]
"""(moment, queue offset, kind) of a message."""


class Shelf:
    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self.runs = list(runs)
        self._fresh: list[bytes] = []

    def __len__(self) -> int:
        """Entries, settled ones included."""
        return len(self._fresh) + sum(len(run) for run in self.runs)

    def validate(self) -> None:
        """AssertionError: a run cannot be like this."""
        for run in self.runs:
            run.validate()

    @property
    def is_full(self) -> bool:
        """Whether the heap is to become a run."""
        return len(self._fresh) >= FRESH_MAX

    @property
    def fresh(self) -> int:
        """Entries in the heap."""
        return len(self._fresh)

    @property
    def unloaded(self) -> list[Run]:
        """Runs whose next block must be read before anything can leave."""
        return [run for run in self.runs if not run.is_loaded]

    def add(self, moment: int, offset: int, kind: int) -> None:
        heapq.heappush(self._fresh, pack(moment, offset, kind))

    def freeze(self) -> None:
        """Make a run of the heap's entries."""
        if self._fresh:
            self._fresh.sort()
            self.runs.append(Run((), block=b"".join(self._fresh)))
            self._fresh = []

    def next_moment(self) -> int | None:
        """The moment of the first entry; None if there is none, or it must be read first."""
        if self.unloaded:
            return None
        entry = self._least()[0]
        return None if entry is None else moment_of(entry)

    def take_due(self, now: int, most: int, is_over: Callable[[int, int], bool]) -> list[Waiting]:
        """Let up to `most` messages leave whose moment is not after `now`, but for those that
        `is_over(moment, offset)` knows to be settled. Fewer come if a block must be read."""
        found: list[Waiting] = []
        while len(found) < most and not self.unloaded:
            entry, take = self._least()
            if entry is None or moment_of(entry) > now:
                break
            if is_settled(entry):
                if not self._take_settled(entry, take):
                    break
                continue
            take()
            moment, offset, kind = unpack(entry)
            if not is_over(moment, offset):
                found.append((moment, offset, kind))
        return found

    def drop_settled(self, most: int) -> bool:
        """Let settled messages leave that are first in the order; True: there may be more."""
        for _ in range(most):
            if self.unloaded:
                return True
            entry, take = self._least()
            if entry is None or not is_settled(entry):
                return False
            if not self._take_settled(entry, take):
                return True
        return True

    def _take_settled(self, entry: bytes, take: Callable[[], bytes]) -> bool:
        """Let a SETTLED entry leave, with the message that it ends; False: a block must be read
        before, nothing has left."""
        take()
        if self.unloaded:
            heapq.heappush(self._fresh, entry)
            return False
        following, take = self._least()
        while following is not None and are_one(entry, following):
            take()  # another SETTLED entry like it, or the message
            if self.unloaded:
                heapq.heappush(self._fresh, entry)
                return not is_settled(following)
            if not is_settled(following):
                break
            following, take = self._least()
        return True

    def _least(self) -> tuple[bytes | None, Callable[[], bytes]]:
        """The first entry, and the function that lets it leave."""
        least, take = (self._fresh[0] if self._fresh else None), self._pop
        for run in self.runs:
            head = run.head
            if head is not None and (least is None or head < least):
                least, take = head, run.take
        return least, take

    def _pop(self) -> bytes:
        return heapq.heappop(self._fresh)

    # runs

    def drop_empty(self) -> None:
        """Forget runs that all messages have left."""
        self.runs = [run for run in self.runs if len(run)]

    def mergeable(self) -> list[Run]:
        """Runs that should become one: too many are of about the same size."""
        classes: dict[int, list[Run]] = {}
        for run in self.runs:
            size, number = len(run) // FRESH_MAX, 0
            while size:
                size //= _CLASS_FACTOR
                number += 1
            classes.setdefault(number, []).append(run)
        return next((runs for _, runs in sorted(classes.items()) if len(runs) >= ALIKE_MAX), [])

    def replace(self, old: list[Run], new: Run | None) -> None:
        """Put one run in the place of those that it was made of."""
        gone = {id(run) for run in old}
        assert gone <= {id(run) for run in self.runs}, "runs of another shelf were merged"
        self.runs = [run for run in self.runs if id(run) not in gone]
        if new is not None and len(new):
            self.runs.append(new)


assert FRESH_MAX * ENTRY_BYTES <= 1 << 20, "a run in memory is small"
