"""The master's side of replication: sends the log to slaves, counts the positions they report.

Frames and the two dialects: `protocol/ha.py`. A slave's first bytes show its dialect.

Classic, with Java slaves: nothing is sent before the first report, which says where to start; 0
starts at the log's beginning (a Java master would start at its last segment; a Java slave accepts
either). An offset outside the log closes the connection and is logged: a Java master would send
heartbeats for ever.

Ours: HELLO tells the slave this node's identity, epochs and position. The slave JOINs with the
offset to go on at, and a checksum over its log before that offset, which must equal that of this
log. A slave that has to cut its log there first asks for this comparison (ACCEPT). A slave of
another group, or one with the id of another connected slave, is refused before anything else is
looked at. A node that is not the master (yet) says so in its HELLO, and says HELLO again when it
is. A node that is a slave itself serves one thing: the part of the log that its master lost.

A slave is in sync while it is less than haMaxGapNotInSync bytes and haMaxTimeSlaveNotCatchup
behind; it comes back when it is less than a second behind. `replicated` is the offset that enough
slaves have reported (inSyncReplicas - 1; with allAckInSyncStateSet all that are in sync). With
SYNC_FLUSH their flushed position counts, so that sync x sync means flushed on both. A slave counts
only if `config/role.json` names it durably, and every node that could be elected knows of it. A
Java slave does not report its flushed position, so its appended position counts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any, cast

from saturnmq.broker.context import Context
from saturnmq.broker.replication import events as e
from saturnmq.broker.replication.in_sync import SlaveLag
from saturnmq.broker.replication.introductions import Check, Join, introduce, read_join
from saturnmq.broker.replication.role import State
from saturnmq.broker.replication.sealing import SealOfMaster
from saturnmq.protocol import ha
from saturnmq.runtime.door import Listener
from saturnmq.runtime.errors import NoPermission, SaturnError
from saturnmq.store.offsets import PhysicalOffset

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 256  # slaves, and any other peers that dial
AT_ONCE = 1 << 20  # bytes that one turn of the loop sends to one slave
READ_AHEAD = 4 << 20  # bytes of the older log that a worker reads at a time, before they are sent


class SlaveConnection(asyncio.BufferedProtocol):
    """One slave. Sends as fast as the socket takes it, from the position the slave asked for."""

    def __init__(self, master: HaMaster) -> None:
        self._master = master
        self._inbox = ha.Inbox()
        self._transport: Any = None
        self._proof = SealOfMaster(master.signing, master.let_in)
        self.address = ""
        self.link = next(master.links)
        self.ours: bool | None = None  # the dialect; None before the first bytes
        self.greeted = False
        self.join: Join | None = None  # the introduction of one of our slaves
        self.is_named = False  # this node's file says that it belongs to the group
        self.next: int | None = None  # first byte not sent yet; None before it is known
        self.reported = ha.SlaveReport(-1)
        self.opened = self.last_read = self.last_write = 0.0
        self.sent_bytes = 0
        self.sent_per_s = 0
        self.lag = SlaveLag()
        self._read_to = 0  # by a worker, from `next` on
        self._reading = False
        self._rolled = 0
        self._told = -1  # the newest `confirmed` that was sent
        self._budget, self._budget_at = 0.0, 0.0

    # the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)
        if len(self._master.connections) >= CONNECTIONS_MAX:
            log.error(
                "%d connections are open to the port of slaves: one more is refused",
                CONNECTIONS_MAX,
            )
            stream.abort()
            return
        self._transport = stream
        self._send = self._master.writer(stream)
        stream.set_write_buffer_limits(0)  # `resume_writing` when all of it has left
        self.opened = self.last_read = self.last_write = self._budget_at = self._master.now()
        peer = stream.get_extra_info("peername")
        self.address = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer)
        self._master.connections.append(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._transport = None
        if self not in self._master.connections:
            return
        self._master.connections.remove(self)
        log.info("slave %s is gone (%s)", self.name, exc or "closed")
        self._master.left(self)

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    def validate(self) -> None:
        """AssertionError: it gets the log, and has not introduced itself."""
        assert self.ours is not None or self.next is None, "its dialect is not known"
        assert not self.ours or self.next is None or self.join is not None, "it has not joined"
        assert self.next is None or self.next >= 0, f"{self.next} is sent next"

    @property
    def _host(self) -> str:
        return self.address.rpartition(":")[0]

    @property
    def name(self) -> str:
        return self.join.address if self.join is not None else self.address

    @property
    def broker_id(self) -> int:
        """0 for a Java slave: it does not say."""
        return self.join.broker_id if self.join is not None else 0

    def heard_at(self) -> float:
        """The time of its last sign of life; bytes count only after its introduction."""
        return self.last_read if self.greeted or self.ours is False else self.opened

    @property
    def is_replica(self) -> bool:
        """Whether it follows this log; a node that only wants the tail does not."""
        return self.next is not None and not (self.join is not None and self.join.tail)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._inbox.free()

    def buffer_updated(self, nbytes: int) -> None:
        self._inbox.filled(nbytes)
        self.last_read = self._master.now()
        try:
            self._read_all()
        except NoPermission as error:
            self.refuse(str(error))
            return
        except SaturnError as error:
            log.error("slave %s: %s: closing", self.name, error)
            self.close()
            return
        self._inbox.make_room()

    def _read_all(self) -> None:
        newest: ha.SlaveReport | None = None
        while self._transport is not None:
            if self.ours is None:
                first = self._inbox.next_report()
                if first is None:
                    return
                if first != ha.GREETING:
                    self._proof.check_classic(self._host)
                self.ours = first == ha.GREETING
                if self.ours:
                    continue
                self._classic_start(first)
                newest = ha.SlaveReport(first)
            elif not self.ours:
                classic = self._inbox.next_report()
                if classic is None:
                    break
                newest = ha.SlaveReport(classic)
            elif not self.greeted:  # behind the greeting is the report for a Java master
                if self._inbox.next_report() is None:
                    return
                self.greeted = True
                self.hello()
            else:
                frame = self._inbox.next_of_slave()
                if frame is None:
                    break
                if isinstance(frame, ha.SlaveReport):
                    newest = frame
                elif frame.kind is ha.Kind.PROVE:
                    self._proof.proved(frame)
                    self.hello()
                elif frame.kind is ha.Kind.JOIN:
                    self._proof.check(frame, self._host)
                    self.join = read_join(frame.document, self._master.ceiling)
                    self.reported, newest = ha.SlaveReport(-1), None
                    self._master.tell(e.Joined(self.link, self.join))
        if newest is not None:
            self.reported = newest
            if self.next is not None:
                self._master.stay_awake()
                self._count()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # joining

    def _classic_start(self, report: int) -> None:
        self.reported = ha.SlaveReport(report)
        self._master.tell(e.JoinedClassic(self.link, self._host, report))

    def go_on_if_it_may(self) -> None:
        """Say HELLO again: this node's role has changed since it introduced itself."""
        if self.greeted:
            self.hello()
        elif self.ours is False:
            self._classic_start(self.reported.appended)

    def hello(self) -> None:
        if self._transport is not None:
            self._say(ha.Kind.HELLO, self._proof.hello(self._master.hello()))

    def tell_group(self) -> None:
        if self._transport is not None and self.ours and self.is_replica:
            self._say(ha.Kind.GROUP, self._master.group())

    def accept(self) -> None:
        """Tell the slave that both logs are equal up to the place it asked about."""
        self._say(ha.Kind.ACCEPT, {})

    def refuse(self, why: str, differs: Check | None = None, free_id: int = 0) -> None:
        """Refuse the slave. `differs`: a part where this log is sound and the slave's differs;
        `free_id`: a new id, if another slave has this one's and a promotion gave it to one of
        them."""
        log.error("slave %s is refused: %s", self.name, why)
        if self._transport is not None:
            document: dict[str, Any] = {"why": why, "freeId": free_id}
            if differs is not None:
                document["differs"] = [differs.start, differs.end]
            if self.ours:  # one of RocketMQ's tries again
                self._say(ha.Kind.REFUSE, document)
            self.close()

    def go_on(self, offset: int) -> None:
        """Send the log from this offset on."""
        assert offset >= 0, f"slave {self.name} is to go on at {offset}"
        self.next, self._read_to = offset, 0
        self.lag.begin(offset, self._master.now())
        log.info("slave %s joins at offset %d", self.name, offset)
        if not self.ours and self._master.waits_for_flush:
            log.warning("slave %s does not say what it has flushed: all counts", self.address)
        self._count()

    # reports

    @property
    def have(self) -> int:
        """The end of the log that counts as replicated here."""
        if self.ours and self._master.waits_for_flush:
            return self.reported.flushed
        return self.reported.appended

    def _count(self) -> None:
        """Count the position that the slave has reported."""
        if self.reported.appended >= 0:
            end, now = self._master.watermarks.appended, self._master.now()
            self.lag.report(self.reported.appended, end, now)
            self._master.recount()
        self.push()

    # sending

    def resume_writing(self) -> None:
        self.push()

    def push(self) -> None:
        """Send the log from the mapping into the socket until the socket takes no more; but only
        AT_ONCE bytes in a turn, so that others are served meanwhile."""
        if self.next is None:
            return
        begun = self.sent_bytes
        while self._transport is not None and not self._transport.get_write_buffer_size():
            if not self._may_send():
                return
            if self.sent_bytes - begun >= AT_ONCE:
                self._master.soon(self.push)
                return
            if self.next >= self._read_to and not self._master.is_recent(self.next):
                self._read_ahead()
                return
            data = self._master.read(self.next)
            if data is None or not len(data):
                self._nothing_to_send()
                return
            size = len(data)
            if self.ours:
                self._rolled = ha.roll(self._rolled, data)
                self._told = self._master.confirmed(self.next + size)
                head = ha.encode_our_transfer_header(self.next, size, self._rolled, self._told)
            else:
                head = ha.encode_transfer_header(self.next, size)
            self._write(head, data)
            self.next += size
            self.sent_bytes += size
            self._budget -= size

    def _read_ahead(self) -> None:
        """Have a worker read the next bytes: the loop would wait for the disk."""
        if not self._reading:
            self._reading = True
            assert self.next is not None, "it asked for the log"
            self._master.read_ahead(self.next, self._was_read)

    def _was_read(self, start: int, end: int, error: OSError | None) -> None:
        self._reading = False
        if error is not None:
            log.error("slave %s: cannot read the log for it: %s: closing", self.name, error)
            self.close()
            return
        if self.next == start:  # else it has joined anew
            self._read_to = end
        self.push()

    def _nothing_to_send(self) -> None:
        assert self.next is not None
        start = self._master.watermarks.start
        if self.next < start:
            log.error(
                "slave %s wants the log from %d, deleted up to %d: it must begin with an "
                "empty directory",
                self.name,
                self.next,
                start,
            )
            self.close()
        elif self.ours and self._told < self._master.confirmed(self.next):
            # At once: if this process dies now, the slave still shows the acknowledged messages.
            self.heartbeat()

    def _may_send(self) -> bool:
        """Whether haFlowControlEnable's rate allows it; `run` looks again a moment later."""
        limit = self._master.bytes_per_s
        if not limit:
            return True
        now = self._master.now()
        self._budget = min(self._budget + (now - self._budget_at) * limit, limit)
        self._budget_at = now
        return self._budget > 0

    def heartbeat(self) -> None:
        if self._transport is None:
            return
        if self.next is None:
            if self.greeted:
                self.hello()  # it waits until this node leads, and says so again
            return
        if self.ours:
            self._told = self._master.confirmed(self.next)
            frame = ha.encode_our_transfer_header(self.next, 0, self._rolled, self._told)
        else:
            frame = ha.encode_transfer_header(self.next, 0)
        self._write(frame)

    def _say(self, kind: ha.Kind, document: dict[str, Any]) -> None:
        self._write(ha.encode_control(kind, document, self._proof.seal))

    def _write(self, *buffers: ha.Buffer) -> None:
        self.last_write = self._master.now()
        self._send(list(buffers))


