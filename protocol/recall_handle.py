"""The handle by which a timed message is recalled: RocketMQ's form, version 1.

    URL-safe base64 of "v1 <topic> <broker name> <moment> <message id>"

The answer to a send of a timed message has it (`recallHandle`). The
moment is TIMER_OUT_MS of the waiting message plus 1. The id is the message's UNIQ_KEY.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass

_VERSION = "v1"


@dataclass(frozen=True, slots=True)
class RecallHandle:
    topic: str
    broker_name: str
    moment: int
    message_id: str

    def encode(self) -> str:
        words = (_VERSION, self.topic, self.broker_name, str(self.moment), self.message_id)
        return base64.urlsafe_b64encode(" ".join(words).encode()).decode()
