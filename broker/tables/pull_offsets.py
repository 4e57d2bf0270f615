"""Pull offsets: the place from which a group reads next, by group, topic and queue.

Between a group's consumer offset and its pull offset lie the messages that its consumers have and
have not acknowledged ("Inflight" of mqadmin consumerProgress). As in RocketMQ they are told, and
nothing goes by them: they are neither saved nor copied to slaves.
"""

from __future__ import annotations

MOST = 50_000  # places; the one that came first gives way


class PullOffsets:
    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._offsets: dict[tuple[str, str, int], int] = {}

    def note(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """A consumer of the group asks for the messages from this offset on."""
        offsets = self._offsets
        place = group, topic, queue_id
        if len(offsets) >= self._most and place not in offsets:
            del offsets[next(iter(offsets))]
        offsets[place] = offset

    def query(self, group: str, topic: str, queue_id: int, consumed: int, end: int) -> int:
        """The offset from which the group reads next: between `consumed`, its consumer offset,
        and the queue's end. An offset of before a reset, or of a deleted topic, may lie outside."""
        known = self._offsets.get((group, topic, queue_id), consumed)
        return max(consumed, min(known, end))

    def validate(self) -> None:
        """AssertionError: there are more places than may be."""
        assert len(self._offsets) <= self._most, (len(self._offsets), self._most)
