"""The parts of a broker that need no address of this node.

They are made first, so that the broker can listen before the others (`broker/parts.py`) are made:
the tables, and how they are saved; the advancer of the watermarks; the master's side of
replication.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count

from saturnmq.broker.access.guard import AccessGuard
from saturnmq.broker.access.table import AccessTable
from saturnmq.broker.commit.ack_ledger import AckLedger
from saturnmq.broker.commit.advance import WatermarkAdvancer
from saturnmq.broker.commit.disk_failure import DiskFailure
from saturnmq.broker.commit.gate import StoreGate
from saturnmq.broker.config import BrokerConfig
from saturnmq.broker.context import Context
from saturnmq.broker.failures import Failures
from saturnmq.broker.replication.ha_master import HaMaster
from saturnmq.broker.replication.role import Role
from saturnmq.broker.tables.clients import ClientTable
from saturnmq.broker.tables.loading import TableFiles
from saturnmq.broker.tables.locks import QueueLockTable
from saturnmq.broker.tables.offsets import ConsumerOffsets
from saturnmq.broker.tables.pull_offsets import PullOffsets
from saturnmq.broker.tables.statistics import Statistics
from saturnmq.broker.tables.subscription_groups import GroupTable
from saturnmq.broker.tables.table_memory import GROUP, OFFSET, TOPIC, TableMemory
from saturnmq.broker.tables.table_persistence import TablePersistence
from saturnmq.broker.tables.topics import TopicTable
from saturnmq.protocol.connections import Connections
from saturnmq.runtime.door import Runtime
from saturnmq.runtime.loop_watch import LoopWatch
from saturnmq.runtime.steps import Aside, Steps
from saturnmq.store.disk import Disk
from saturnmq.store.log.epochs import Epochs
from saturnmq.store.message_store import MessageStore

COLD_READS = 2  # at once: the other threads are for flushes, and what else must not wait


@dataclass(frozen=True)
class Groundwork:
    """The parts that need no address of this node."""

    context: Context
    disk: Disk
    gate: StoreGate
    persistence: TablePersistence
    files: TableFiles
    advancer: WatermarkAdvancer
    disk_failure: DiskFailure
    links: Iterator[int]  # numbers the connections of replication, in both directions
    master: HaMaster


def lay_groundwork(
    config: BrokerConfig,
    runtime: Runtime,
    disk: Disk,
    store: MessageStore,
    connections: Connections,
    failures: Failures,
    loop_watch: LoopWatch,
) -> Groundwork:
    gate, steps, links = StoreGate(runtime), Steps(runtime), count(1)
    persistence = TablePersistence(runtime, steps, gate.shared)
    access = AccessTable(runtime.now_ms)
    credentials = config.own_credentials
    tables = TableMemory(connections.budget)
    topics = TopicTable(
        runtime.now_ms,
        persistence.wake,
        lambda: store.watermarks.appended,
        partial(tables.take, TOPIC),
    )
    context = Context(
        config=config,
        runtime=runtime,
        store=store,
        topics=topics,
        groups=GroupTable(
            runtime.now_ms,
            auto_create=config.auto_create_groups,
            room_for=partial(tables.take, GROUP),
        ),
        clients=ClientTable(config.client_expiry_ms / 1000),
        offsets=ConsumerOffsets(runtime.now_ms, topics.is_over, partial(tables.take, OFFSET)),
        pull_offsets=PullOffsets(),
        locks=QueueLockTable(),
        ledger=AckLedger(config.max_pending_acks, connections.budget, runtime.monotonic),
        role=Role(config),
        epochs=Epochs.load(disk, config.root, store.watermarks.appended),
        statistics=Statistics(runtime.monotonic(), runtime.now_ms()),
        failures=failures,
        loop_watch=loop_watch,
        connections=connections,
        tables=tables,
        steps=steps,
        aside=Aside(runtime),
        cold_reads=Aside(runtime, COLD_READS),
        access=access,
        guard=AccessGuard(config, access, credentials) if config.authentication else None,
        credentials=credentials,
    )
    advancer = WatermarkAdvancer(context)
    return Groundwork(
        context,
        disk,
        gate,
        persistence,
        TableFiles(disk, config.root, persistence),
        advancer,
        DiskFailure(store, context.ledger),
        links,
        HaMaster(context, links, on_replicated=advancer.wake),
    )
