"""The answers of sends and listeners; SendResult is in batch_reference.py."""

from __future__ import annotations

import enum


class SendStatus(enum.Enum):
    """How a message was stored; with any status but OK the master has it, but short of the ack
    asked for."""

    OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


STATUS_OF_CODE: dict[int, SendStatus] = {
    0: SendStatus.OK,
    10: SendStatus.FLUSH_DISK_TIMEOUT,
    11: SendStatus.SLAVE_NOT_AVAILABLE,
    12: SendStatus.FLUSH_SLAVE_TIMEOUT,
}


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
