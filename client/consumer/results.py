"""The answers of listeners."""

from __future__ import annotations

import enum


class ConsumeResult(enum.Enum):
    """A listener's verdict on the messages it got; None means SUCCESS. Any other value that is no
    member is an error of the listener: the error is reported and the messages are delivered
    again.

    RETRY and SUSPEND mean the same: a concurrent listener gets the messages again after the delay
    of the group's retries, an ordered one after a second, before any other message of their queue.
    """

    SUCCESS = "CONSUME_SUCCESS"
    RETRY = "RECONSUME_LATER"
    SUSPEND = "SUSPEND_CURRENT_QUEUE_A_MOMENT"

    # RocketMQ's names of the same members.
    CONSUME_SUCCESS = SUCCESS
    RECONSUME_LATER = RETRY
    SUSPEND_CURRENT_QUEUE_A_MOMENT = SUSPEND
