"""How far a delay level was delivered, found from the log.

`delayOffset.json` may be lost, or the new master may have an old copy of it, or none. RocketMQ then
begins where the file says, or at the queue's beginning, and delivers everything again that comes
behind. But the delivered copies are in the log too, in the order of the level. So a binary search
finds the first message without a copy; it looks copies up by key in the index.

A message that its producer had to send twice waits twice, and its copies come in the order of the
level: the second one was delivered if there are two. A message counts as not delivered if no copy
is certain to be its own: it is damaged, its id is gone, its topic is gone, or another message had
the same id. So a message may come twice, and none is lost.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from saturnmq.protocol import properties as names
from saturnmq.protocol.kernels import decode_frames
from saturnmq.protocol.message import ReceivedMessage
from saturnmq.protocol.topics import SCHEDULE_TOPIC
from saturnmq.runtime.errors import MalformedFrame
from saturnmq.store.message_store import MessageStore

KEYS_MAX = 32
EVER = 1 << 60


def first_undelivered(store: MessageStore, level: int, start: int) -> int:
    """The offset in this level's queue, from `start` on, at which delivery goes on."""
    assert level > 0, f"the delay level {level}"
    queue = level - 1
    low, high = (f(SCHEDULE_TOPIC, queue) for f in (store.min_offset, store.max_offset))
    offsets = range(max(start, low), high)
    place = bisect_left(offsets, True, key=lambda offset: not _was_delivered(store, queue, offset))
    assert 0 <= place <= len(offsets), f"{place} of {len(offsets)} were delivered"
    return offsets.start + place


def _was_delivered(store: MessageStore, queue: int, offset: int) -> bool:
    found = store.get_message(SCHEDULE_TOPIC, queue, offset, 1)
    try:
        waiting = next(iter(decode_frames(found.data, False)), None)
    except MalformedFrame:
        return False
    if waiting is None:
        return False
    key, topic = waiting.properties.get(names.UNIQ_KEY), waiting.properties.get(names.REAL_TOPIC)
    if not key or not topic:
        return False
    alike = {
        each.physical_offset: each.raw_body for each in _alike(store, SCHEDULE_TOPIC, waiting, key)
    }
    here = waiting.physical_offset
    if here not in alike or set(alike.values()) != {waiting.raw_body} or len(alike) == KEYS_MAX:
        return False
    copies = [each.physical_offset for each in _alike(store, topic, waiting, key)]
    copies_behind = sum(place > min(alike) for place in copies)
    return copies_behind > sum(place < here for place in alike)


def _alike(
    store: MessageStore, topic: str, message: ReceivedMessage, key: str
) -> Iterator[ReceivedMessage]:
    """Messages of a topic that are the same attempt of the same message."""
    for frame in store.query_by_key(topic, key, KEYS_MAX, 0, EVER):
        other = decode_frames(frame, False)[0]
        same_level = other.properties.get(names.DELAY) == message.properties.get(names.DELAY)
        if same_level and other.reconsume_times == message.reconsume_times:
            yield other