class HaMaster:
    def __init__(
        self,
        context: Context,
        links: Iterator[int],
        *,
        on_replicated: Callable[[], None],
    ) -> None:
        """`links` numbers the connections of this node."""
        self._c = context
        self._config = context.config
        self._role = context.role
        self._runtime = context.runtime
        self._store = context.store
        self._on_replicated = on_replicated
        self.links = links
        self.tell: Callable[[e.Event], None] = lambda _: None  # the machine of replication
        config = context.config
        self.signing = config.signing
        self.let_in, self.stay_awake = context.let_in, context.stay_awake
        self._batch = min(config.ha_transfer_bytes, ha.BODY_MAX)
        self.bytes_per_s = config.ha_max_bytes_per_s if config.ha_flow_control else 0
        self.waits_for_flush = config.sync_flush
        self.watermarks = context.store.watermarks
        self.connections: list[SlaveConnection] = []
        self._listener: Listener | None = None
        self._slaves_by = 0.0
        self.in_sync_changes = 0  # how often a slave came into the in-sync set, or left it
        self._bound = ""

    def now(self) -> float:
        return self._runtime.monotonic()

    def validate(self) -> None:
        """AssertionError: what a slave is sent, or has, does not fit this log."""
        end, now = self.watermarks.appended, self.now()
        links = [connection.link for connection in self.connections]
        assert len({*links}) == len(links), f"two connections have one number: {links}"
        for connection in self.connections:
            connection.lag.validate(end, now)
            connection.validate()
        assert self.copies_in_sync() >= 1, f"{self.copies_in_sync()} copies are in sync"

    def writer(self, transport: Any) -> Callable[[list[ha.Buffer]], None]:
        return self._runtime.writer(transport, copies=True)

    def soon(self, call: Callable[[], None]) -> None:
        self._runtime.call_soon(call)

    def read(self, offset: int) -> bytes | memoryview | None:
        return self._store.read_log(offset, self._batch)

    def is_recent(self, offset: int) -> bool:
        return self._store.is_recent(offset)

    def read_ahead(self, offset: int, done: Callable[[int, int, OSError | None], None]) -> None:
        """Have a worker read the log from there, and tell `done` how far."""
        c = self._c

        async def read() -> None:
            end, error = offset, None
            try:
                end = await c.cold_reads.run(c.store.cache_log, offset, READ_AHEAD)
            except OSError as problem:
                error = problem
            done(offset, end, error)

        c.runtime.spawn(read(), name="read-for-slave")

    def confirmed(self, sent: int) -> int:
        """The position up to which a slave's consumers may see the log that it has been sent. If an
        acknowledgement waits for no copy, that is all of it."""
        if self.waits_for_flush or self._c.waits_for_copies:
            return self.watermarks.confirmed
        return sent

    @property
    def leads(self) -> bool:
        return self._role.state is State.MASTER

    @property
    def ceiling(self) -> int:
        """No epoch above this one is believed of a slave."""
        return self._role.ceiling

    @property
    def address(self) -> str:
        """The address that it listens on for slaves."""
        return self._bound

    async def start(self) -> None:
        config = self._config
        self._listener = await self._runtime.listen(
            config.host, config.ha_port, lambda: SlaveConnection(self)
        )
        self._bound = self._listener.address
        if self.watermarks.appended > 0:
            self.expect_slaves()

    def expect_slaves(self) -> None:
        """Give slaves time to dial: for a moment their absence means nothing."""
        self._slaves_by = self.now() + self._c.config.slave_timeout_ms / 1000

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        self.drop_slaves()

    def drop_slaves(self) -> None:
        for connection in list(self.connections):
            connection.close()

    def appended(self) -> None:
        for connection in self.connections:
            connection.lag.grew(self.watermarks.appended, self.now())
            connection.push()

    # joining

    def hello(self) -> dict[str, Any]:
        c = self._c
        return {
            **introduce(c),
            "confirmed": self.watermarks.confirmed,
            "segmentBytes": c.store.config.commitlog_segment_bytes,
            "syncFlush": c.config.sync_flush,
            "required": c.role.required,
        }

    def group(self) -> dict[str, Any]:
        """The group, which each member must know: the slaves, and how many copies an
        acknowledgement waits for."""
        role = self._role
        replicas = {str(i): address for i, address in role.replicas.items()}
        return {"required": role.required, "replicas": replicas}

    def _tell_group(self) -> None:
        """Tell all slaves of the group: the one that has joined may not know the others."""
        for connection in self.connections:
            connection.tell_group()

    def announce(self) -> None:
        """Let waiting slaves go on, if they may: this node's role has changed."""
        for connection in list(self.connections):
            if connection.next is None:
                connection.go_on_if_it_may()

    # instructions of the machine about a slave; without effect if its connection is gone

    def _at(self, link: int) -> SlaveConnection | None:
        return next((each for each in self.connections if each.link == link), None)

    def name_of(self, link: int) -> str:
        connection = self._at(link)
        return "" if connection is None else connection.name

    def go_on(self, link: int, offset: int) -> None:
        """Send it the log from this offset on."""
        if (connection := self._at(link)) is not None:
            connection.go_on(offset)
            self._tell_group()

    def count(self, link: int) -> None:
        """Count its reports: this node's file says that it belongs to the group."""
        if (connection := self._at(link)) is not None:
            connection.is_named = True
            self.recount()

    def accept(self, link: int) -> None:
        if (connection := self._at(link)) is not None:
            connection.accept()

    def refuse(self, link: int, why: str, differs: Check | None = None, free_id: int = 0) -> None:
        if (connection := self._at(link)) is not None:
            connection.refuse(why, differs, free_id)

    def left(self, connection: SlaveConnection) -> None:
        if connection.lag.in_sync:
            self.in_sync_changes += 1
            log.warning("slave %s left the in-sync set: it is gone", connection.name)
        self.recount()
        self.tell(e.LinkLost(connection.link))

    # the in-sync set

    def enough_replicas(self) -> bool:
        """Whether a send that waits for replicas can hope to be acknowledged.

        Just after a restart it can: the slaves are dialling.
        """
        needed = self._role.required - 1
        if needed <= 0 or self.now() < self._slaves_by:
            return True
        return self.copies_in_sync() > needed

    def copies_in_sync(self) -> int:
        """The copies that are in sync, this one included."""
        return 1 + sum(connection.lag.in_sync for connection in self.connections)

    def in_sync(self) -> dict[str, int]:
        """The addresses of the slaves that are in sync, and their positions."""
        return {c.name: c.have for c in self._named() if c.lag.in_sync}

    def followers(self) -> frozenset[str]:
        """The addresses of the slaves whose reports count."""
        return frozenset(c.name for c in self._named())

    def had_by(self, addresses: frozenset[str]) -> int:
        """The position that all of these slaves have reported."""
        have = {c.name: c.have for c in self._named()}
        return min((have.get(address, 0) for address in addresses), default=0)

    def _named(self) -> list[SlaveConnection]:
        """Slaves of ours that follow, and that this node's file names."""
        return [c for c in self.connections if c.is_replica and c.is_named and c.join is not None]

    def recount(self) -> None:
        """Advance `replicated` to the position that enough slaves have reported; it never falls."""
        role = self._role
        if self._c.steps.is_resting:
            return  # a thread cuts the log: what was reported may be of what goes
        replicas = [c for c in self.connections if c.is_replica]
        for connection in replicas:
            if not connection.lag.in_sync:
                self._look(connection)
        if self._c.witnesses():
            self._on_replicated()
        needed = role.required - 1
        if needed <= 0 or role.state not in (State.MASTER, State.FENCED):
            return  # a fenced master counts on: sends that wait may still be acknowledged
        counting = [c for c in replicas if c.is_named and self._counts(c)]
        if self._config.all_ack:
            needed = max(needed, sum(c.lag.in_sync for c in counting))
        have = sorted((c.have for c in counting), reverse=True)
        if len(have) >= needed:
            position = min(have[needed - 1], self.watermarks.appended)
            self.watermarks.replicated = PhysicalOffset(position)
            self._on_replicated()

    def _counts(self, connection: SlaveConnection) -> bool:
        """Whether a slave's reports count. A slave of RocketMQ's is no member that could be
        asked."""
        return connection.join is None or self._c.counts(connection.join.address)

    def _look(self, connection: SlaveConnection) -> None:
        """Take a slave into the in-sync set, or out of it."""
        config, end, now = self._config, self.watermarks.appended, self.now()
        lag, max_s = connection.lag, config.ha_max_lag_ms / 1000
        before = lag.in_sync
        if lag.judge(end, now, config.ha_max_gap_bytes, max_s):
            log.warning(
                "slave %s left the in-sync set: %d bytes and %.1f s behind; the limits are %d "
                "(haMaxGapNotInSync) and %.1f s (haMaxTimeSlaveNotCatchup)",
                connection.name,
                lag.size(end),
                lag.seconds(end, now),
                config.ha_max_gap_bytes,
                max_s,
            )
        self.in_sync_changes += before != lag.in_sync

    async def run(self) -> None:
        """Send heartbeats to idle slaves, close silent ones, and update the in-sync set."""
        config = self._config
        pause = 0.02 if self.bytes_per_s else min(config.ha_heartbeat_s, 1.0)
        rates: dict[SlaveConnection, int] = {}
        measured = self.now()
        while True:
            await self._runtime.sleep(pause)
            now = self.now()
            for connection in list(self.connections):
                if now - connection.heard_at() > config.ha_idle_ms / 1000:
                    log.warning("slave %s is silent, closing", connection.name)
                    connection.close()
                    continue
                connection.push()
                if connection.is_replica:
                    self._look(connection)
                if now - connection.last_write >= config.ha_heartbeat_s:
                    connection.heartbeat()
            if now - measured >= 1.0:
                for connection in self.connections:
                    sent = connection.sent_bytes - rates.get(connection, 0)
                    connection.sent_per_s = round(sent / (now - measured))
                rates = {c: c.sent_bytes for c in self.connections}
                measured = now
            self.recount()

    def status(self) -> dict[str, Any]:
        """The body of GET_BROKER_HA_STATUS 907."""
        replicas = [c for c in self.connections if c.is_replica]
        return {
            "haConnectionInfo": [
                {
                    "addr": c.name,
                    "slaveAckOffset": c.reported.appended,
                    "diff": c.lag.size(self.watermarks.appended),
                    "inSync": c.lag.in_sync,
                    "transferredByteInSecond": c.sent_per_s,
                    "transferFromWhere": c.next or 0,
                }
                for c in replicas
            ],
            "inSyncSlaveNums": self.copies_in_sync() - 1,
            "master": True,
            "masterCommitLogMaxOffset": self.watermarks.appended,
            "haClientRuntimeInfo": {
                "lastReadTimestamp": 0,
                "lastWriteTimestamp": 0,
                "masterFlushOffset": 0,
                "maxOffset": 0,
                "transferredByteInSecond": 0,
            },
        }
