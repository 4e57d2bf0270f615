"""What keys bound to queues before a topic's queues changed goes first: keys stay in order. Pure.

With other queues a key may move, and what was sent before and after may end up in one queue all the
same. So each change begins a round (placing.py), with lanes of its own, and a lane waits while one
of an earlier round has anything left. That holds sends up for as long as those take, usually some
milliseconds; if a broker that they are for is away, until it is back or given up.
"""

from __future__ import annotations

from saturnmq.client.producer.accumulator import Lane


class Leftovers:
    """The lanes of earlier rounds that are not empty, by topic. The loop thread changes it."""

    def __init__(self) -> None:
        self._lanes: dict[str, frozenset[Lane]] = {}

    def add(self, lane: Lane) -> None:
        """The queues of the topic changed, and `lane` is not empty."""
        self._lanes[lane.topic] = self._lanes.get(lane.topic, frozenset()) | {lane}

    def hold_back(self, lane: Lane) -> bool:
        """Whether others of its topic go before `lane`."""
        lanes = self._lanes.get(lane.topic, ())
        return any(_round(other) < _round(lane) for other in lanes)

    def remove(self, lane: Lane) -> bool:
        """`lane` is empty and nothing of it is under way; True if it was left over."""
        lanes = self._lanes.get(lane.topic, frozenset())
        self._lanes[lane.topic] = lanes - {lane}
        return lane in lanes


def _round(lane: Lane) -> int:
    return 0 if lane.pinned is None else lane.pinned.round
