"""A message that its producer wants delivered later, on its way into the log.

It is stored in queue 0 of rmq_sys_wheel_timer. Its properties remember the real topic and queue, as
those of RocketMQ do, and have the decision about its time (`due.py`).
"""

from __future__ import annotations

from saturnmq.broker.context import Context
from saturnmq.broker.timer.delay_clock import DelayClock
from saturnmq.broker.timer.due import asked_for, limited, rocketmq_moment
from saturnmq.protocol import properties as names
from saturnmq.protocol.properties import decode_properties, encode_properties
from saturnmq.protocol.recall_handle import RecallHandle
from saturnmq.protocol.topics import RETRY_PREFIX, TIMER_TOPIC
from saturnmq.runtime.errors import MessageIllegal, SystemError_

Scheduled = tuple[str, int, bytes, str]
"""Topic, queue and properties with which a message is stored, and its handle for a recall."""


class TimerSchedule:
    def __init__(self, context: Context, clock: DelayClock, window_ms: int) -> None:
        self._c = context
        self._clock = clock
        self._window_ms = window_ms

    def schedule(self, topic: str, queue_id: int, encoded: bytes) -> Scheduled:
        """The form in which a message with properties of timed messages is stored. One that is
        due at once stays as it is. MessageIllegal: its time is no number, or beyond the limit."""
        config = self._c.config
        properties = decode_properties(encoded)
        if names.TIMER_DEL_UNIQKEY in properties:
            raise MessageIllegal(
                f"timer message illegal, {names.TIMER_DEL_UNIQKEY} is set by brokers only; recall "
                "a message with RECALL_MESSAGE and its handle"
            )
        if not config.timer_wheel:
            raise SystemError_(
                "accurate timer message is not enabled, timerWheelEnable is false; use one of the "
                "delay levels"
            )
        wall_ms, delay_ms = self._c.runtime.now_ms(), self._clock.now_ms()
        asked = asked_for(properties, wall_ms, delay_ms, config.timer_max_delay_s * 1000)
        if asked is None:
            return topic, queue_id, encoded, ""
        shelf, due_ms, wait_ms = asked
        due = limited(shelf, due_ms, due_ms - wait_ms, self._window_ms)
        moment = rocketmq_moment(wall_ms + wait_ms)
        properties[names.TIMER_OUT_MS] = str(moment)
        properties[names.REAL_TOPIC] = topic
        properties[names.REAL_QID] = str(queue_id)
        properties[names.SATURN_TIMER] = due.encode()
        properties.pop(names.TIMER_ROLL_TIMES, None)
        handle = ""
        if not topic.startswith(RETRY_PREFIX):
            unique = properties.get(names.UNIQ_KEY, "")
            handle = RecallHandle(topic, config.broker_name, moment + 1, unique).encode()
        return TIMER_TOPIC, 0, encode_properties(properties), handle
