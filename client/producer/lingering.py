"""Batches that fill for a moment before they go, while messages come fast.

At 10,000 messages a second a request for each of them keeps a producer, a broker and a consumer so
busy that messages queue for processors. A moment's wait puts several into a request. Nothing waits
where that would not help: below FAST_PER_S, where somebody does nothing else until a batch is
acknowledged, and where messages only come when others are acknowledged, which a moment that brings
nothing more shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from saturnmq.client.producer.accumulator import Accumulator
    from saturnmq.client.producer.batch import ProducerBatch
    from saturnmq.client.producer.lanes import Lane
    from saturnmq.runtime.door import Alarm, Runtime

FAST_PER_S = 3000
RATE_S = 0.02  # the rate is that of so long, or longer
REST_S = 0.05  # for so long the rate is known, and a lane hurries for which somebody waited
FULL = 64  # messages; a batch of so many goes at once
VAIN_MOST = 8  # moments in a row that brought nothing more
VAIN_S = 0.1  # after them no batch lingers for so long


class Lingering:
    """The lanes whose batches fill, all until the same moment. Loop thread only."""

    def __init__(
        self,
        runtime: Runtime,
        accumulator: Accumulator,
        seconds: float,
        go: Callable[[Iterable[Lane]], None],
    ) -> None:
        """`go` sends what is in the lanes that it is given."""
        self._runtime = runtime
        self._accumulator = accumulator
        self._half_s = seconds / 2
        self._go = go
        self._alarm: Alarm | None = None
        self._counts: dict[Lane, int] = {}  # messages at the last look
        self._is_half_over = False
        self._vain = 0
        self._hurry_until = 0.0
        self.is_fast = False
        self._taken = 0  # messages since
        self._since = 0.0

    def took(self, messages: int) -> None:
        """So many were sent."""
        self._taken += messages
        now = self._runtime.monotonic()
        past = now - self._since
        if past >= RATE_S:
            self.is_fast = self._taken >= FAST_PER_S * past
            self._taken, self._since = 0, now

    def keeps(self, lane: Lane, batch: ProducerBatch) -> bool:
        """Whether `batch`, the next one of `lane`, fills first; it goes by itself then."""
        if not self.is_fast or not self._half_s or batch is not lane.open or lane.filled is batch:
            return False
        now = self._runtime.monotonic()
        if lane.awaited:
            lane.awaited = False
            lane.hurries_until = now + REST_S
        if (
            now < lane.hurries_until
            or now < self._hurry_until
            or now - self._since > REST_S
            or batch.count >= FULL
        ):
            return False
        if not self._counts:
            self._is_half_over = False
            self._set_alarm()
        self._counts.setdefault(lane, batch.count)
        self._accumulator.let_fill(lane)
        return True

    def _set_alarm(self) -> None:
        if self._alarm is None:
            self._alarm = self._runtime.alarm(self._rang)
        self._alarm.set(self._half_s)

    def _rang(self) -> None:
        if not self._counts:
            return
        counts = {lane: 0 if lane.open is None else lane.open.count for lane in self._counts}
        grew = counts != self._counts
        if grew and not self._is_half_over:
            self._is_half_over, self._counts = True, counts
            self._set_alarm()
            return
        self._vain = 0 if grew else self._vain + 1
        if self._vain == VAIN_MOST:
            self._vain = 0
            self._hurry_until = self._runtime.monotonic() + VAIN_S
        self._counts = {}
        self._accumulator.moment_over(counts)
        self._go(counts)

    def close(self) -> None:
        if self._alarm is not None:
            self._alarm.close()
