"""New queue entries, noted until readers may see their messages.

Reput tells of entries before their messages are confirmed. A service that holds requests notes the
queues or topics of the entries, and wakes its requests when the messages become visible.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

NOTES_MAX = 1000  # steps of reput that are remembered one by one

K = TypeVar("K", bound=Hashable)


class ArrivalNotes(Generic[K]):
    """Queues or topics with new entries, by the physical offset up to which the entries reach."""

    def __init__(self) -> None:
        self._notes: deque[tuple[int, dict[K, None]]] = deque()

    def add(self, dispatched: int, keys: dict[K, None]) -> None:
        if len(self._notes) >= NOTES_MAX:  # `confirmed` may stand still for hours
            keys |= self._notes.pop()[1]
        self._notes.append((dispatched, keys))

    def __bool__(self) -> bool:
        return bool(self._notes)

    def take(self, visible: int) -> Iterator[K]:
        """The keys of entries that are visible now; each is forgotten with this."""
        while self._notes and self._notes[0][0] <= visible:
            yield from self._notes.popleft()[1]
