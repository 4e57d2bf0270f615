"""Messages that the broker copies, read with their checksums.

A copy of a message (a delayed or timed one that is due, a half that is asked about) gets checksums
of its own. So damage in the original, a bit that flipped since it was written, would pass for what
its producer sent. A frame is checked before it is copied, or counted as waiting. One that is
damaged is mended with the bytes of another member of the group (`broker/replication/mending.py`),
and waits meanwhile; one that no member has whole is left out, and named in the log.
"""

from __future__ import annotations

import logging

from saturnmq.broker.context import Context
from saturnmq.protocol.frame_reference import ENTRY
from saturnmq.protocol.kernels import decode_frames
from saturnmq.protocol.message import ReceivedMessage
from saturnmq.runtime.errors import MalformedFrame, SaturnError, SystemBusy
from saturnmq.store.message_store import GetResult

log = logging.getLogger(__name__)

PATIENCE_S = 600.0  # as long as members that may have a frame do not answer


class SoundReads:
    def __init__(self, context: Context) -> None:
        self._c = context
        self._lost: set[int] = set()  # frames that no member has whole, by their places in the log
        self._found: dict[int, float] = {}  # when others were found
        self._mending: set[int] = set()

    def messages(
        self, topic: str, queue_id: int, offset: int, result: GetResult
    ) -> tuple[list[ReceivedMessage], int]:
        """The messages of a result that was read from queue offset `offset` on, up to the first one
        that is being mended, and the offset behind them. SystemBusy: that is the first of all; try
        again soon."""
        try:
            return decode_frames(result.data, True), result.next_begin_offset
        except MalformedFrame:
            pass
        store, found = self._c.store, list[ReceivedMessage]()
        count = result.next_begin_offset - offset
        entries = bytes(store.entries(topic, queue_id, offset, count))
        for at, (place, size, _) in enumerate(ENTRY.iter_unpack(entries), offset):
            try:
                found += decode_frames(bytes(store.read_log(place, size) or b""), True)
            except MalformedFrame as error:
                if place in self._lost:
                    continue
                self._mend(place, size)
                if at > offset:
                    return found, at
                raise SystemBusy(
                    f"the message at {place} is damaged ({error}); it waits for the bytes of "
                    "another node of the group"
                ) from None
        return found, result.next_begin_offset

    def _mend(self, place: int, size: int) -> None:
        self._found.setdefault(place, self._c.runtime.monotonic())
        if place not in self._mending:
            self._mending.add(place)
            self._c.runtime.spawn(self._mended(place, size), name="mend-message")

    async def _mended(self, place: int, size: int) -> None:
        why = "no other node of the group has it whole"
        try:
            if await self._c.mend(place, place + size):
                del self._found[place]
                return
        except (SaturnError, OSError) as error:
            why = str(error)
            if self._c.runtime.monotonic() - self._found[place] < PATIENCE_S:
                log.warning("the message at %d is damaged, and not mended yet: %s", place, why)
                return
        finally:
            self._mending.discard(place)
        self._lost.add(place)
        del self._found[place]
        log.error("the message at %d is damaged, and is not delivered: %s", place, why)
