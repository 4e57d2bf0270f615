"""The rewriting of a message that waits. `store/delay_levels.py` has the delay of each level.

A message of level n waits in queue n - 1 of SCHEDULE_TOPIC_XXXX; its properties remember the real
topic and queue. When its time comes the broker stores it again under the real topic; its property
string then still holds DELAY, REAL_TOPIC and REAL_QID, as in RocketMQ.
"""

from __future__ import annotations

from saturnmq.protocol import properties as names
from saturnmq.protocol.properties import decode_properties, encode_properties
from saturnmq.protocol.topics import SCHEDULE_TOPIC


def level_in(text: str) -> int:
    """The level that a DELAY property has; 0: the message does not wait by it."""
    try:
        return max(int(text or "0"), 0)
    except ValueError:
        return 0


def schedule(topic: str, queue_id: int, encoded: bytes, levels: int) -> tuple[str, int, bytes]:
    """The topic, queue and properties with which a message with a DELAY property is stored first; a
    level above the highest of `levels` counts as the highest."""
    assert levels > 0, f"{levels} delay levels"
    properties = decode_properties(encoded)
    level = min(level_in(properties.get(names.DELAY, "")), levels)
    if not level:
        return topic, queue_id, encoded
    assert 0 < level <= levels, f"the delay level {level} of {levels}"
    properties[names.DELAY] = str(level)
    properties[names.REAL_TOPIC] = topic
    properties[names.REAL_QID] = str(queue_id)
    return SCHEDULE_TOPIC, level - 1, encode_properties(properties)
