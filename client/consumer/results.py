"""The answers of listeners."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from saturnmq.client.option_checks import BOUNDS
from saturnmq.runtime.errors import InvalidParameter

DEAD_LETTER = -1
LEVEL_MOST = 1 << 15  # far above the levels of any broker, which takes its last one instead


class ConsumeResult(enum.Enum):
    """A listener's verdict on the messages it got; None means SUCCESS. Any other value that is no
    member is an error of the listener: the error is reported and the messages are delivered
    again.

    RETRY and SUSPEND mean the same: a concurrent listener gets the messages again after a delay
    that grows with each attempt, an ordered one after `suspend_s`, before any other message of
    their queue. `Retry` says more.
    """

    SUCCESS = "CONSUME_SUCCESS"
    RETRY = "RECONSUME_LATER"
    SUSPEND = "SUSPEND_CURRENT_QUEUE_A_MOMENT"

    # RocketMQ's names of the same members.
    CONSUME_SUCCESS = SUCCESS
    RECONSUME_LATER = RETRY
    SUSPEND_CURRENT_QUEUE_A_MOMENT = SUSPEND


@dataclass(frozen=True, slots=True)
class Retry:
    """A listener's verdict that its messages, or the last of them, are to come again, in a way of
    its own. InvalidParameter: a value is out of its bounds.

        return Retry(delay_level=5)  # in a minute
        return Retry(done=3)  # the first three of the list are consumed

    For a single call it says what RocketMQ's listeners say in their context: ackIndex,
    delayLevelWhenNextConsume and suspendCurrentQueueTimeMillis.
    """

    delay_level: int = 0
    """The wait before the next delivery, a delay level of the broker; 0: longer with each
    attempt. -1: no further one, the messages go to the dead-letter topic. An ordered consumer
    knows only 0 and -1."""
    done: int = 0
    """So many messages from the front of the list are consumed."""
    suspend_s: float | None = None
    """For an ordered consumer: the seconds before it tries again, 0.01 to 30; None: the
    consumer's `suspend_s`."""

    def __post_init__(self) -> None:
        if not DEAD_LETTER <= self.delay_level <= LEVEL_MOST:
            raise InvalidParameter(
                f"delay_level {self.delay_level}: give a delay level of the broker, 0 for the "
                "usual wait, or -1 for the dead-letter topic"
            )
        if self.done < 0:
            raise InvalidParameter(f"done {self.done}: it counts messages, from 0 on")
        if self.suspend_s is not None:
            fault = BOUNDS["suspend_s"].fault("suspend_s", self.suspend_s)
            if fault:
                raise InvalidParameter(fault)
