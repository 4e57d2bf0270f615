"""A broker: opens the store, wires the services, serves.

Start order: store (recovery), role, listeners, services, tables, registration; then the machine of
replication finds out whether this node is the master. What is recovered is confirmed only as far as
the ack mode allows: with SYNC_MASTER a restarted master shows consumers nothing that no slave has
reported yet. Close order: no new work, the waiting sends answered, everything flushed and saved,
then the store (which removes its `abort` mark).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from functools import partial
from ipaddress import ip_address
from itertools import count
from typing import Any

from saturnmq.broker.commit.ack import AckLedger
from saturnmq.broker.commit.advance import WatermarkAdvancer, confirm
from saturnmq.broker.commit.cleaning import CleaningService
from saturnmq.broker.commit.flush import FlushService
from saturnmq.broker.commit.gate import StoreGate
from saturnmq.broker.commit.retention import RetentionClock
from saturnmq.broker.commit.upkeep import Upkeep
from saturnmq.broker.config import BrokerConfig
from saturnmq.broker.context import Context
from saturnmq.broker.delay.delivery import DelayService
from saturnmq.broker.exactly_once.sinks import SinkTable
from saturnmq.broker.exactly_once.stages import Stages
from saturnmq.broker.exactly_once.staging import APPENDING, StagingService
from saturnmq.broker.failures import Failures
from saturnmq.broker.handlers.admin import AdminService
from saturnmq.broker.handlers.membership import MembershipService
from saturnmq.broker.handlers.pull import PullService
from saturnmq.broker.handlers.queries import QueryService
from saturnmq.broker.handlers.ranges import RangeService
from saturnmq.broker.handlers.requests import Handler, Services, handlers
from saturnmq.broker.handlers.retry import RetryService
from saturnmq.broker.handlers.send import SendService
from saturnmq.broker.registration import Registrar
from saturnmq.broker.replication.elector import Ballot, ElectionService, SavedMemory
from saturnmq.broker.replication.executor import Doors, Executor
from saturnmq.broker.replication.failover import FailoverService
from saturnmq.broker.replication.ha_master import HaMaster
from saturnmq.broker.replication.ha_slave import HaSlave
from saturnmq.broker.replication.leaving import Leaving
from saturnmq.broker.replication.mending import Mending
from saturnmq.broker.replication.role import Role
from saturnmq.broker.replication.table_sync import TableSync
from saturnmq.broker.tables.clients import ClientTable
from saturnmq.broker.tables.deletion import Deletion
from saturnmq.broker.tables.locks import QueueLockTable
from saturnmq.broker.tables.lost_offsets import has_queue
from saturnmq.broker.tables.offsets import ConsumerOffsets
from saturnmq.broker.tables.statistics import Statistics
from saturnmq.broker.tables.subscription_groups import GroupTable
from saturnmq.broker.tables.table_memory import GROUP, LOCK, MEMBER, OFFSET, TOPIC, TableMemory
from saturnmq.broker.tables.table_persistence import TablePersistence
from saturnmq.broker.tables.topics import TopicTable, system_topics
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.connections import Connections
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.ids import UniqueIds, encode_host
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.signing import Challenges
from saturnmq.runtime.door import (
    EXPOSED,
    Listener,
    Runtime,
    is_loopback,
    join_address,
    split_address,
)
from saturnmq.runtime.errors import (
    ConfigError,
    MalformedFrame,
    SaturnError,
    StoreDamaged,
    SystemBusy,
    UnsupportedRequest,
)
from saturnmq.runtime.loop_watch import LoopWatch
from saturnmq.runtime.steps import Aside, Steps
from saturnmq.runtime.supervision import Supervisor
from saturnmq.store.config_files import ConfigFile
from saturnmq.store.disk import Disk
from saturnmq.store.log.epochs import Epochs
from saturnmq.store.message_store import Arrival, MessageStore, Truncated

log = logging.getLogger(__name__)

TELL_S = 2.0  # how often a long recovery tells how far it is
SAMPLE_S = 1.0  # between two notes of the statistics
COLD_READS = 2  # at once: the other threads are for flushes, and what else must not wait
TICK_S = 0.1  # how late a deadline may be noticed


SENDS = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_BATCHES,
    }
)


class Broker:
    def __init__(
        self, config: BrokerConfig, runtime: Runtime, disk: Disk, ballot: Ballot | None = None
    ) -> None:
        """With a `ballot` it takes part in elections."""
        self.config = config
        self._ballot = ballot
        self._electing: ElectionService | None = None
        self._leaving: Leaving | None = None
        self._runtime = runtime
        self._disk = disk
        self._tasks: list[asyncio.Task[None]] = []
        self._gate = StoreGate(runtime)
        self._listeners: list[Listener] = []
        self._connections = Connections(
            runtime, config.limits.within(disk.memory_bytes()), self._dispatch, self._lost
        )
        self._handlers: dict[int, Handler] = {}
        self._closed = False
        self._cut_unsaved = self._sinks_cut = False  # tables do not know yet that the log was cut
        self._delivering: asyncio.Task[None] | None = None
        self._registration: Registrar | None = None
        self.address = ""
        self.ha_address = ""
        self.failed: str | None = None  # why this broker takes no more writes
        self.failures = Failures()
        self.loop_watch = LoopWatch(runtime)
        self._supervisor = Supervisor(runtime, self.failures.of_task)

    async def start(self) -> None:
        config, runtime = self.config, self._runtime
        if config.passed_over:
            log.warning(
                "%d settings of RocketMQ have no effect here (docs/broker-conf.md says why): %s",
                len(config.passed_over),
                ", ".join(config.passed_over),
            )
        self.store = self._open_store()
        if self.store.config.clean_forcibly:
            log.warning(
                "cleanFileForciblyEnable is true, as RocketMQ has it: while the disk is used "
                "beyond %d %% (diskSpaceCleanForciblyRatio) the oldest messages are deleted, "
                "expired or not, consumed or not; set it to false to refuse sends instead",
                self.store.config.disk_levels.forcibly,
            )
        try:
            await self._start(config, runtime)
        except BaseException:
            await self.close(clean=False)
            raise

    def _open_store(self) -> MessageStore:
        begun = told = self._runtime.monotonic()

        def progress(done: int, total: int) -> None:
            nonlocal told
            now = self._runtime.monotonic()
            if now - told >= TELL_S:
                told = now
                log.info("recovering: read %d of at most %d MB", done >> 20, total >> 20)

        config = self.config.store_config()
        store = MessageStore.open(config, self._disk, self._runtime, progress)
        found = store.recovery
        if found.clean and not found.end:
            log.info("%s holds no log: it is new, or a disk was replaced", config.root)
            return store
        log.info(
            "recovered in %.2f s after a %s: read %d bytes of the log with %d messages, it ends at "
            "%d",
            self._runtime.monotonic() - begun,
            "clean stop" if found.clean else "crash",
            found.end - found.scanned_from,
            found.messages,
            found.end,
        )
        return store

    async def _start(self, config: BrokerConfig, runtime: Runtime) -> None:
        context = self._make_context()
        self._saver = TablePersistence(runtime, context.steps, self._gate.shared)
        self.context = context
        context.tables.counts = {
            OFFSET: context.offsets.__len__,
            GROUP: context.groups.__len__,
            TOPIC: lambda: len(context.topics) + len(context.topics.deleted),
            MEMBER: context.clients.__len__,
            LOCK: context.locks.__len__,
        }
        self._turn = WatermarkAdvancer(context)
        context.appended = self._turn.wake
        self._load_role()
        await self._bind()
        self._make_services()
        self._load_tables()
        confirm(context)
        self._turn.wake()
        self._start_tasks()
        assert self._registration is not None
        self._tasks += self._registration.start(self._supervisor)
        await self._executor.begin()
        log.info(
            "%s (%s, %s) serves at %s",
            config.broker_name,
            context.role.name,
            config.flush_disk_type,
            self.address,
        )

    def _make_context(self) -> Context:
        config, runtime = self.config, self._runtime
        tables = TableMemory(self._connections.budget)
        topics = TopicTable(
            runtime.now_ms,
            self._topics_changed,
            lambda: self.store.watermarks.appended,
            partial(tables.take, TOPIC),
        )
        return Context(
            config=config,
            runtime=runtime,
            store=self.store,
            topics=topics,
            groups=GroupTable(
                runtime.now_ms,
                auto_create=config.auto_create_groups,
                room_for=partial(tables.take, GROUP),
            ),
            clients=ClientTable(config.client_expiry_ms / 1000),
            offsets=ConsumerOffsets(runtime.now_ms, topics.is_over, partial(tables.take, OFFSET)),
            locks=QueueLockTable(),
            ledger=AckLedger(config.max_pending_acks, self._connections.budget),
            role=Role(config),
            epochs=Epochs.load(self._disk, config.root, self.store.watermarks.appended),
            statistics=Statistics(runtime.monotonic(), runtime.now_ms()),
            failures=self.failures,
            loop_watch=self.loop_watch,
            connections=self._connections,
            tables=tables,
            steps=Steps(runtime),
            aside=Aside(runtime),
            cold_reads=Aside(runtime, COLD_READS),
        )

    async def _bind(self) -> None:
        """Listen first: clients are told the port, and frames store it."""
        config, runtime = self.config, self._runtime
        listener = await runtime.listen(config.host, config.port, self._connections.accept)
        self._listeners.append(listener)
        host, port = split_address(listener.address)
        everywhere = config.host in ("0.0.0.0", "::", "")
        advertised = config.advertised_host or (
            runtime.own_address() if everywhere else config.host
        )
        if advertised == "localhost":
            advertised = "127.0.0.1"
        self.address = self.context.address = join_address(advertised, port)
        try:
            self.context.store_host = encode_host(advertised, port)
        except ValueError as error:
            raise ConfigError(
                f"the advertised host {advertised!r} is no IP address, but every stored message "
                "carries it as one; set brokerIP1"
            ) from error
        if not is_loopback(listener.address):
            log.warning(EXPOSED, listener.address)
        elif not ip_address(advertised).is_loopback:
            log.warning(
                "clients are told %s (brokerIP1), but the broker listens on %s only: set "
                "bindAddress to 0.0.0.0 to be reached from other machines",
                self.address,
                host,
            )
        if config.fast_port and config.port > 2:
            try:
                accept = self._connections.accept
                fast = await runtime.listen(config.host, config.port - 2, accept)
                self._listeners.append(fast)
            except OSError as error:
                log.warning(
                    "port %d (port - 2) is not free, Java slaves cannot copy topics: %s",
                    config.port - 2,
                    error,
                )

        self._links = count(1)
        self._master = HaMaster(self.context, self._links, on_replicated=self._turn.wake)
        await self._master.start()
        _, ha_port = split_address(self._master.address)
        self.ha_address = join_address(config.ha_advertised_host or advertised, ha_port)
        self.context.ha_address = self.ha_address
        self.context.enough_replicas = self._master.enough_replicas
        self.context.copies_in_sync = self._master.copies_in_sync

    def _make_services(self) -> None:
        config, runtime, context = self.config, self._runtime, self.context
        process = runtime.random.randrange(1 << 16)
        host, _ = split_address(self.address)
        sends = SendService(context, UniqueIds(runtime, host, process))
        self._pulls = pulls = PullService(context)
        self._members = members = MembershipService(context)
        self._delays = delays = DelayService(context, sends)
        self._flush = FlushService(
            self.store,
            runtime,
            sync=config.sync_flush,
            interval_s=config.flush_interval_ms / 1000,
            on_flushed=self._flushed,
            on_failed=self._look_for_failure,
            guard=self._gate.shared,
        )
        context.flush_keeps_up = self._flush.keeps_up
        retention = RetentionClock(runtime)
        self._cleaning = CleaningService(
            self.store,
            runtime,
            now_ms=retention.now_ms,
            retry_dispatch=self._turn.catch_up,
            guard=self._gate.shared,
        )
        self._upkeep = Upkeep(self.store, runtime, self._gate, self._look_for_failure)
        deletion = Deletion(
            context,
            save=self._saver.save,
            checkpoint=self._upkeep.checkpoint,
            wake_pulls=pulls.wake_all,
        )
        self._table_sync = TableSync(
            context, delays, deletion.apply, lambda: self._slave.master_address
        )
        mending = Mending(context, self._repair)
        self._slave = HaSlave(
            context,
            self._links,
            flush=lambda: self._gate.shared(self._flush.flush_once()),
            flush_at_once=self._flush.flush_at_once,
            on_append=self._turn.wake,
            on_join=self._table_sync.joined,
            mending=mending,
        )
        self._registration = Registrar(context, self.ha_address)
        self._slave.on_no_master = self._registration.look_for_master
        self._failover = FailoverService(context, self._master, self._slave, self._registration)
        self._failover.executor = self._executor = Executor(
            context,
            self._master,
            self._slave,
            self._registration,
            mending,
            Doors(
                save=self._save_role,
                saved_soon=self._saver.wake,
                cut_torn=self._cut_torn,
                keep_within=self._keep_topics_within,
                cut=self._truncate,
                put_back=self._put_back,
                wake=self._turn.wake,
                lead=self._lead,
                retire=self._retire,
                merge_back=self._table_sync.merge_back,
                adopt=self._table_sync.adopt,
                answer=self._failover.answer,
            ),
        )
        self._make_electing()
        admin = AdminService(
            context,
            delays,
            ha_status=self._ha_status,
            flush_behind_ms=self._flush.behind_ms,
            request_cleaning=self._cleaning.request,
            wake_pulls=pulls.wake_all,
            save=self._saver.save,
            deletion=deletion,
            copy_tables=self._table_sync.copy_now,
            started_ms=runtime.now_ms(),
        )
        retries, lookups = RetryService(context, sends), QueryService(context)
        self._sinks = SinkTable(self.store, retention.now_ms)
        stages = Stages(
            self._disk,
            config.root,
            context.connections.budget,
            max_bytes=config.stage_max_bytes,
            memory_bytes=config.stage_memory_bytes,
            total_bytes=config.stage_total_bytes,
        )
        stages.clear()
        self._staging = StagingService(
            context, sends, self._sinks, stages, self._gate.shared, self._turn.catch_up
        )
        self._turn.on_append += [
            self._upkeep.appended,
            self._flush.wake,
            self._master.appended,
            self._registration.log_grew,
        ]
        self._turn.on_arrivals += [
            self._table_sync.arrived,
            self._sinks.arrived,
            pulls.arrived,
            lambda _, arrivals: delays.arrived(arrivals),
            self._count,
        ]
        self._turn.on_visible += [pulls.wake]
        self._turn.is_awaited = lambda: len(pulls.held) > 0
        ranges = RangeService(context)
        self._leaving = Leaving(context, self._master, self._slave)
        self._handlers = handlers(
            Services(
                sends,
                pulls,
                retries,
                lookups,
                members,
                admin,
                self._failover,
                self._leaving,
                mending,
                ranges,
                self._staging,
            ),
            Challenges(config.signing, lambda: self.address, context.let_in),
        )

    def _make_electing(self) -> None:
        if self._ballot is None:
            return
        context, saved = self.context, SavedMemory()
        file = ConfigFile(self._disk, f"{self.config.root}/config/election.json")
        _read(file, saved.load)
        self._saver.add(saved, file)
        self._electing = electing = ElectionService(
            context,
            self._ballot,
            saved,
            self._master,
            self._slave,
            tell=self._executor.tell,
            wake=self._turn.wake,
        )
        context.witnesses, context.unelected = electing.witnesses, electing.refuses
        context.counts, context.refuses_group = electing.counts, electing.refuses_group
        context.had_by = self._master.had_by
        self._failover.no_failover = electing.trouble

    def _load_tables(self) -> None:
        context, config = self.context, self.config
        root = f"{config.root}/config"
        self._disk.make_dirs(root)

        files = {
            name: ConfigFile(self._disk, f"{root}/{name}.json")
            for name in ("topics", "subscriptionGroup", "consumerOffset", "delayOffset", "sinks")
        }
        context.topics.install_system(
            system_topics(
                config.cluster_name,
                config.broker_name,
                config.default_topic_queues,
                delay_levels=len(self.store.config.delays_ms),
                auto=config.auto_create_topics,
            )
        )
        _read(files["topics"], context.topics.load)
        context.topics.forget_deleted(self.store.watermarks.start)
        context.topics.restore(self.store.last_entries())
        self.store.bury(context.topics.deleted)
        _read(files["subscriptionGroup"], context.groups.load)
        _read(files["consumerOffset"], context.offsets.load)
        _read(files["delayOffset"], self._delays.load)
        if self.store.recovery.missing:
            self._delays.forget()
        else:
            context.offsets.keep(partial(has_queue, context))
        _read(files["sinks"], self._sinks.load)
        # The log may grow again over what it has lost: not over these tables.
        if self._sinks.dirty:
            files["sinks"].save(self._sinks.snapshot())
            self._sinks.clean()
        if self._delays.dirty:
            files["delayOffset"].save(self._delays.snapshot())
            self._delays.clean()
        for table, name in (
            (context.topics, "topics"),
            (context.groups, "subscriptionGroup"),
            (context.offsets, "consumerOffset"),
            (self._delays, "delayOffset"),
            (self._sinks, "sinks"),
        ):
            self._saver.add(table, files[name])

    def _load_role(self) -> None:
        """What a promotion has made of this node, and which master wrote what of its log."""
        root, role = self.config.root, self.context.role
        self._disk.make_dirs(f"{root}/config")
        role.log_epoch = self.context.epochs.last
        file = ConfigFile(self._disk, f"{root}/config/role.json")
        _read(file, role.load)
        self._saver.add(role, file)
        if role.decided and role.is_slave != self.config.is_slave:
            log.warning(
                "brokerRole is %s, but a promotion has made this node a %s since: that counts",
                self.config.role,
                role.name,
            )
        if role.is_slave:
            self.context.master_confirmed = self.store.recovered_confirm

    def _start_tasks(self) -> None:
        spawn, keep, config = self._runtime.spawn, self._supervisor.keep, self.config
        save_s = config.flush_offsets_ms / 1000
        self._tasks += [
            keep(lambda: self._saver.run(save_s), name="save-tables"),
            keep(self._deadlines, name="deadlines"),
            keep(self._upkeep.run_ahead, name="prepare-segments"),
            keep(self._upkeep.run_checkpoints, name="flush-derived"),
            keep(self._cleaning.run, name="cleaning"),
            keep(self._table_sync.run, name="table-sync"),
        ]
        # The process ends with these: what they have done to the log, or for it, is in doubt.
        work = [
            (self._flush.run(), "flush"),
            (self._master.run(), "ha-master"),
            (self._slave.run(), "ha-slave"),
        ]
        store_config = self.store.config
        if store_config.transient_pool:
            commits = self._flush.run_commits(store_config.commit_interval_ms / 1000)
            work.append((commits, "commit"))
        if self._electing is not None:
            work += [(self._electing.run(), "election"), (self._electing.watch(), "election-watch")]
        self._tasks += [spawn(coroutine, name=name) for coroutine, name in work]

    # connections

    def _lost(self, endpoint: Endpoint) -> None:
        if not self._closed:
            self._members.closed(endpoint)
            self._pulls.closed(endpoint)

    def _dispatch(self, endpoint: Endpoint, request: Command) -> None:
        handler = self._handlers.get(request.code)
        if handler is None:
            raise UnsupportedRequest(f" request type {request.code} not supported")
        if not self._gate.is_open:
            raise SystemBusy("the log is being cut to what the master has; try again")
        if self.store.in_group and request.code in APPENDING:
            self._staging.park(endpoint, request)
            return
        if request.code not in SENDS:
            self._turn.catch_up()  # it may ask for what was acknowledged a moment ago
        self.loop_watch.last_request = request.code
        try:
            handler(endpoint, request)
        except SaturnError:
            raise
        except Exception as error:
            self.failures.of_request(request.code, error)
            raise

    # loops and hooks

    def _topics_changed(self) -> None:
        self._saver.wake()
        if self._registration is not None:
            self._registration.topics_changed()

    def _count(self, _: int, arrivals: Iterable[Arrival]) -> None:
        if not self.context.role.is_slave:  # its master counts
            self.context.statistics.arrived(arrivals)

    def _flushed(self) -> None:
        self._turn.wake()
        self._slave.flushed()

    def _look_for_failure(self) -> None:
        """A write or a sync that failed, whoever asked for it, is final: every waiter is told."""
        if self.store.failed is None or self.failed is not None:
            return
        self.failed = self.store.failed  # told in the status and at the end
        log.critical(
            "the disk failed, the broker takes no more writes: %s; check the disk, then restart "
            "the broker",
            self.failed,
        )
        self.context.ledger.fail_all(
            ResponseCode.FLUSH_DISK_TIMEOUT,
            f"stored, but the disk did not take it for good: {self.failed}",
        )

    # roles

    def _lead(self) -> None:
        """Begin what only a master does."""
        self._table_sync.begin_term()
        if self._delivering is None or self._delivering.done():
            self._delivering = self._supervisor.keep(self._delays.run, name="delay")
            self._tasks.append(self._delivering)

    def _retire(self) -> None:
        self._table_sync.end_term()
        self._staging.drop_all()
        if self._delivering is not None:
            self._delivering.cancel()
            self._tasks.remove(self._delivering)
            self._delivering = None

    async def _save_role(self) -> None:
        if self._cut_unsaved:  # there was no room: the log must not grow before
            await self._save_cut()
        await self._saver.save(self.context.role)

    def replica_state(self) -> dict[str, Any]:
        """What REPLICA_STATE answers."""
        return self._failover.state()

    def _ha_status(self) -> dict[str, Any]:
        part = self._slave if self.context.role.is_slave else self._master
        return part.status()

    async def _truncate(self, offset: int, reason: str) -> None:
        """Cut the log; what is cut is in a side file then."""
        epoch = self.context.epochs.last
        cut = partial(self.store.truncate, offset, reason=reason, epoch=epoch)
        await self._cut(cut)
        self._table_sync.truncated()

    async def _put_back(self, side: Truncated) -> None:
        await self._cut(partial(self.store.put_back, side))

    async def _cut_torn(self) -> None:
        await self._cut(self.store.truncate_torn)

    async def _repair(self, repair: Callable[[], Any]) -> None:
        await self._cut(repair)
        self._sinks.read_again()

    async def _cut(self, cut: Callable[[], Any]) -> None:
        """The turn and long work rest meanwhile: what they would look at may be about to go."""

        def rest(resting: bool) -> None:
            self._turn.stopped = resting
            self.context.steps.rest(resting)

        try:
            await self._gate.exclusive(cut, rest)
            self._turn.tell(self.store.take_untold())
            self._cut_unsaved = True
            await self._save_cut()
        finally:
            self._turn.wake()
            self._pulls.wake_all()

    async def _save_cut(self) -> None:
        """What the tables say of a log that was cut, before it grows again."""
        self._delays.cut()
        await self._saver.save(self._delays)
        self._sinks_cut = self._sinks.cut() or self._sinks_cut
        if self._sinks_cut:
            await self._saver.save(self._sinks)
            self._sinks_cut = False
        await self._keep_topics_within()
        self._cut_unsaved = False

    async def _keep_topics_within(self) -> None:
        """Durably: the log ends here, and what will be written behind that is newer than all that
        the topic table says."""
        topics = self.context.topics
        if topics.within(self.store.watermarks.appended):
            self.store.bury(topics.deleted)
        await self._saver.save(topics)  # also what there was no room for the last time

    async def _deadlines(self) -> None:
        """Whatever is late: sends, held pulls, silent clients."""
        next_scan = next_sample = 0.0
        while True:
            await self._runtime.sleep(TICK_S)
            now = self._runtime.monotonic()
            self.context.role.tick(now)
            self._executor.note_floor()
            self._look_for_failure()
            # Who waits for a slave alone does not wait for this disk.
            marks, slaves = self.store.watermarks, self.context.waits_for_copies
            no_matter = slaves and not self.config.sync_flush and self._flush.keeps_up()
            self.context.ledger.expire(now, marks.appended if no_matter else marks.flushed)
            self.context.ledger.count()
            self._pulls.expire(now)
            self._connections.expire(now)
            if now >= next_sample:
                next_sample = now + SAMPLE_S
                self.context.tables.count()
                self.context.statistics.sample(now, self._runtime.now_ms(), self.context.topics)
            if now >= next_scan:
                next_scan = now + 10
                self._members.expire(now)
                self._staging.expire(now)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    async def close(self, *, clean: bool = True) -> None:
        """Stop serving; with `clean` flush and save everything first."""
        if self._closed:
            return
        self._closed = True
        for listener in self._listeners:
            listener.close()
        if self._registration is not None and clean:
            if self._leaving is not None:
                await self._leaving.say()
            await self._registration.unregister()
        for task in self._tasks:
            task.cancel()
        if getattr(self, "_executor", None) is not None:
            self._executor.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._gate.ended()
        if getattr(self, "_turn", None) is not None:
            self._turn.stopped = True
        for part in (getattr(self, "_slave", None), getattr(self, "_master", None)):
            if part is not None:
                part.close()
        if getattr(self, "_table_sync", None) is not None:
            self._table_sync.close()
        if clean and getattr(self, "_flush", None) is not None:
            await self._flush.flush_once()
            confirm(self.context)
            self.context.ledger.release(self.store.watermarks.confirmed)
            marks = self.store.watermarks
            before = -1
            while before < marks.dispatched:
                before = marks.dispatched
                with contextlib.suppress(SaturnError):  # damage: the turn has told it
                    self.store.reput()
            self._executor.note_floor()
            self.context.role.note_floor()
            await self._saver.save_changed()
            if self._saver.unsaved:
                lost = f"what changed last is not in {', '.join(self._saver.unsaved)}"
                log.critical("%s: it is lost", lost)
                self.failed = self.failed or lost
        if self._electing is not None:
            await self._electing.close()
        self._connections.close("the broker shuts down")
        await self._runtime.run_blocking(self.store.close)


def _read(file: ConfigFile, take: Callable[[dict[str, Any]], None]) -> None:
    """Give a table its document; one of another shape is a damaged file, not a crash."""
    try:
        take(file.load() or {})
    except MalformedFrame as error:
        raise StoreDamaged(
            f"{file.path} is not what a broker writes ({error}): restore it, or delete it and its "
            ".bak to start with an empty table"
        ) from error
