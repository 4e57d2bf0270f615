"""What waits for queues that are gone goes first, so that keys stay in order. Pure.

When a topic gets other queues, a key may move: its older messages wait in the lane of a queue that
is gone, newer ones come into the lane of another. Both may end up in one queue. So while there are
leftovers, what is bound to a queue by a key waits in all other lanes of the topic. If the queues
change again meanwhile, those that were left over first still go first.
"""

from __future__ import annotations

from collections.abc import Iterable

from saturnmq.client.accumulator import Lane


class Leftovers:
    """The lanes of queues that are gone, until they are empty. The loop thread changes it."""

    def __init__(self) -> None:
        self._rounds: dict[str, dict[Lane, int]] = {}  # by topic

    def add(self, topic: str, lanes: Iterable[Lane]) -> None:
        """The queues of these lanes are gone. One that is left over already keeps its place."""
        known = self._rounds.get(topic) or {}
        last = max(known.values(), default=0)
        added = {lane: last + 1 for lane in lanes if lane not in known}
        if added:
            self._rounds[topic] = known | added

    def hold_back(self, lane: Lane) -> bool:
        """Whether others of its topic go before `lane`."""
        known = self._rounds.get(lane.topic)
        if not known:
            return False
        mine = known.get(lane)
        return mine is None or mine > min(known.values())

    def remove(self, lane: Lane) -> bool:
        """`lane` is empty and nothing of it is under way; True if it was left over."""
        known = self._rounds.get(lane.topic)
        if not known or lane not in known:
            return False
        rest = {other: number for other, number in known.items() if other is not lane}
        if rest:
            self._rounds[lane.topic] = rest
        else:
            del self._rounds[lane.topic]
        return True
