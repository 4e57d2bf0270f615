"""The handle by which a timed message is recalled: RocketMQ's form, version 1.

    URL-safe base64 of "v1 <topic> <broker name> <moment> <message id>"

The answer to a send of a timed message has it (`recallHandle`), and RECALL_MESSAGE takes it. The
moment is TIMER_OUT_MS of the waiting message plus 1. The id is the message's UNIQ_KEY.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

from saturnmq.runtime.errors import IllegalOperation

HANDLE_MAX = 1024  # characters, in the request as well
_VERSION = "v1"
_MOMENT_DIGITS = 18


@dataclass(frozen=True, slots=True)
class RecallHandle:
    topic: str
    broker_name: str
    moment: int
    message_id: str

    def encode(self) -> str:
        words = (_VERSION, self.topic, self.broker_name, str(self.moment), self.message_id)
        return base64.urlsafe_b64encode(" ".join(words).encode()).decode()


def decode_handle(text: str) -> RecallHandle:
    """IllegalOperation: no broker gave this handle."""
    words: list[str] = []
    if 0 < len(text) <= HANDLE_MAX:
        try:
            words = base64.b64decode(text.encode(), b"-_", validate=True).decode().split(" ")
        except (ValueError, binascii.Error):
            words = []
    if (
        len(words) != 5
        or words[0] != _VERSION
        or not all(words)
        or not (words[3].isascii() and words[3].isdigit() and len(words[3]) <= _MOMENT_DIGITS)
    ):
        raise IllegalOperation(
            "recall failed, invalid handle: give the recall_handle of the answer to the send"
        )
    return RecallHandle(words[1], words[2], int(words[3]), words[4])
