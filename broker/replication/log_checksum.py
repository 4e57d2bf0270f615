"""The checksum by which two nodes find out whether a part of their logs is the same."""

from __future__ import annotations

from saturnmq.broker.context import Context
from saturnmq.protocol import ha
from saturnmq.runtime.errors import SaturnError


def tail_checksum(c: Context, start: int, end: int) -> int:
    """The rolling checksum of the log from `start` to `end`, read segment by segment."""
    assert 0 <= start <= end, f"a checksum from {start} to {end}"
    rolled, at = 0, start
    while at < end:
        data = c.store.read_log(at, end - at)
        if data is None or not len(data):
            raise SaturnError(f"the log cannot be read at {at}")
        rolled = ha.roll(rolled, data)
        at += len(data)
    return rolled
