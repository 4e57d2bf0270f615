"""Popped messages that go to %DLQ%<group>: those that used up their attempts, and those that a
consumer gives up. The copy is that of `broker/commit/copies.py`."""

from __future__ import annotations

import logging

from saturnmq.broker.commit.copies import CopyWriter, returned_properties
from saturnmq.broker.context import Context
from saturnmq.broker.pop.leases import LanePlace
from saturnmq.broker.pop.orders import attempts_in
from saturnmq.protocol import properties as names
from saturnmq.protocol.kernels import decode_frames
from saturnmq.protocol.topics import dlq_topic
from saturnmq.runtime.errors import MessageIllegal

log = logging.getLogger(__name__)


class Burying:
    def __init__(self, context: Context, copies: CopyWriter) -> None:
        self._c = context
        self._copies = copies

    def took(self, place: LanePlace, frame: bytes, attempts: int) -> bool:
        """Whether the message has used up its attempts, and is among the dead letters now. One that
        the log refuses as a dead letter is given out once more, so that it is neither lost nor in
        the way of those behind it."""
        settings = self._c.groups.get(place.group)
        limit = settings.retry_limit(-1) if settings is not None else 0
        if attempts + attempts_in(frame) <= limit:
            return False
        try:
            self.store(place, frame, attempts)
        except MessageIllegal as error:
            log.error("a message of %s is given out again, as no dead letter: %s", place, error)
            return False
        return True

    def store(self, place: LanePlace, frame: bytes, attempts: int) -> None:
        """Copy a message to the dead letters of its group. MessageIllegal: the log refuses it."""
        message = decode_frames(frame, True)[0]
        properties = returned_properties(message)
        properties.pop(names.DELAY, None)
        self._copies.store(
            self._c.topics.ensure(dlq_topic(place.group), 1).name,
            0,
            message,
            properties,
            reconsume_times=message.reconsume_times + attempts,
        )
