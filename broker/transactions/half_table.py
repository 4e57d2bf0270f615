"""Which halves are open. Pure: the endings in the log go in, in their order.

All halves before `position` are over. Behind it the endings are kept, until those before them have
come as well. An open half takes no memory, unless it has moved to the end of its queue.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass

from saturnmq.broker.transactions.endings import EndingKind

OUTCOMES = 10_000  # ends that are remembered for producers that end a transaction again


@dataclass(frozen=True, slots=True)
class Moved:
    """A transaction whose half was stored again: where, and since when its first half waits."""

    offset: int
    since: float


class HalfTable:
    def __init__(self, position: int, base: int) -> None:
        """Of a log whose newest ending has these two."""
        self.position = position
        self._next_ending = base
        self._ended: set[int] = set()  # halves from `position` on
        self._endings: deque[tuple[int, int]] = deque()  # (ending, half), by ending
        self._moved: dict[int, Moved] = {}  # by root
        self._end = 0  # behind the last half that moved here
        self._outcomes: OrderedDict[int, EndingKind] = OrderedDict()  # of roots

    def validate(self) -> None:
        """AssertionError: it contradicts itself."""
        assert self.position not in self._ended, f"{self.position} is over, and not passed"
        assert all(half > self.position for half in self._ended), f"halves before {self.position}"
        ended = {half for _, half in self._endings}
        assert self._ended <= ended, f"no ending of {self._ended - ended}"
        for root, moved in self._moved.items():
            assert root < moved.offset, f"{root} moved back to {moved.offset}"
            assert self.is_open(moved.offset), f"{root} moved to {moved.offset}, which is over"

    @property
    def base(self) -> int:
        """No ending before this one is about a half from `position` on."""
        return self._endings[0][0] if self._endings else self._next_ending

    def pending(self, end: int) -> int:
        """The number of open halves in a queue that ends at `end`, or behind the last half that
        moved: reput comes to that one a moment later."""
        return max(0, max(end, self._end) - self.position - len(self._ended))

    def is_open(self, offset: int) -> bool:
        return offset >= self.position and offset not in self._ended

    def current(self, root: int) -> int:
        """Where the half of this transaction is now, or was last."""
        moved = self._moved.get(root)
        return root if moved is None else moved.offset

    def since(self, root: int) -> float | None:
        """Since when its first half waits; None if it never moved."""
        moved = self._moved.get(root)
        return None if moved is None else moved.since

    def outcome(self, root: int) -> EndingKind | None:
        """How this transaction ended, if that was not long ago."""
        return self._outcomes.get(root)

    def end(self, half: int, root: int, kind: EndingKind | None, ending: int) -> None:
        """The half is over, says the ending at this place of its queue."""
        self._next_ending = max(self._next_ending, ending + 1)
        if kind is not None and kind is not EndingKind.MOVED:
            self._remember(root, kind)
            self._moved.pop(root, None)
        if not self.is_open(half):
            return
        self._ended.add(half)
        self._endings.append((ending, half))
        self._advance()

    def begin_at(self, first: int) -> int:
        """The log has no half before `first` any more. Return how many open ones it had."""
        if first <= self.position:
            return 0
        gone = {half for half in self._ended if half < first}
        lost = first - self.position - len(gone)
        assert lost >= 0, f"{len(gone)} halves are over of {first - self.position}"
        self._ended -= gone
        self._moved = {root: moved for root, moved in self._moved.items() if moved.offset >= first}
        self.position = first
        self._advance()
        return lost

    def _advance(self) -> None:
        """Pass the halves that are over."""
        while self.position in self._ended:
            self._ended.remove(self.position)
            self.position += 1
        while self._endings and self._endings[0][1] < self.position:
            self._endings.popleft()

    def move(self, root: int, offset: int, since: float) -> None:
        """Its half is at `offset` now, for a first one that waits since then."""
        assert self.is_open(offset), f"{root} moves to {offset}, which is over"
        self._moved[root] = Moved(offset, since)
        self._end = max(self._end, offset + 1)

    def _remember(self, root: int, kind: EndingKind) -> None:
        self._outcomes[root] = kind
        if len(self._outcomes) > OUTCOMES:
            self._outcomes.popitem(last=False)
