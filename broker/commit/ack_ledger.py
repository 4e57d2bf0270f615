"""The ack ledger: replies to sends that wait until the log is as safe as their ack mode promises.

A send is answered exactly when its end offset lies below `confirmed`. Sends are appended in log
order, so the waiting replies form one FIFO: advancing the watermark pops from the left, and no
send costs a task or a timer. One loop checks the deadlines (`expire`). It answers
FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT or SLAVE_NOT_AVAILABLE: the message is stored, the promise
is not met, the outcome is unknown. The ledger never gives a weaker acknowledgement.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from saturnmq.broker.commit.put_latency import PutLatency
from saturnmq.protocol.budget import Budget
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.remoting import Command

ACK_BYTES = 800  # of one: 690 were measured
FAILURES = frozenset({ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT})
"""The codes of an answer whose outcome is unknown."""


@dataclass(slots=True)
class Waiting:
    end: int  # physical offset just behind the last frame of the send
    since: float  # monotonic seconds
    deadline: float
    endpoint: Endpoint
    reply: Command


class AckLedger:
    """Replies in log order, waiting for `confirmed`."""

    def __init__(self, limit: int, whole: Budget, clock: Callable[[], float]) -> None:
        """`clock`: the steady one, in seconds."""
        self.limit = limit
        self.latency = PutLatency(clock())
        self._clock = clock
        self._part = Budget(whole.limit, "of acknowledgements that wait", whole)
        self._waiting: deque[Waiting] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def full(self) -> bool:
        return len(self._waiting) >= self.limit

    def count(self) -> None:
        """Charge the waiting replies to the memory budget of the process. This runs now and then:
        counting each reply on its own would cost every send."""
        self._part.hold(ACK_BYTES * len(self._waiting) - self._part.used)

    def validate(self) -> None:
        """AssertionError: an answer waits for nothing, or was given already."""
        for waiting in self._waiting:
            assert waiting.end > 0, f"an answer waits for {waiting.end}"
            assert waiting.reply.code == ResponseCode.SUCCESS, waiting.reply.code
        assert self._part.used >= 0, f"what waits takes {self._part.used} bytes"

    def add(self, end: int, timeout_s: float, endpoint: Endpoint, reply: Command) -> None:
        assert end > 0, f"an answer is to wait for {end}"
        now = self._clock()
        self._waiting.append(Waiting(end, now, now + timeout_s, endpoint, reply))

    def release(self, confirmed: int) -> int:
        """Answer everything below `confirmed`; return the number of replies."""
        waiting, released = self._waiting, 0
        if not waiting or waiting[0].end > confirmed:
            return 0
        now, waited = self._clock(), self.latency.waited
        while waiting and waiting[0].end <= confirmed:
            done = waiting.popleft()
            released += 1
            waited(now - done.since)
            if not done.endpoint.closed:
                done.endpoint.send(done.reply)
        return released

    def expire(self, now: float, flushed: int, remark: str = "") -> int:
        """Answer overdue sends: the disk was too slow, or else the slaves. Return their number."""
        waiting, expired = self._waiting, 0
        while waiting and waiting[0].deadline <= now:
            late = waiting.popleft()
            expired += 1
            disk = flushed < late.end
            code = ResponseCode.FLUSH_DISK_TIMEOUT if disk else ResponseCode.FLUSH_SLAVE_TIMEOUT
            self._fail(late, code, remark)
        return expired

    def fail_all(self, code: int, remark: str) -> None:
        """Answer all waiting sends with this code: after a failed flush no promise can be kept."""
        while self._waiting:
            self._fail(self._waiting.popleft(), code, remark)

    @staticmethod
    def _fail(late: Waiting, code: int, remark: str) -> None:
        assert code in FAILURES, f"the answer {code} says nothing of what becomes of a message"
        late.reply.code = code
        late.reply.remark = remark or (
            "stored, but not flushed in time"
            if code == ResponseCode.FLUSH_DISK_TIMEOUT
            else "stored, but not replicated in time"
        )
        if not late.endpoint.closed:
            late.endpoint.send(late.reply)
