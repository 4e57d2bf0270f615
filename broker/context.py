"""The state that the services of one broker share: its configuration, its store and its tables.

Plain state, without behaviour except three things that every service asks for: how far consumers
may see, how a reply reaches its sender, and that the loop stays awake for what follows.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from saturnmq.broker.access.guard import AccessGuard, Judge, anything
from saturnmq.broker.access.model import Need
from saturnmq.broker.access.table import AccessTable
from saturnmq.broker.commit.ack_ledger import AckLedger
from saturnmq.broker.config import BrokerConfig
from saturnmq.broker.failures import Failures
from saturnmq.broker.replication.role import Role
from saturnmq.broker.tables.clients import ClientTable
from saturnmq.broker.tables.locks import QueueLockTable
from saturnmq.broker.tables.offsets import ConsumerOffsets
from saturnmq.broker.tables.pull_offsets import PullOffsets
from saturnmq.broker.tables.statistics import Statistics
from saturnmq.broker.tables.subscription_groups import GroupTable
from saturnmq.broker.tables.table_memory import TableMemory
from saturnmq.broker.tables.topics import TopicTable
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.connections import Connections
from saturnmq.protocol.credentials import Credentials
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.remoting import Command, without_secrets
from saturnmq.protocol.signing import LetIn
from saturnmq.runtime.door import Runtime
from saturnmq.runtime.errors import NoPermission, SaturnError, SystemBusy, SystemError_
from saturnmq.runtime.loop_watch import LoopWatch
from saturnmq.runtime.steps import Aside, Steps
from saturnmq.store.log.epochs import Epochs
from saturnmq.store.message_store import GetResult, MessageStore
from saturnmq.store.offsets import PhysicalOffset

log = logging.getLogger(__name__)

# Times `lookMicros`, where a send waits for a copy, and where it waits for the disk.
COPIES_LOOK = 2.5
FLUSH_LOOK = 6.0


async def nobody_mends(start: int, end: int) -> bool:
    """For a node without others."""
    return False


@dataclass
class Context:
    config: BrokerConfig
    runtime: Runtime
    store: MessageStore
    topics: TopicTable
    groups: GroupTable
    clients: ClientTable
    offsets: ConsumerOffsets
    pull_offsets: PullOffsets
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
    access: AccessTable
    guard: AccessGuard | None  # None: everybody may do everything
    credentials: Credentials | None  # of this node, for its requests to other brokers
    master_confirmed: int | None = None  # on a slave: its master's confirmed position, if reported
    enough_replicas: Callable[[], bool] = lambda: True
    copies_in_sync: Callable[[], int] = lambda: 1
    # For elections (broker/replication/elector.py): the nodes that must have a message, beside
    # those of the ack mode, while this master holds no lease; the position that all of them have;
    # and why this master takes no sends.
    witnesses: Callable[[], frozenset[str]] = frozenset
    had_by: Callable[[frozenset[str]], int] = lambda _: 0
    counts: Callable[[str], bool] = lambda _: True  # the slave of this address, for the ack mode
    unelected: Callable[[], str] = lambda: ""
    refuses_group: Callable[[str], str] = lambda _: ""  # why it follows no group of this identity
    flush_keeps_up: Callable[[], bool] = lambda: True
    mend: Callable[[int, int], Awaitable[bool]] = nobody_mends  # damage in this part of the log
    push: Callable[[], None] = lambda: None  # send the slaves the log now, not at the turn's end
    let_in: LetIn = field(default_factory=LetIn)  # while signatures are not required
    address: str = ""
    ha_address: str = ""  # as clients see it
    grpc_address: str = ""  # the same, of the gateway; empty without one
    store_host: bytes = field(default=bytes(8))

    def validate(self) -> None:
        """AssertionError: the store or a table contradicts itself or another one. The role is the
        machine's to judge: it may not be written down yet."""
        marks = self.store.watermarks
        self.store.validate()
        self.epochs.validate()
        tables = self.topics, self.groups, self.clients, self.offsets, self.locks, self.access
        for table in tables:
            table.validate()
        self.ledger.validate()
        self.pull_offsets.validate()
        self.statistics.validate()
        self.tables.validate()
        assert self.visible <= marks.dispatched <= marks.appended, (self.visible, marks.dispatched)

    @property
    def waits_for_copies(self) -> bool:
        """Whether an acknowledgement waits for another node."""
        return self.role.required > 1 or bool(self.witnesses())

    def stay_awake(self) -> None:
        """Look for input before the loop sleeps: a request or a part of the log came, or senders
        have their answers, so more may follow. The next request of a sender that waits for copies
        or for the disk comes later."""
        look = self.config.look_micros
        if look:
            longer = 1.0
            if self.config.sync_flush:
                longer = FLUSH_LOOK
            elif self.role.required > 1:
                longer = COPIES_LOOK
            self.runtime.stay_awake(look * longer / 1e6)

    @property
    def visible(self) -> PhysicalOffset:
        """The physical offset below which consumers see messages (invariant I9). They see an atomic
        batch only when all of it has its queue entries: that takes several steps of reput, or waits
        for room on the disk."""
        marks = self.store.watermarks
        confirmed, dispatched = marks.confirmed, self.store.align_to_batch(marks.dispatched)
        return confirmed if confirmed < dispatched else dispatched


