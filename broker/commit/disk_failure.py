"""The failure of the disk: a failed write or sync is final (docs/guarantees.md S1).

The first one that is noticed is logged, kept for the status and the exit status, and told to all
waiting sends.
"""

from __future__ import annotations

import logging

from saturnmq.broker.commit.ack_ledger import AckLedger
from saturnmq.protocol.codes import ResponseCode
from saturnmq.store.message_store import MessageStore

log = logging.getLogger(__name__)


class DiskFailure:
    def __init__(self, store: MessageStore, ledger: AckLedger) -> None:
        self._store = store
        self._ledger = ledger
        self.why: str | None = None

    def look(self) -> None:
        """Notice that the store has failed; any part may have asked for the write or the sync."""
        if self._store.failed is None or self.why is not None:
            return
        self.why = self._store.failed
        log.critical(
            "the disk failed, the broker takes no more writes: %s; check the disk, then restart "
            "the broker",
            self.why,
        )
        self._ledger.fail_all(
            ResponseCode.FLUSH_DISK_TIMEOUT,
            f"stored, but the disk did not take it for good: {self.why}",
        )
