"""What sends and listeners answer; a SendResult is outgoing.py's."""

from __future__ import annotations

import enum


class SendStatus(enum.Enum):
    """How a message was stored; all but OK: on the master, but short of the ack asked for."""

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
    """What a listener says of the messages it got."""

    SUCCESS = "CONSUME_SUCCESS"
    RETRY = "RECONSUME_LATER"  # concurrent listeners: deliver again after a delay
    SUSPEND = "SUSPEND_CURRENT_QUEUE_A_MOMENT"  # ordered listeners: the same messages again, later
