"""Traces of messages: they come some time after the messages."""

from __future__ import annotations

import time
from collections.abc import Callable

from saturnmq import Admin
from saturnmq.protocol.trace import TraceRecord
from saturnmq.runtime.errors import TopicNotExist

WAIT_S = 20.0


def traces_of(
    admin: Admin, message_id: str, enough: Callable[[list[TraceRecord]], bool], topic: str
) -> list[TraceRecord]:
    """The records of a message when there are enough of them, or those after WAIT_S. The first
    trace creates the topic."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            found = admin.message_trace(message_id, topic)
        except TopicNotExist:
            found = []
        if enough(found) or time.monotonic() > deadline:
            return found
