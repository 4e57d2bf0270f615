"""The end of a transaction, as its producer decides it: END_TRANSACTION 37.

The producer names the half by its two offsets and by its id, and the group that it belongs to. All
must fit, so a promotion that cut the half off, and gave its place to another, ends none. A half
that was stored again meanwhile is found by each of its places. The answer waits as that to a send
does; Java's clients want none.

| the transaction | the answer |
|---|---|
| is open | 0; it is over then |
| was ended in the same way | 0 |
| was ended otherwise, or long ago | 390050 TRANSACTION_ENDED |
| is not here, or not of this group | 4 TRANSACTION_FAILED |
| is left undecided (commitOrRollback 0) | 0; the producer is asked again |
| is so new that the queue of halves does not have it yet | 2 SYSTEM_BUSY |
"""

from __future__ import annotations

from saturnmq.broker.access import needs
from saturnmq.broker.commit.acknowledgement import Acknowledgement
from saturnmq.broker.commit.admission import Admission
from saturnmq.broker.context import Context, answer, require
from saturnmq.broker.transactions.endings import EndingKind
from saturnmq.broker.transactions.half_log import HalfLog
from saturnmq.broker.transactions.halves import Half, committed
from saturnmq.protocol import headers
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.frame import (
    TRANSACTION_COMMIT,
    TRANSACTION_NONE,
    TRANSACTION_ROLLBACK,
)
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.errors import (
    InvalidParameter,
    SaturnError,
    TopicNotExist,
    TransactionEnded,
    TransactionFailed,
)

_KINDS = {
    TRANSACTION_COMMIT: EndingKind.COMMITTED,
    TRANSACTION_ROLLBACK: EndingKind.ROLLED_BACK,
}
_SAID = {
    EndingKind.COMMITTED: "it was committed",
    EndingKind.ROLLED_BACK: "it was rolled back",
    EndingKind.EXPIRED: (
        "it has expired: its producer was asked transactionCheckMax times, and the message is in "
        "TRANS_CHECK_MAX_TIME_TOPIC"
    ),
    None: "nobody remembers how",
}


class EndService:
    def __init__(
        self,
        context: Context,
        admission: Admission,
        acknowledgement: Acknowledgement,
        half_log: HalfLog,
    ) -> None:
        self._c = context
        self._admission = admission
        self._acknowledgement = acknowledgement
        self._half_log = half_log
        self.committed = self.rolled_back = self.refused = 0  # since this process began

    def status(self) -> dict[str, str]:
        """Its figures in the broker's runtime information."""
        return {
            "transactionsCommitted": str(self.committed),
            "transactionsRolledBack": str(self.rolled_back),
            "transactionEndsRefused": str(self.refused),
        }

    def on_end(
        self, endpoint: Endpoint, request: Command, header: headers.EndTransactionHeader
    ) -> None:
        if header.decision == TRANSACTION_NONE:
            answer(endpoint, request, request.reply(0))
            return
        kind = _KINDS.get(header.decision)
        if kind is None:
            raise InvalidParameter(
                f"commitOrRollback is {header.decision}; it must be {TRANSACTION_COMMIT} to "
                f"commit, {TRANSACTION_ROLLBACK} to roll back, or {TRANSACTION_NONE}"
            )
        self._admission.check_ready()
        try:
            half = self._half(header)
            require(self._c, endpoint, request, needs.topic(half.topic, needs.PUB))
            end = self._end(half, kind)
        except SaturnError:
            self.refused += 1
            raise
        if not request.is_oneway:
            self._acknowledgement.answer_at(endpoint, request.reply(0), end)

    def _half(self, header: headers.EndTransactionHeader) -> Half:
        """The half that a request names."""
        offset, physical = header.half_offset, header.physical_offset
        half = self._half_log.find(offset, physical)
        if half is None or header.transaction_id not in ("", half.unique):
            raise TransactionFailed(
                f"find prepared transaction message failed: half {offset} at {physical} is not "
                f"transaction {header.transaction_id or '(without an id)'}; it was lost in a "
                "fail-over, or its segment was deleted: send the message again"
            )
        if half.group != header.group:
            raise TransactionFailed(
                f"the producer group wrong: the transaction belongs to group {half.group}, not to "
                f"{header.group}"
            )
        return half

    def _end(self, half: Half, kind: EndingKind) -> int:
        """End a transaction; return where that ends in the log."""
        c, half_log = self._c, self._half_log
        table = half_log.table
        current = table.current(half.root)
        if not table.is_open(current):
            ended = table.outcome(half.root)
            if ended is kind:
                return c.store.watermarks.appended
            raise TransactionEnded(
                f"transaction {half.unique} has ended: {_SAID[ended]}; it stays so"
            )
        if current != half.offset:
            copy = half_log.find_moved(current)
            if copy is None:
                raise TransactionFailed(
                    f"find prepared transaction message failed: half {current} cannot be read"
                )
            half = copy
        if kind is EndingKind.ROLLED_BACK:
            end, _ = half_log.end(half, kind)
            self.rolled_back += 1
            return end
        if c.store.is_deleted(half.topic, half.physical):
            half_log.end(half, EndingKind.ROLLED_BACK)
            raise TopicNotExist(
                f"topic {half.topic} was deleted while transaction {half.unique} was open: it is "
                "rolled back"
            )
        # A topic that was not deleted is missing if the master died before its table was copied.
        c.topics.ensure(half.topic, half.queue_id + 1, is_owed=True)
        end, _ = half_log.end(half, kind, committed(half, c.store_host))
        self.committed += 1
        return end
