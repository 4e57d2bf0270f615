"""What the services of one broker share: its configuration, its store and its tables.

Plain state, no behaviour except two facts everything asks for: how far consumers may see, and how
a reply reaches its sender.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from saturnmq.broker.commit.ack import AckLedger
from saturnmq.broker.config import BrokerConfig
from saturnmq.broker.failures import Failures
from saturnmq.broker.replication.role import Role
from saturnmq.broker.tables.clients import ClientTable
from saturnmq.broker.tables.locks import QueueLockTable
from saturnmq.broker.tables.offsets import ConsumerOffsets
from saturnmq.broker.tables.statistics import Statistics
from saturnmq.broker.tables.subscription_groups import GroupTable
from saturnmq.broker.tables.table_memory import TableMemory
from saturnmq.broker.tables.topics import TopicTable
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.connections import Connections
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.signing import LetIn
from saturnmq.runtime.door import Runtime
from saturnmq.runtime.errors import NoPermission, SaturnError, SystemError_
from saturnmq.runtime.loop_watch import LoopWatch
from saturnmq.runtime.steps import Aside, Steps
from saturnmq.store.log.epochs import Epochs
from saturnmq.store.message_store import GetResult, MessageStore

log = logging.getLogger(__name__)


@dataclass
class Context:
    config: BrokerConfig
    runtime: Runtime
    store: MessageStore
    topics: TopicTable
    groups: GroupTable
    clients: ClientTable
    offsets: ConsumerOffsets
    locks: QueueLockTable
    ledger: AckLedger
    role: Role
    epochs: Epochs
    statistics: Statistics
    failures: Failures
    loop_watch: LoopWatch
    connections: Connections
    tables: TableMemory
    steps: Steps
    aside: Aside
    cold_reads: Aside
    master_confirmed: int | None = None  # on a slave: how far its master confirms, if it says so
    appended: Callable[[], None] = lambda: None  # tells the turn that the log grew
    enough_replicas: Callable[[], bool] = lambda: True
    copies_in_sync: Callable[[], int] = lambda: 1
    # Whom a master asks that holds no lease, beside its ack mode; what each of those has; and why
    # it should not be sent anything (broker/replication/elector.py).
    witnesses: Callable[[], frozenset[str]] = frozenset
    had_by: Callable[[frozenset[str]], int] = lambda _: 0
    counts: Callable[[str], bool] = lambda _: True  # the slave of this address, for its ack mode
    unelected: Callable[[], str] = lambda: ""
    flush_keeps_up: Callable[[], bool] = lambda: True
    let_in: LetIn = field(default_factory=LetIn)  # while signatures are not required
    address: str = ""
    ha_address: str = ""  # as clients are told
    store_host: bytes = field(default=bytes(8))

    @property
    def waits_for_copies(self) -> bool:
        """Whether an acknowledgement waits for somebody else."""
        return self.role.required > 1 or bool(self.witnesses())

    @property
    def visible(self) -> int:
        """Consumers see only what lies below this physical offset (invariant I9); and of a group
        nothing before all of it has its entries, which takes several steps of reput, or waits for
        room on the disk."""
        marks = self.store.watermarks
        return min(marks.confirmed, self.store.align_to_batch(marks.dispatched))


def cached(c: Context, result: GetResult) -> Awaitable[None] | None:
    """None if the messages of a result can be sent at once. Else what to wait for before: the loop
    would wait for the disk, and with it everybody. SystemError_: the disk cannot read them."""
    if c.store.is_cached(result):
        return None

    async def read() -> None:
        try:
            await c.cold_reads.run(c.store.cache, result)
        except OSError as error:
            raise SystemError_(f"the log cannot be read there: {error}") from error

    return read()


def answer(endpoint: Endpoint, request: Command, reply: Command) -> None:
    """Send a reply unless nobody waits for it."""
    if not request.is_oneway and not endpoint.closed:
        endpoint.send(reply)


async def answer_failure(
    c: Context, endpoint: Endpoint, request: Command, work: Awaitable[None]
) -> None:
    """Do the work, which answers unless it fails."""
    try:
        await work
    except SaturnError as error:
        answer(endpoint, request, request.reply(error.code, remark=str(error)))
    except Exception as error:
        log.exception("request %d with %s failed", request.code, request.ext)
        c.failures.of_request(request.code, error)
        remark = f"{type(error).__name__}: {error}"
        answer(endpoint, request, request.reply(ResponseCode.SYSTEM_ERROR, remark=remark))


def check_permission(c: Context, needed: int, doing: str) -> None:
    """NoPermission (16) unless `brokerPermission` has this bit, READ or WRITE."""
    if not c.config.permission & needed:
        raise NoPermission(f"the broker[{c.address}] {doing} message is forbidden")