def cached(c: Context, result: GetResult) -> Awaitable[None] | None:
    """None if the messages of a result can be sent at once. Else the read that must end before
    that: without it the loop would wait for the disk, and every client with it. SystemError_: the
    disk cannot read them."""
    if c.store.is_cached(result):
        return None

    async def read() -> None:
        try:
            await c.cold_reads.run(c.store.cache, result)
        except OSError as error:
            raise SystemError_(f"these messages cannot be read from the log: {error}") from error

    return read()


def answer(endpoint: Endpoint, request: Command, reply: Command) -> None:
    """Send a reply if the client waits for it."""
    endpoint.send(reply, request)


async def answer_failure(
    c: Context, endpoint: Endpoint, request: Command, work: Awaitable[None]
) -> None:
    """Do the work, which answers the request itself; if it fails, answer with its error."""
    try:
        await work
    except SaturnError as error:
        answer(endpoint, request, request.reply(error.code, remark=str(error)))
    except Exception as error:
        log.exception("request %d with %s failed", request.code, without_secrets(request.ext))
        c.failures.of_request(request.code, error)
        remark = f"{type(error).__name__}: {error}"
        answer(endpoint, request, request.reply(ResponseCode.SYSTEM_ERROR, remark=remark))


REJECTED = "[REJECTREQUEST]"
"""RocketMQ's mark of a request that its server refuses before it looks at it."""


def judge(c: Context, endpoint: Endpoint, request: Command) -> Judge:
    """The judge of the user of a request, for needs that only its handler can tell."""
    return anything if c.guard is None else c.guard.judge(endpoint, request)


def require(c: Context, endpoint: Endpoint, request: Command, *needs: Need) -> None:
    """AccessDenied: the user of a request lacks one of these needs, which only its handler can
    tell."""
    allow = judge(c, endpoint, request)
    for need in needs:
        allow(need)


def check_offsets(c: Context) -> None:
    """SystemBusy: the offsets of groups here may be older than those of a slave."""
    if c.role.may_have_forgotten:
        raise SystemBusy(
            "the offsets of groups may be older than those of its slaves: this node gives them "
            f"when it leads. {c.role.why}"
        )


def check_master(c: Context, mark: str = "") -> None:
    """SystemBusy, with `mark` in front: this node changes no tables now."""
    refusal = c.role.refuses(c.runtime.monotonic())
    if refusal:
        raise SystemBusy(f"{mark}{refusal}; ask the master")


def check_permission(c: Context, needed: int, doing: str) -> None:
    """NoPermission (16) unless `brokerPermission` has this bit, READ or WRITE."""
    if not c.config.permission & needed:
        raise NoPermission(f"the broker[{c.address}] {doing} message is forbidden")
