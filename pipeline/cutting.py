"""Cutting ranges of queues into pieces at a broker, or by guess where it cannot weigh messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from saturnmq.protocol import fastjson
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.remoting import Command

GUESSED_BYTES = 1024  # of a message on a broker that cannot weigh it


class Cutting(NamedTuple):
    """The limits by which ranges are cut."""

    max_bytes: int
    max_rows: int
    first_only: bool

    def request(self, topic: str, ranges: Sequence[list[int]]) -> Command:
        ext = {"topic": topic, "maxBytes": str(self.max_bytes), "maxRows": str(self.max_rows)}
        if self.first_only:
            ext["firstOnly"] = "true"
        return Command.request(RequestCode.SPLIT_RANGE, ext, fastjson.dumps(ranges))

    def guessed(self, ranges: Sequence[list[int]]) -> list[list[int]]:
        """The answer on the assumption that every message has the same size."""
        step = max(1, min(self.max_bytes // GUESSED_BYTES, self.max_rows))
        pieces = []
        for queue_id, start, end in ranges:
            for first in range(start, end, step):
                stop = min(first + step, end)
                pieces.append([queue_id, first, stop, (stop - first) * GUESSED_BYTES])
                if self.first_only:
                    break
        return pieces
