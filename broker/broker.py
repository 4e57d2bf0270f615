"""A broker: opens the store, starts its parts (`broker/parts.py`), and gives requests to them.

Start order: store (recovery), role, listeners, the other parts, tables, registration; then the
machine of replication finds out whether this node is the master. The recovered log is confirmed
only as far as the ack mode allows: with SYNC_MASTER a restarted master shows consumers nothing that
no slave has reported yet.

Close order: no new work, the waiting sends answered, everything flushed and saved, then the store
(which removes its `abort` mark). That is not the order of the start reversed, and half of it is
left out when a start failed: `close` therefore lists its steps, where an exit stack would hide
them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

from saturnmq.broker.commit.advance import confirm
from saturnmq.broker.config import BrokerConfig
from saturnmq.broker.exactly_once.staging import APPENDING
from saturnmq.broker.failures import Failures
from saturnmq.broker.groundwork import Groundwork, lay_groundwork
from saturnmq.broker.listening import Listening
from saturnmq.broker.parts import MessagingParts, Parts, ReplicationParts, build_parts
from saturnmq.broker.replication.elector import Ballot
from saturnmq.broker.tables.loading import load_role, load_tables
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.command_reading import reader_of
from saturnmq.protocol.connections import Connections
from saturnmq.protocol.credentials import Credentials
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.headers import HEADERS
from saturnmq.protocol.inner_endpoint import InnerClient, InnerEndpoint
from saturnmq.protocol.refusals import refusal
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.route import MASTER_ID, BrokerData, QueueData, TopicRoute
from saturnmq.runtime.door import Runtime
from saturnmq.runtime.errors import ConfigError, SaturnError, SystemBusy, UnsupportedRequest
from saturnmq.runtime.loop_watch import LoopWatch
from saturnmq.runtime.supervision import Supervisor
from saturnmq.store.disk import Disk
from saturnmq.store.message_store import MessageStore

log = logging.getLogger(__name__)

TELL_S = 2.0  # how often a long recovery tells how far it is

# Requests that do not read the newest part of the log, or that look for themselves.
WITHOUT_NEWEST = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_BATCHES,
        RequestCode.END_TRANSACTION,
    }
)


class Broker:
    def __init__(
        self, config: BrokerConfig, runtime: Runtime, disk: Disk, ballot: Ballot | None = None
    ) -> None:
        """With a `ballot` the broker takes part in elections."""
        self.config = config
        self.failures = Failures()
        self.loop_watch = LoopWatch(runtime)
        self._ballot = ballot
        self._runtime = runtime
        self._disk = disk
        self._supervisor = Supervisor(runtime, self.failures.of_task)
        self._connections = Connections(
            runtime,
            config.limits.within(disk.memory_bytes()),
            self._dispatch,
            self._lost,
            read_frame=reader_of(HEADERS),
        )
        self._listening = Listening(config, runtime, self._connections.accept)
        self._ground: Groundwork | None = None
        self._parts: Parts | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._unsaved = ""  # the tables that could not be saved at the end
        self._closed = False

    # the visible state

    @property
    def ground(self) -> Groundwork:
        assert self._ground is not None, "the broker is not started"
        return self._ground

    @property
    def parts(self) -> Parts:
        assert self._parts is not None, "the broker is not started"
        return self._parts

    @property
    def messaging(self) -> MessagingParts:
        return self.parts.messaging

    @property
    def replication(self) -> ReplicationParts:
        return self.parts.replication

    @property
    def address(self) -> str:
        """The address that clients are told; empty while the broker does not listen."""
        return self._listening.address

    @property
    def ha_address(self) -> str:
        """The address that slaves are told."""
        return self._ground.context.ha_address if self._ground is not None else ""

    @property
    def failed(self) -> str | None:
        """Why this broker takes no more writes, or what it could not save at its end."""
        why = self._ground.disk_failure.why if self._ground is not None else None
        return why or self._unsaved or None

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def replica_state(self) -> dict[str, Any]:
        """The body of an answer to REPLICA_STATE."""
        return self.replication.failover.state()

    def validate(self) -> None:
        """Check the broker's state. AssertionError: it contradicts itself."""
        ground, messaging, replication = self.ground, self.messaging, self.replication
        ground.gate.validate()
        ground.context.validate()
        ground.master.validate()
        messaging.delays.validate()
        messaging.timers.validate()
        messaging.pulls.held.validate()
        messaging.pops.held.validate()
        messaging.popping.validate()
        messaging.sinks.validate()
        messaging.staging.validate()
        messaging.half_log.validate()
        replication.executor.validate()
        if replication.elections is not None:
            replication.elections.validate()

    # the start

    async def start(self) -> None:
        config = self.config
        if config.passed_over:
            log.warning(
                "settings of RocketMQ have no effect here (docs/broker-conf.md says why): %s",
                ", ".join(config.passed_over),
            )
        self.store = self._open_store()
        if config.authentication and config.own_credentials is None:
            log.warning(
                "without innerClientAuthenticationCredentials no other node is answered: slaves "
                "get no tables from this broker, and it gets none from a master that checks users"
            )
        if config.authentication and not config.signing.refuses:
            log.warning(
                "users are checked at the ports of clients only: without replicationSecret whoever "
                "reaches the port for slaves (haListenPort) reads all messages"
            )
        if self.store.config.clean_forcibly:
            log.warning(
                "cleanFileForciblyEnable is true, as RocketMQ has it: while the disk is used "
                "beyond %d %% (diskSpaceCleanForciblyRatio) the oldest messages are deleted, "
                "expired or not, consumed or not; set it to false to refuse sends instead",
                self.store.config.disk_levels.forcibly,
            )
        try:
            await self._start()
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

    async def _start(self) -> None:
        ground = self._ground = lay_groundwork(
            self.config,
            self._runtime,
            self._disk,
            self.store,
            self._connections,
            self.failures,
            self.loop_watch,
        )
        context = self.context = ground.context
        load_role(ground.files, context)
        await self._listen(ground)
        if why := context.role.refuses_start(context.address):
            raise ConfigError(why)
        parts = self._parts = build_parts(ground, self._supervisor, self._ballot)
        messaging, replication = self.messaging, self.replication
        messaging.stages.clear()
        load_tables(
            ground.files,
            context,
            messaging.delays,
            messaging.sinks,
            messaging.timers.clock,
            forget_delays=messaging.delays.forget,
        )
        messaging.timers.load()
        confirm(context)
        ground.advancer.wake()
        self._start_tasks(ground, parts)
        self._tasks += replication.registrar.start(self._supervisor)
        await replication.executor.begin()
        log.info(
            "%s (%s, %s) serves at %s",
            self.config.broker_name,
            context.role.name,
            self.config.flush_disk_type,
            self.address,
        )

    async def _listen(self, ground: Groundwork) -> None:
        """Listen first: clients are told the port, and frames store it."""
        context, listening = ground.context, self._listening
        await listening.open()
        context.address, context.store_host = listening.address, listening.store_host
        await ground.master.start()
        context.ha_address = listening.ha_address(ground.master.address)

    def _start_tasks(self, ground: Groundwork, parts: Parts) -> None:
        spawn, keep, config = self._runtime.spawn, self._supervisor.keep, self.config
        durability, replication = parts.durability, parts.replication
        flush, upkeep, elections = durability.flush, durability.upkeep, replication.elections
        save_s = config.flush_offsets_ms / 1000
        self._tasks += [
            keep(lambda: ground.persistence.run(save_s), name="save-tables"),
            keep(parts.deadlines.run, name="deadlines"),
            keep(upkeep.run_ahead, name="prepare-segments"),
            keep(upkeep.run_room, name="make-room"),
            keep(upkeep.run_checkpoints, name="flush-derived"),
            keep(durability.cleaning.run, name="cleaning"),
            keep(replication.table_sync.run, name="table-sync"),
            keep(parts.messaging.timers.run, name="timed-messages"),
        ]
        # The process ends with these: what they have done to the log, or for it, is in doubt.
        work = [
            (flush.run(), "flush"),
            (ground.master.run(), "ha-master"),
            (replication.slave.run(), "ha-slave"),
        ]
        store_config = self.store.config
        if store_config.transient_pool:
            work.append((flush.run_commits(store_config.commit_interval_ms / 1000), "commit"))
        if elections is not None:
            work += [(elections.run(), "election"), (elections.watch(), "election-watch")]
        self._tasks += [spawn(coroutine, name=name) for coroutine, name in work]

    # requests

    @property
    def connections(self) -> Connections:
        """All connections of clients, whose limits hold for those of the gateway, too."""
        return self._connections

    @property
    def checks_users(self) -> bool:
        """Whether requests need a user."""
        return self.ground.context.guard is not None

    @property
    def credentials(self) -> Credentials | None:
        """With which its gateway asks this broker and others for itself."""
        return self.ground.context.credentials

    def connect_inside(self, peer_address: str, client: InnerClient) -> InnerEndpoint:
        """A connection for a client whose server is in this process: the gateway of gRPC."""
        return self._connections.accept_inside(peer_address, client, self._dropped)

    @property
    def broker_name(self) -> str:
        return self.config.broker_name

    @property
    def is_proxy(self) -> bool:
        """Clients of the gateway go to other brokers themselves."""
        return False

    @property
    def body_max(self) -> int:
        """The largest body of a message that is taken."""
        return self.config.max_message_bytes

    @property
    def host(self) -> str:
        """The host that clients are told."""
        return self._listening.host

    def masters(self) -> list[str]:
        """A broker asks itself."""
        return []

    def offers(self, grpc_address: str) -> None:
        """There is a gateway at this address, which other nodes are told."""
        self.ground.context.grpc_address = grpc_address

    async def find_route(self, topic: str, timeout_s: float) -> TopicRoute:
        """The route of a topic, from a nameserver or, without one, from this broker's own table.
        TopicNotExist; SystemBusy: no nameserver answers."""
        if self.config.nameservers:
            return await self.replication.registrar.find_route(topic, timeout_s)
        found, config = self.ground.context.topics.readable(topic), self.config
        name = config.broker_name
        return TopicRoute(
            [QueueData(name, found.read_queues, found.write_queues, found.perm)],
            [BrokerData(config.cluster_name, name, {MASTER_ID: self.address})],
        )

    def _dropped(self, endpoint: Endpoint, request: Command) -> bool:
        """Forget a request that is held; False if it is none, and may be answered."""
        if self._parts is None or self._closed:
            return False
        messaging, opaque = self._parts.messaging, request.opaque
        found = messaging.pops.dropped(endpoint, opaque)
        return (found or messaging.pulls.held.dropped(endpoint, opaque)) is not None

    def _lost(self, endpoint: Endpoint) -> None:
        if self._parts is not None and not self._closed:
            self._parts.messaging.members.closed(endpoint)
            self._parts.messaging.pulls.closed(endpoint)
            self._parts.messaging.pops.closed(endpoint)

    def _dispatch(self, endpoint: Endpoint, request: Command) -> None:
        ground, parts = self._ground, self._parts
        if ground is None or parts is None:
            raise SystemBusy("the broker is starting; try again")
        handler = parts.handlers.get(request.code)
        if handler is None:
            raise UnsupportedRequest(refusal(request.code))
        if ground.context.guard is not None:
            ground.context.guard.check(endpoint, request)
        if not ground.gate.is_open:
            raise SystemBusy("the log is being cut to that of the master; try again")
        if self.store.in_group and request.code in APPENDING:
            parts.messaging.staging.park(endpoint, request)
            return
        if request.code not in WITHOUT_NEWEST:
            ground.advancer.catch_up()  # it may ask for messages acknowledged a moment ago
        self.loop_watch.last_request = request.code
        ground.context.stay_awake()
        try:
            handler(endpoint, request)
        except SaturnError:
            raise
        except Exception as error:
            self.failures.of_request(request.code, error)
            raise

    # the end

    async def close(self, *, clean: bool = True) -> None:
        """Stop serving; with `clean` flush and save everything first."""
        if self._closed:
            return
        self._closed = True
        ground, parts = self._ground, self._parts
        self._listening.close()
        if parts is not None and clean:
            await parts.replication.leaving.say()
            await parts.replication.registrar.unregister()
        await self._stop_tasks(parts)
        if ground is not None:
            await ground.gate.ended()
            ground.advancer.stopped = True
            if parts is not None:
                parts.replication.slave.close()
            ground.master.close()
        if parts is not None:
            parts.replication.table_sync.close()
        if ground is not None and parts is not None:
            if clean:
                await self._flush_and_save(ground, parts)
            if parts.replication.elections is not None:
                await parts.replication.elections.close()
        self._connections.close("the broker shuts down")
        await self._runtime.run_blocking(self.store.close)

    async def _stop_tasks(self, parts: Parts | None) -> None:
        tasks = self._tasks
        if parts is not None:
            tasks = tasks + parts.replication.duties.tasks
        for task in tasks:
            task.cancel()
        if parts is not None:
            parts.replication.executor.close()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _flush_and_save(self, ground: Groundwork, parts: Parts) -> None:
        context, marks = ground.context, self.store.watermarks
        await parts.durability.flush.flush_once()
        confirm(context)
        context.ledger.release(marks.confirmed)
        before = -1
        while before < marks.dispatched:
            before = marks.dispatched
            with contextlib.suppress(SaturnError):  # damage: the advancer has told it
                self.store.reput()
        await parts.messaging.timers.close()
        parts.replication.executor.note_floor()
        context.role.note_floor()
        await ground.persistence.save_changed()
        if ground.persistence.unsaved:
            files = ", ".join(ground.persistence.unsaved)
            self._unsaved = f"the last changes are not in {files}"
            log.critical("%s: it is lost", self._unsaved)
