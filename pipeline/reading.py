"""Reading a range from any place: it decodes the frames, and checks that it gave every message of
the range or reported its loss."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from saturnmq.pipeline.access import FAILFAST, DataLoss, Decoding
from saturnmq.pipeline.plan import Range
from saturnmq.protocol.subscription import Subscription

if TYPE_CHECKING:
    from saturnmq.pipeline.decoding import Decoder

log = logging.getLogger(__name__)


def subscription(decoding: Decoding) -> Subscription:
    """The requested messages: tags, or a condition."""
    return Subscription.parse("", decoding.expression, 0, decoding.expression_type)


def decoder(decoding: Decoding, broker: str) -> Decoder:
    """The decoder of a task; nothing of Arrow is loaded before it is made."""
    from saturnmq.pipeline.decoding import Decoder

    return Decoder(
        decoding.columns,
        broker=broker,
        decompress=decoding.decompress,
        verify=decoding.verify,
        mode=decoding.mode,
        tags=subscription(decoding).tags or None,
    )


class ReadTally:
    """The numbers of messages of a range that were given and lost."""

    def __init__(self, piece: Range, decoding: Decoding) -> None:
        self._piece = piece
        self._decoding = decoding
        self._rows = 0
        self._lost = 0

    def count(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The batches as they are."""
        for batch in batches:
            self._rows += batch.num_rows
            yield batch

    def lose(self, start: int, end: int, why: str) -> None:
        """Messages [start, end) cannot be given: DataLoss, or a line in the log."""
        self._lost += end - start
        lost(self._decoding.fail_on_data_loss, self._piece, start, end, why)

    def check(self) -> None:
        """At the end: every message of the range has been given, or is known to be lost. Nobody can
        know when a filter leaves some out, and a mode that reads past damage may have to pass over
        several messages for one that is damaged: that is a line in the log."""
        decoding, piece = self._decoding, self._piece
        missing = piece.rows - self._lost - self._rows
        if not missing or not decoding.takes_all:
            return
        if decoding.mode == FAILFAST:
            self.lose(piece.start, piece.end, f"{missing} of them are not in the log")
        else:
            log.warning("%s: %d messages are missing, damaged or lost", piece, missing)


def cut_off(end: int) -> str:
    """Why messages behind the `end` of a queue are lost."""
    return f"the queue ends at {end} now, its newest messages were lost"


def lost(fail: bool, piece: Range, start: int, end: int, why: str) -> None:
    """DataLoss if the query is to `fail`, else a line in the log."""
    text = f"messages {start} to {end} of {piece.topic} {piece.broker}/{piece.queue_id}: {why}"
    if fail:
        raise DataLoss(
            f"{text}; set failOnDataLoss=false to go on without them, or start from later offsets"
        )
    log.warning("data loss: %s", text)
