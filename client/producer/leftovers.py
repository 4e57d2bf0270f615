"""Messages bound to queues by key before the topic's queues changed go first: keys stay in order.
Pure.

A key may move to another queue, and messages sent before and after the change may still end up in
one queue. So each change begins a round (placing.py) with lanes of its own, and a lane waits while
one of an earlier round has anything left. This holds up sends for as long as the earlier lanes
take, usually some milliseconds; if their broker is away, until it is back or given up.
"""

from __future__ import annotations

from saturnmq.client.producer.lanes import Lane


class Leftovers:
    """The lanes of earlier rounds that are not empty, by topic. Only the loop thread changes it."""

    def __init__(self) -> None:
        self._lanes: dict[str, frozenset[Lane]] = {}

    def add(self, lane: Lane) -> None:
        """Add `lane`: the queues of the topic changed while it was not empty."""
        self._lanes[lane.topic] = self._lanes.get(lane.topic, frozenset()) | {lane}

    def hold_back(self, lane: Lane) -> bool:
        """Whether other lanes of the topic go before `lane`."""
        lanes = self._lanes.get(lane.topic, ())
        return any(_round(other) < _round(lane) for other in lanes)

    def remove(self, lane: Lane) -> bool:
        """`lane` is empty and nothing of it is under way; True if it was left over."""
        lanes = self._lanes.get(lane.topic, frozenset())
        self._lanes[lane.topic] = lanes - {lane}
        return lane in lanes


def _round(lane: Lane) -> int:
    return 0 if lane.pinned is None else lane.pinned.round
