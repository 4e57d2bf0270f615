"""The counts of the main job: pure, so that a test can lie to it and see that it notices.

Every departure has a number, its place in the file. A departure is lost when it was acknowledged
and a group that wants it never got it. Order is per aircraft: the first delivery of a departure
with a lower number than one already delivered of the same aircraft is a violation. A second
delivery is a duplicate and no violation: at-least-once may repeat, it may not reorder.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from saturnmq.cli.flights import Departure


@dataclass
class LongestGap:
    """Longest time between two neighbouring events."""

    last: float | None = None
    longest: float = 0.0

    def seen(self, now: float) -> None:
        if self.last is not None:
            self.longest = max(self.longest, now - self.last)
        self.last = now


@dataclass
class GroupTally:
    """The messages that one consumer group got."""

    name: str
    origins: frozenset[str] | None  # None = all
    total: int
    got: bytearray = field(init=False)
    consumed: int = 0
    duplicates: int = 0
    foreign: int = 0  # deliveries the group did not ask for
    disorder: int = 0
    gap: LongestGap = field(default_factory=LongestGap)
    newest: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.got = bytearray(self.total)

    def wants(self, departure: Departure) -> bool:
        return self.origins is None or departure.origin in self.origins

    def delivered(self, number: int, departure: Departure, now: float) -> bool:
        """Count one delivery; True when it is the first of this departure."""
        self.gap.seen(now)
        if not self.wants(departure):
            self.foreign += 1
            return False
        if self.got[number]:
            self.duplicates += 1
            return False
        self.got[number] = 1
        self.consumed += 1
        if departure.tail is not None:
            before = self.newest.get(departure.tail, -1)
            if number < before:
                self.disorder += 1
            else:
                self.newest[departure.tail] = number
        return True

    def lost(self, departures: list[Departure], acked: bytearray) -> int:
        return sum(
            1
            for number, departure in enumerate(departures)
            if acked[number] and not self.got[number] and self.wants(departure)
        )


@dataclass
class Sends:
    """The messages that the producer sent, and their acknowledgements."""

    total: int
    acked: bytearray = field(init=False)
    acknowledged: int = 0
    retried: int = 0
    gap: LongestGap = field(default_factory=LongestGap)
    first: float | None = None

    def __post_init__(self) -> None:
        self.acked = bytearray(self.total)

    def acknowledge(self, number: int, now: float) -> None:
        self.gap.seen(now)
        if not self.acked[number]:
            self.acked[number] = 1
            self.acknowledged += 1


class Delays:
    """Mean departure delay per airport and hour, as the consumer computes it while messages
    come.
    """

    def __init__(self) -> None:
        self._sums: dict[tuple[str, int], list[float]] = defaultdict(lambda: [0.0, 0.0])

    def add(self, departure: Departure) -> None:
        if departure.delay is not None:
            cell = self._sums[departure.origin, departure.hour]
            cell[0] += departure.delay
            cell[1] += 1

    def rows(self) -> list[tuple[int, dict[str, float | None]]]:
        """One row per hour: the mean of each airport, None where nothing departed."""
        origins = self.origins()
        rows = []
        for hour in sorted({hour for _, hour in self._sums}):
            means: dict[str, float | None] = {}
            for origin in origins:
                total, count = self._sums.get((origin, hour), (0.0, 0.0))
                means[origin] = total / count if count else None
            rows.append((hour, means))
        return rows

    def origins(self) -> list[str]:
        return sorted({origin for origin, _ in self._sums})
