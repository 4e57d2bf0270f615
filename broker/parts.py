"""The parts of a broker, each made once, after those that it needs.

`broker/groundwork.py` makes the parts that need no address of this node, `build_parts` the rest,
once the broker listens. It awaits nothing. A part is given the others that it needs when it is
made. Some parts need each other, and `_connect` is the only place that tells a part of one that was
made later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from saturnmq.broker.commit.acknowledgement import Acknowledgement
from saturnmq.broker.commit.admission import Admission
from saturnmq.broker.commit.cleaning import CleaningService
from saturnmq.broker.commit.copies import CopyWriter
from saturnmq.broker.commit.flush import FlushService
from saturnmq.broker.commit.log_rewriting import LogRewriter
from saturnmq.broker.commit.retention import RetentionClock
from saturnmq.broker.commit.upkeep import Upkeep
from saturnmq.broker.deadlines import Deadlines
from saturnmq.broker.delay.delivery import DelayService
from saturnmq.broker.exactly_once.sinks import SinkTable
from saturnmq.broker.exactly_once.stages import Stages
from saturnmq.broker.exactly_once.staging import StagingService
from saturnmq.broker.groundwork import Groundwork
from saturnmq.broker.handlers.access import AccessService
from saturnmq.broker.handlers.admin import AdminService
from saturnmq.broker.handlers.assignment import AssignmentRequests
from saturnmq.broker.handlers.client_questions import ClientQuestions
from saturnmq.broker.handlers.forbidding import ForbiddingService
from saturnmq.broker.handlers.group_progress import GroupProgress
from saturnmq.broker.handlers.inspection import InspectionService
from saturnmq.broker.handlers.live_settings import SettingsService
from saturnmq.broker.handlers.membership import MembershipService
from saturnmq.broker.handlers.offset_moves import OffsetMoves
from saturnmq.broker.handlers.pop import PopRequests
from saturnmq.broker.handlers.pop_acks import PopAcknowledgements
from saturnmq.broker.handlers.pull import PullService
from saturnmq.broker.handlers.queries import QueryService
from saturnmq.broker.handlers.ranges import RangeService
from saturnmq.broker.handlers.replies import ReplyService
from saturnmq.broker.handlers.requests import Handler, Services, handlers
from saturnmq.broker.handlers.retry import RetryService
from saturnmq.broker.handlers.runtime_info import RuntimeInformation
from saturnmq.broker.handlers.send import SendService
from saturnmq.broker.pop.service import PopService
from saturnmq.broker.registration import Registrar
from saturnmq.broker.replication.elector import Ballot, ElectionService, SavedMemory
from saturnmq.broker.replication.executor import Doors, Executor
from saturnmq.broker.replication.failover import FailoverService
from saturnmq.broker.replication.ha_slave import HaSlave
from saturnmq.broker.replication.leaving import Leaving
from saturnmq.broker.replication.master_duties import MasterDuties
from saturnmq.broker.replication.mending import Mending
from saturnmq.broker.replication.table_sync import TableSync
from saturnmq.broker.tables.deletion import Deletion
from saturnmq.broker.timer.recall import RecallService
from saturnmq.broker.timer.scheduling import TimerSchedule
from saturnmq.broker.timer.service import TimerService
from saturnmq.broker.transactions.check_back import CheckBackService
from saturnmq.broker.transactions.ends import EndService
from saturnmq.broker.transactions.half_log import HalfLog
from saturnmq.broker.wiring import connect_parts
from saturnmq.protocol.ids import UniqueIds
from saturnmq.protocol.signing import Challenges
from saturnmq.runtime.door import split_address
from saturnmq.runtime.supervision import Supervisor


@dataclass(frozen=True)
class DurabilityParts:
    """The parts that keep the store durable and small."""

    retention: RetentionClock
    flush: FlushService
    cleaning: CleaningService
    upkeep: Upkeep


@dataclass(frozen=True)
class MessagingParts:
    """The parts that take messages and give them out."""

    sends: SendService
    replies: ReplyService
    retries: RetryService
    pulls: PullService
    popping: PopService
    pops: PopRequests
    pop_acks: PopAcknowledgements
    members: MembershipService
    delays: DelayService
    timers: TimerService
    recalls: RecallService
    sinks: SinkTable
    stages: Stages
    staging: StagingService
    deletion: Deletion
    half_log: HalfLog
    ends: EndService
    check_backs: CheckBackService
    wake_readers: Callable[[], None]  # all that wait for messages


@dataclass(frozen=True)
class ReplicationParts:
    """The parts that make this node one of its group."""

    table_sync: TableSync
    rewriter: LogRewriter
    mending: Mending
    registrar: Registrar
    slave: HaSlave
    duties: MasterDuties
    executor: Executor
    elections: ElectionService | None
    failover: FailoverService
    leaving: Leaving


@dataclass(frozen=True)
class Parts:
    """The rest, made when this node has its address."""

    durability: DurabilityParts
    messaging: MessagingParts
    replication: ReplicationParts
    deadlines: Deadlines
    handlers: dict[int, Handler]  # by request code


def build_parts(ground: Groundwork, supervisor: Supervisor, ballot: Ballot | None) -> Parts:
    """Make the parts; the context has the addresses of this node by now. With a `ballot` the node
    takes part in elections."""
    durability = _durability(ground)
    messaging = _messaging(ground, durability)
    replication = _replication(ground, durability, messaging, supervisor, ballot)
    deadlines = Deadlines(
        ground.context,
        flush=durability.flush,
        disk_failure=ground.disk_failure,
        executor=replication.executor,
        pulls=messaging.pulls,
        pops=messaging.pops,
        members=messaging.members,
        staging=messaging.staging,
    )
    table = _handlers(ground, durability, messaging, replication)
    parts = Parts(durability, messaging, replication, deadlines, table)
    connect_parts(ground, parts)
    return parts


def _durability(ground: Groundwork) -> DurabilityParts:
    c, gate, look = ground.context, ground.gate, ground.disk_failure.look
    retention = RetentionClock(c.runtime)
    flush = FlushService(
        c.store,
        c.runtime,
        sync=c.config.sync_flush,
        interval_s=c.config.flush_interval_ms / 1000,
        on_flushed=ground.advancer.wake,
        on_failed=look,
        guard=gate.shared,
    )
    cleaning = CleaningService(
        c.store,
        c.runtime,
        now_ms=retention.now_ms,
        retry_dispatch=ground.advancer.catch_up,
        guard=gate.shared,
    )
    return DurabilityParts(retention, flush, cleaning, Upkeep(c.store, c.runtime, gate, look))


def _messaging(ground: Groundwork, durability: DurabilityParts) -> MessagingParts:
    c, gate, advancer = ground.context, ground.gate, ground.advancer
    process = c.runtime.random.randrange(1 << 16)
    host, _ = split_address(c.address)
    unique_ids = UniqueIds(c.runtime, host, process)
    admission, acknowledgement = Admission(c), Acknowledgement(c, advancer.wake)
    copies = CopyWriter(c, advancer.wake)
    pulls = PullService(c)
    half_log = HalfLog(c, advancer.wake, advancer.catch_up)
    timers = TimerService(c, ground.disk, gate, advancer.wake)
    schedule = TimerSchedule(c, timers.clock, timers.window_ms)
    popping = PopService(c, copies, advancer.wake)
    pops = PopRequests(c, popping, admission, acknowledgement)
    pop_acks = PopAcknowledgements(c, popping, admission, acknowledgement)

    def wake_readers() -> None:
        pulls.wake_all()
        pops.wake_all()

    sinks = SinkTable(c.store, durability.retention.now_ms)
    stages = Stages(
        ground.disk,
        c.config.root,
        c.connections.budget,
        max_bytes=c.config.stage_max_bytes,
        memory_bytes=c.config.stage_memory_bytes,
        total_bytes=c.config.stage_total_bytes,
    )
    return MessagingParts(
        SendService(c, unique_ids, admission, acknowledgement, schedule, on_append=advancer.wake),
        ReplyService(c, admission, on_append=advancer.wake),
        RetryService(c, copies, acknowledgement, pop_acks),
        pulls,
        popping,
        pops,
        pop_acks,
        MembershipService(c),
        DelayService(c, copies),
        timers,
        RecallService(
            c,
            admission,
            acknowledgement,
            timers,
            gate.shared,
            advancer.catch_up,
            on_append=advancer.wake,
        ),
        sinks,
        stages,
        StagingService(
            c, admission, acknowledgement, sinks, stages, gate.shared, advancer.catch_up
        ),
        Deletion(
            c,
            save=ground.persistence.save,
            checkpoint=durability.upkeep.checkpoint,
            wake_pulls=wake_readers,
        ),
        half_log,
        EndService(c, admission, acknowledgement, half_log),
        CheckBackService(c, half_log),
        wake_readers,
    )


def _replication(
    ground: Groundwork,
    durability: DurabilityParts,
    messaging: MessagingParts,
    supervisor: Supervisor,
    ballot: Ballot | None,
) -> ReplicationParts:
    c, advancer, master = ground.context, ground.advancer, ground.master
    delays = messaging.delays
    timers = messaging.timers
    table_sync = TableSync(c, delays, timers.clock, messaging.deletion.apply)
    rewriter = LogRewriter(
        c,
        ground.gate,
        advancer,
        ground.persistence,
        delays=delays,
        timers=timers,
        sinks=messaging.sinks,
        half_log=messaging.half_log,
        wake_pulls=messaging.pulls.wake_all,
        on_truncated=table_sync.truncated,
    )
    mending = Mending(c, rewriter.repair)
    registrar = Registrar(c, c.ha_address)
    slave = _slave(ground, durability.flush, table_sync, mending, registrar)
    duties = MasterDuties(
        supervisor,
        table_sync=table_sync,
        delays=delays,
        timers=timers,
        staging=messaging.staging,
        check_backs=messaging.check_backs,
        pops=messaging.popping,
    )
    doors = _doors(ground, table_sync, rewriter, duties)
    executor = Executor(c, master, slave, registrar, mending, doors)
    elections = _elections(ground, ballot, slave, executor)
    failover = FailoverService(
        c,
        master,
        slave,
        registrar,
        executor,
        no_failover=None if elections is None else elections.trouble,
    )
    leaving = Leaving(c, master, slave)
    return ReplicationParts(
        table_sync,
        rewriter,
        mending,
        registrar,
        slave,
        duties,
        executor,
        elections,
        failover,
        leaving,
    )


def _slave(
    ground: Groundwork,
    flush: FlushService,
    table_sync: TableSync,
    mending: Mending,
    registrar: Registrar,
) -> HaSlave:
    return HaSlave(
        ground.context,
        ground.links,
        flush=lambda: ground.gate.shared(flush.flush_once()),
        flush_at_once=flush.flush_at_once,
        on_append=ground.advancer.wake,
        on_join=table_sync.joined,
        on_no_master=registrar.look_for_master,
        mending=mending,
    )


def _doors(
    ground: Groundwork, table_sync: TableSync, rewriter: LogRewriter, duties: MasterDuties
) -> Doors:
    return Doors(
        save=rewriter.save_role,
        saved_soon=ground.persistence.wake,
        cut_torn=rewriter.truncate_torn,
        keep_within=rewriter.keep_topics_within,
        cut=rewriter.truncate,
        put_back=rewriter.put_back,
        wake=ground.advancer.wake,
        lead=duties.begin,
        retire=duties.end,
        merge_back=table_sync.merge_back,
        adopt=table_sync.adopt,
    )


def _elections(
    ground: Groundwork, ballot: Ballot | None, slave: HaSlave, executor: Executor
) -> ElectionService | None:
    if ballot is None:
        return None
    saved = SavedMemory()
    ground.files.load("election", saved)
    return ElectionService(
        ground.context,
        ballot,
        saved,
        ground.master,
        slave,
        tell=executor.tell,
        wake=ground.advancer.wake,
    )


def _handlers(
    ground: Groundwork,
    durability: DurabilityParts,
    messaging: MessagingParts,
    replication: ReplicationParts,
) -> dict[int, Handler]:
    c, save = ground.context, ground.persistence.save

    def ha_status() -> dict[str, Any]:
        return (replication.slave if c.role.is_slave else ground.master).status()

    admin = AdminService(
        c,
        messaging.delays,
        messaging.timers,
        ha_status=ha_status,
        request_cleaning=durability.cleaning.request,
        forget_pops=messaging.popping.forget_group,
        save=save,
        deletion=messaging.deletion,
        copy_tables=replication.table_sync.copy_now,
        started_ms=c.runtime.now_ms(),
    )
    statuses = [
        messaging.delays.status,
        messaging.timers.status,
        messaging.popping.status,
        messaging.check_backs.status,
        messaging.ends.status,
    ]
    services = Services(
        messaging.sends,
        messaging.replies,
        messaging.pulls,
        messaging.pops,
        messaging.pop_acks,
        AssignmentRequests(c, replication.registrar.route, save, messaging.members.notify),
        messaging.retries,
        messaging.recalls,
        QueryService(c),
        messaging.members,
        ClientQuestions(c),
        admin,
        RuntimeInformation(c, statuses, durability.flush.behind_ms),
        ForbiddingService(c, save),
        GroupProgress(c),
        OffsetMoves(c, wake_pulls=messaging.wake_readers, save=save),
        InspectionService(c),
        SettingsService(c),
        replication.failover,
        replication.leaving,
        replication.mending,
        RangeService(c),
        messaging.staging,
        messaging.ends,
        AccessService(c, lambda: replication.slave.master_address, save),
    )
    return handlers(services, Challenges(c.config.signing, lambda: c.address, c.let_in))
