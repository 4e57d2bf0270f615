"""Counts that only rise, by name, and how far each has risen in the last hour and the last day.

`note`, called every ten minutes, keeps the differences of the names that have changed: so a name
without traffic takes no room. An hour is six notes and the time since the last one; a day is 23
whole hours, the notes since then, and that time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from typing import Generic, NamedTuple, TypeVar

NOTE_S = 600.0
NOTES_OF_AN_HOUR = 6
HOURS_OF_A_DAY = 23  # whole ones; the notes since then are the last

K = TypeVar("K", bound=Hashable)


class Risen(NamedTuple):
    """The rise of a count, and that in a second."""

    total: int
    rate: float


class CountedSpans(Generic[K]):
    def __init__(self, now: float) -> None:
        self._noted_at = now
        self._noted: dict[K, int] = {}
        self._notes: deque[tuple[float, dict[K, int]]] = deque(maxlen=NOTES_OF_AN_HOUR)
        self._hours: deque[tuple[float, dict[K, int]]] = deque(maxlen=HOURS_OF_A_DAY)
        self._hour_began, self._in_hour = now, dict[K, int]()
        self._notes_of_hour = 0

    def is_due(self, now: float) -> bool:
        return now - self._noted_at >= NOTE_S

    def note(self, now: float, counts: Mapping[K, int]) -> None:
        """Keep what has come since the last note."""
        assert now >= self._noted_at, f"a note at {now} behind {self._noted_at}"
        noted = self._noted  # most names stand still, and there may be many
        changed = [(key, count) for key, count in counts.items() if noted.get(key) != count]
        risen = {key: n for key, count in changed if (n := self._since_note(key, count))}
        self._notes.append((self._noted_at, risen))
        for key, count in risen.items():
            self._in_hour[key] = self._in_hour.get(key, 0) + count
        self._noted_at, self._noted = now, dict(counts)
        self._notes_of_hour += 1
        if self._notes_of_hour == NOTES_OF_AN_HOUR:
            self._hours.append((self._hour_began, self._in_hour))
            self._hour_began, self._in_hour, self._notes_of_hour = now, {}, 0

    def _since_note(self, key: K, count: int) -> int:
        before = self._noted.get(key, 0)
        return count - before if count >= before else count  # it began anew, with its topic

    def hour_and_day(self, key: K, count: int, now: float) -> tuple[Risen, Risen]:
        """The rise in the last hour and in the last day, if `key` counts `count` now."""
        hour = self._span(key, count, now, 0, self._notes, self._noted_at)
        begun = self._in_hour.get(key, 0)
        return hour, self._span(key, count, now, begun, self._hours, self._hour_began)

    def _span(
        self,
        key: K,
        count: int,
        now: float,
        more: int,
        parts: deque[tuple[float, dict[K, int]]],
        began: float,
    ) -> Risen:
        total = self._since_note(key, count) + more + sum(part.get(key, 0) for _, part in parts)
        seconds = now - (parts[0][0] if parts else began)
        return Risen(total, total / seconds if seconds > 0 else 0.0)
