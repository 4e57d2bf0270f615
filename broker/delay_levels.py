"""The 18 delay levels and the rewriting of a delayed message.

Level n of `1s 5s 10s 30s 1m .. 10m 20m 30m 1h 2h` waits in queue n - 1 of SCHEDULE_TOPIC_XXXX; its
properties remember the real topic and queue. When its time comes it is stored again under the real
topic; the property string still holds DELAY, REAL_TOPIC and REAL_QID then, as in RocketMQ.
"""

from __future__ import annotations

from saturnmq.protocol import properties as names
from saturnmq.protocol.properties import decode_properties, encode_properties
from saturnmq.protocol.topics import SCHEDULE_TOPIC

_SECONDS = (1, 5, 10, 30, *(m * 60 for m in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)), 3600, 7200)
DELAYS_MS = tuple(s * 1000 for s in _SECONDS)
MAX_LEVEL = len(DELAYS_MS)


def schedule(topic: str, queue_id: int, encoded: bytes) -> tuple[str, int, bytes]:
    """Where and how a message with a DELAY property is stored first."""
    properties = decode_properties(encoded)
    try:
        level = min(int(properties.get(names.DELAY, "0")), MAX_LEVEL)
    except ValueError:
        level = 0
    if level <= 0:
        return topic, queue_id, encoded
    properties[names.DELAY] = str(level)
    properties[names.REAL_TOPIC] = topic
    properties[names.REAL_QID] = str(queue_id)
    return SCHEDULE_TOPIC, level - 1, encode_properties(properties)
