"""The verdict on committed offsets (I6), from the samples that a drill took of them. Pure.

A sample is a `committed` event: the offset that a broker held for a group, at that moment.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence

from saturnmq.drills.failover.history import AGAIN, Event, History
from saturnmq.drills.sim.history import Place


def ahead_of_work(samples: Iterable[Event], deliveries: Mapping[str, Sequence[Event]]) -> list[str]:
    """The samples ahead of what their group had processed by then."""
    progress = {group: _Processed(events) for group, events in deliveries.items()}
    errors = []
    for sample in samples:
        limit = progress[sample.who].until(sample.at, (sample.broker, sample.queue))
        if sample.offset > limit:
            errors.append(f"{_told(sample)}, processed are {limit}")
    return errors


def moved_back(samples: Iterable[Event], history: History, at_risk_s: float) -> list[str]:
    """The samples behind one that nothing may take back any more.

    A fault may take back the commits of the `at_risk_s` before it. How long the group is away after
    it does not matter. Nor is a sample judged by those of the `at_risk_s` before it: effects of a
    fault that lasts come at any time.
    """
    faults = [(fault.broker, fault.at, history.struck_at(fault)) for fault in history.of("fault")]

    def outlived(sample: Event) -> bool:
        """Whether no fault began to work on its group in its first `at_risk_s`."""
        until = sample.at + at_risk_s
        return not any(
            group in ("", sample.broker) and begin <= until and sample.at <= struck
            for group, begin, struck in faults
        )

    errors = []
    recent: dict[tuple[str, str, int], deque[Event]] = defaultdict(deque)
    safe: dict[tuple[str, str, int], int] = defaultdict(int)
    for sample in samples:
        queue = sample.who, sample.broker, sample.queue
        known = recent[queue]
        while known and known[0].at < sample.at - at_risk_s:
            before = known.popleft()
            if outlived(before):
                safe[queue] = max(safe[queue], before.offset)
        if sample.offset < safe[queue]:
            errors.append(f"{_told(sample)}, it was {safe[queue]}")
        known.append(sample)
    return errors


def beyond_the_end(samples: Iterable[Event], stored: Iterable[Place]) -> list[str]:
    """The last samples behind the ends of their queues."""
    ends: dict[tuple[str, int], int] = defaultdict(int)
    for place in stored:
        queue = place.group, place.queue
        ends[queue] = max(ends[queue], place.offset + 1)
    last = {(sample.who, sample.broker, sample.queue): sample for sample in samples}
    return [
        f"{sample.offset} of {group} on {broker} queue {queue}, the queue ends at {end}"
        for (group, broker, queue), sample in last.items()
        if sample.offset > (end := ends[broker, queue])
    ]


def _told(sample: Event) -> str:
    queue = f"{sample.broker} queue {sample.queue}"
    return f"{sample.offset} of {sample.who} on {queue} at {sample.at:.2f} s"


class _Processed:
    """Up to which offset a group has processed a queue without a hole, at rising times."""

    def __init__(self, deliveries: Sequence[Event]) -> None:
        self._events = deliveries
        self._next = 0
        self._done: dict[tuple[str, int], set[int]] = defaultdict(set)
        self._limit: dict[tuple[str, int], int] = defaultdict(int)

    def until(self, at: float, queue: tuple[str, int]) -> int:
        """The first offset of `queue` that was not processed at `at`."""
        events = self._events
        while self._next < len(events) and events[self._next].at <= at:
            event = events[self._next]
            if event.note != AGAIN:
                self._done[event.broker, event.queue].add(event.offset)
            self._next += 1
        done, limit = self._done[queue], self._limit[queue]
        while limit in done:
            limit += 1
        self._limit[queue] = limit
        return limit
