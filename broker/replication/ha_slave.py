"""The slave's side of replication: its log's single writer is the master's byte stream.

It connects to the master's HA address (from the nameserver's answer to its registration, or
`haMasterAddress`) and reports the end of its log at once. Every transfer and every heartbeat must
start where its log ends; anything else closes the connection, which is tried again.

A Java master sends from there (`protocol/ha.py`, classic). A master of ours says HELLO. The machine
of replication (`replication/machine.py`) decides whether to follow it, and from which offset:

- A master of another group learns nothing, unless its log is empty: its disk may be new. A master
  of a lower epoch than this node has promised to serve is not followed.
- If this log goes beyond the common prefix, a JOIN asks first whether both logs are equal before
  that place. The log is cut there when the master has compared checksums.
- A log that has lost a front that the master has is cut as a whole, in the same way: a log grows at
  its end only, and is copied back from its beginning.
- JOIN names the offset to go on at, with a checksum over the log before; the master refuses a log
  that differs.

The slave writes the master's epochs down before the bytes of those epochs.

A report follows every append and every flush: the appended and the flushed position. To a Java
master it is one number, which with SYNC_FLUSH is the flushed position.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Protocol

from saturnmq.broker.context import Context
from saturnmq.broker.replication import events as e
from saturnmq.broker.replication.introductions import (
    Hello,
    introduce,
    read_group,
    read_hello,
    read_refusal,
)
from saturnmq.broker.replication.joining import CHECK_BYTES
from saturnmq.broker.replication.log_checksum import tail_checksum
from saturnmq.broker.replication.mending import Mending
from saturnmq.broker.replication.role import State
from saturnmq.broker.replication.sealing import SealOfSlave
from saturnmq.protocol import ha
from saturnmq.runtime.door import split_address
from saturnmq.runtime.errors import NoPermission, SaturnError, StoreDamaged
from saturnmq.runtime.turns import Turns
from saturnmq.store.log.epochs import Epoch

log = logging.getLogger(__name__)

BUFFER = 2 << 20
REFUSED_S = 1.0  # a master that does not take this node is not asked again at once
LOOK_S = 1.0  # between two questions for the master, while it cannot be followed


class Follower(Protocol):
    """The owner of a connection to a master, and of the log that its bytes go to."""

    def now(self) -> float: ...

    def greeted(self, connection: MasterConnection, hello: Hello) -> None: ...

    def accepted(self, connection: MasterConnection) -> None: ...

    def apply_group_info(self, group: dict[str, Any]) -> None: ...

    def append(self, transfer: ha.Transfer) -> None: ...

    def received(self, connection: MasterConnection) -> None: ...


class MasterConnection(asyncio.BufferedProtocol):
    """The stream of one master, in its dialect."""

    def __init__(self, follower: Follower, context: Context, link: int = 0) -> None:
        """`link` is its number, for the machine of replication."""
        self._follower = follower
        self._turns = Turns(context.runtime)
        self._c = context
        self._proof = SealOfSlave(context.config.signing, context.let_in)
        self.link = link
        self._inbox = ha.Inbox(BUFFER)
        self._room = 0  # of the buffer that the socket fills
        self._transport: Any = None
        self.closed = asyncio.Event()
        self.ours: bool | None = None
        self.joined = False
        self.refused = ""  # why it is not followed: its own words, or what is wrong with them
        self.differs: tuple[int, int] | None = None  # where its log is sound and this one differs
        self.free_id = 0  # another slave has the id of this one
        self.confirmed = -1
        self._rolled = 0
        self.last_read = follower.now()
        self.last_write = 0.0
        self.reported = ha.SlaveReport(-1)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._send = self._c.runtime.writer(self._transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._end()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
        self._end()

    def _end(self) -> None:
        self._transport = None
        self.closed.set()

    # to the master

    def greet(self, end: int) -> None:
        self.reported = ha.SlaveReport(end)
        self._write(ha.encode_greeting(end))

    def join(self, document: dict[str, Any]) -> None:
        self.joined = "from" in document and "asks" not in document
        self._write(ha.encode_control(ha.Kind.JOIN, document, self._proof.seal))

    def report(self, report: ha.SlaveReport) -> None:
        if self.ours and self.joined:
            self._write(ha.encode_our_report(*report))
        elif self.ours is False:
            self._write(ha.encode_report(report.appended))
        else:
            return
        self.reported = report

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self.last_write = self._follower.now()
            self._send([data])

    # from the master

    def get_buffer(self, sizehint: int) -> memoryview:
        free = self._inbox.free()
        self._room = len(free)
        return free

    def buffer_updated(self, nbytes: int) -> None:
        is_full = nbytes == self._room
        if is_full:
            self._turns.is_over()  # its time begins before the work does
        self._inbox.filled(nbytes)
        self.last_read = self._follower.now()
        try:
            self._read_all()
        except NoPermission as error:
            self.refused = self.refused or str(error)
            self.close()
            return
        except (SaturnError, OSError, KeyError, TypeError, ValueError) as error:
            self.refused = self.refused or f"what it sent cannot be taken: {error}"
            self.close()
            return
        if self._transport is not None:
            self._inbox.make_room()
            self._follower.received(self)
        if is_full and self._transport is not None and self._turns.is_over():
            self._transport.pause_reading()  # it would be read again in this turn
            self._turns.wait(self._read_on)

    def _read_on(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def _read_all(self) -> None:
        if self.ours is None:
            self.ours = self._inbox.is_ours()
            if self.ours is False:
                self._proof.check_classic()
        while self._transport is not None and self.ours is not None:
            frame = self._inbox.next_of_master() if self.ours else self._inbox.next_transfer()
            if frame is None:
                return
            if isinstance(frame, ha.Control):
                self._control(frame)
            else:
                self._transfer(frame)

    def _control(self, frame: ha.Control) -> None:
        if (proof := self._proof.prove(frame)) is not None:
            self._write(proof)
            return
        if frame.kind is ha.Kind.REFUSE:
            self.refused = str(frame.document.get("why"))  # these words are a stranger's, too
        if not self._proof.counts(frame):
            return
        if frame.kind is ha.Kind.HELLO:  # also a second one: it could not take the JOIN before
            self.joined = False
            self._follower.greeted(self, read_hello(frame.document, self._c.role.ceiling))
        elif frame.kind is ha.Kind.ACCEPT:
            self._follower.accepted(self)
        elif frame.kind is ha.Kind.GROUP:
            self._follower.apply_group_info(frame.document)
        elif frame.kind is ha.Kind.REFUSE:
            self.free_id, self.differs = read_refusal(frame.document)
            self.close()

    def _transfer(self, frame: ha.Transfer) -> None:
        if self.ours:
            if not self.joined:
                raise StoreDamaged("the master sends its log before this node has joined")
            if len(frame.data):
                self._rolled = ha.roll(self._rolled, frame.data)
            if self._rolled != frame.rolled:
                raise StoreDamaged(
                    f"the checksum over all that was transferred is {self._rolled:08x} at "
                    f"{frame.offset}, the master says {frame.rolled:08x}"
                )
            self.confirmed = frame.confirmed
        self._follower.append(frame)


class HaSlave:
    """Follows the master while this node is a slave."""

    def __init__(
        self,
        context: Context,
        links: Iterator[int],
        *,
        flush: Callable[[], Awaitable[None]],
        flush_at_once: Callable[[], None],
        on_append: Callable[[], None],
        on_join: Callable[[], None],
        on_no_master: Callable[[], None],
        mending: Mending,
    ) -> None:
        """`links` numbers the connections of this node. `on_no_master` is called when the node
        that it dialled does not lead."""
        self._c = context
        self._config = context.config
        self._epochs = context.epochs
        self._role = context.role
        self._store = context.store
        self._links = links
        self._flush = flush
        self._flush_at_once = flush_at_once
        self._on_append = on_append
        self._on_join = on_join
        self.tell: Callable[[e.Event], None] = lambda _: None  # the machine of replication
        self._mending = mending
        self._on_no_master = on_no_master
        self.master_address = ""
        self.ha_address = context.config.ha_master_address
        self.refused = ""  # why the master does not take this node
        self._waits = ""  # why it waits: the dialled node does not lead
        self._coming: list[Epoch] = []  # the master's epochs that this log has not reached
        self._target = 0  # the confirmed position when it joined
        self.knows_confirmed = False  # a master of ours has said since the start
        self._hello: Hello  # the newest
        self._wake = asyncio.Event()
        self._connection: MasterConnection | None = None
        self._looked = float("-inf")

    def now(self) -> float:
        return self._c.runtime.monotonic()

    def master_is(self, address: str, ha_address: str) -> None:
        """Take the master's addresses from a nameserver or another node. A configured HA address is
        final, unless a promotion has changed the group."""
        if address == self._c.address:
            return
        self.master_address = address or self.master_address
        final = self._config.ha_master_address and not self._role.decided
        if not final and ha_address and ha_address != self.ha_address:
            self.ha_address = ha_address
            self.drop()
        self._wake.set()

    def hears_master(self, within_s: float) -> bool:
        """Whether a leading master has sent anything lately."""
        connection = self._connection
        if connection is None or connection.closed.is_set() or not connection.joined:
            return False
        return self.now() - connection.last_read < within_s

    def drop(self) -> None:
        """End the present connection; `run` dials again if this node still is a slave."""
        if self._connection is not None:
            self._connection.close()
        self._wake.set()

    # the log

    def append(self, transfer: ha.Transfer) -> None:
        store = self._store
        offset, data = transfer.offset, transfer.data
        end = store.watermarks.appended
        if end not in (offset, 0):
            raise StoreDamaged(f"its data starts at {offset}, this log ends at {end}")
        if not len(data):
            return
        while self._coming and self._coming[0].start <= offset + len(data):
            self._epochs.open(*self._coming[0])
            self.tell(e.EpochBegan(self._coming.pop(0).number))
        store.append_raw(offset, data)
        end = store.watermarks.appended
        assert end == offset + len(data), f"{len(data)} bytes at {offset} end at {end}"

    def received(self, connection: MasterConnection) -> None:
        self._c.stay_awake()
        if connection.ours and connection.confirmed >= 0:
            self.refused = ""
            self._c.master_confirmed = connection.confirmed
            self.knows_confirmed = True
            end = self._store.watermarks.appended
            if not self._role.caught_up and end >= max(self._target, connection.confirmed):
                self.tell(e.Reached(connection.link))
        elif connection.ours is False:
            self._c.master_confirmed = None
        self._report()  # first: a sender may wait for it
        self._on_append()

    def flushed(self) -> None:
        self._report()

    def _report(self, *, beat: bool = False) -> None:
        connection = self._connection
        if connection is None:
            return
        marks = self._store.watermarks
        assert marks.flushed <= marks.appended, (marks.flushed, marks.appended)
        if connection.ours:
            report = ha.SlaveReport(marks.appended, marks.flushed)
        elif self._config.sync_flush:
            report = ha.SlaveReport(max(marks.flushed, connection.reported.appended))
        else:
            report = ha.SlaveReport(marks.appended)
        if report != connection.reported or beat:
            connection.report(report)

    def apply_group_info(self, group: dict[str, Any]) -> None:
        """Take the group's members and the copies that an acknowledgement waits for."""
        self.tell(e.GroupTold(*read_group(group)))

    # joining a master of ours

    @property
    def trouble(self) -> str:
        """Why this slave follows no master; empty if it does, or dials."""
        return self.refused or self._waits

    def greeted(self, connection: MasterConnection, hello: Hello) -> None:
        self._hello = hello
        leads = hello.state == "master"
        self._waits = "" if leads else self._does_not_lead(hello)
        self.tell(e.Greeted(connection.link, hello, self._c.refuses_group(hello.identity)))

    def _does_not_lead(self, hello: Hello) -> str:
        who = "this node itself" if hello.address == self._c.address else f"{hello.state} now"
        config = self._config.ha_master_address
        named = "; haMasterAddress names it: look whether that is right" if config else ""
        return f"{self.ha_address} does not lead, it is {who}{named}"

    def accepted(self, connection: MasterConnection) -> None:
        self.tell(e.Accepted(connection.link))

    def give_up(self, link: int, why: str) -> None:
        """Close the connection: this master cannot be followed."""
        if why != self.refused:
            log.error("cannot follow %s: %s", self.ha_address, why)
        self.refused = why
        if (connection := self._at(link)) is not None:
            connection.close()

    def _at(self, link: int) -> MasterConnection | None:
        """The connection of this number, if it still is there."""
        connection = self._connection
        return connection if connection is not None and connection.link == link else None

    def say_join(self, link: int, fields: dict[str, Any], at: int) -> None:
        """Send JOIN with these fields, and with the place where the log goes on. With a place
        alone, the master's bytes are taken from now on."""
        c, connection = self._c, self._at(link)
        if connection is None or connection.closed.is_set():
            return
        document = introduce(c) | fields
        if at >= 0:
            try:
                document |= self._place(at)
            except (SaturnError, OSError) as error:
                self.give_up(link, str(error))
                return
        connection.join(document)
        if at >= 0 and not fields:
            self._go_on(at)

    def _place(self, offset: int) -> dict[str, Any]:
        """The fields of JOIN for an offset to go on at: the offset, and a checksum of the log
        before it."""
        marks, hello = self._store.watermarks, self._hello
        first = min(max(marks.start, hello.start, offset - CHECK_BYTES), offset)
        if not marks.appended:
            first = offset
        return {"from": offset, "check": [first, offset, tail_checksum(self._c, first, offset)]}

    def _go_on(self, offset: int) -> None:
        hello = self._hello
        self._coming = [each for each in hello.epochs if each.number > self._epochs.last]
        self._target = hello.settled
        if hello.sync_flush:
            self._flush_at_once()
        self.master_address = hello.address
        log.info("following %s (epoch %s) from %d", self.ha_address, hello.epoch, offset)
        self._on_join()
        self._report(beat=True)

    # the loop

    async def run(self) -> None:
        c = self._c
        trouble = ""
        while True:
            if c.role.state is not State.SLAVE or not self.ha_address:
                await self._wake.wait()
                self._wake.clear()
                continue
            try:
                await self._follow()
                trouble = ""
            except (SaturnError, OSError) as error:
                if str(error) != trouble:  # it may stay away for hours
                    trouble = str(error)
                    log.info("cannot follow %s: %s", self.ha_address, error)
            # Another node may lead by now. To hear of it only with the next registration would keep
            # senders that need this copy waiting.
            if self.now() - self._looked >= LOOK_S:
                self._looked = self.now()
                self._on_no_master()
            pause = c.config.ha_reconnect_ms / 1000
            await c.runtime.sleep(max(pause, REFUSED_S) if self.refused else pause)

    async def _follow(self) -> None:
        """Serve one connection, from the first report to its end."""
        c = self._c
        connection = MasterConnection(self, c, next(self._links))
        dialled = self.ha_address
        await c.runtime.connect(*split_address(dialled), connection)
        # To a Java master the first report decides where it goes on, so it is the end of the log
        # in any mode; a SYNC_FLUSH slave flushes first, because a report also acknowledges.
        if c.config.sync_flush:
            await self._flush()
        if c.role.state is not State.SLAVE or self.ha_address != dialled:
            connection.close()  # `drop` did not know of this connection
            return
        self._connection = connection
        connection.greet(c.store.watermarks.appended)
        heartbeat = c.config.ha_heartbeat_ms / 1000
        try:
            while not connection.closed.is_set():
                try:
                    async with asyncio.timeout(min(heartbeat, 1.0)):
                        await connection.closed.wait()
                except TimeoutError:
                    pass
                now = self.now()
                if now - connection.last_read > c.config.ha_idle_ms / 1000:
                    log.warning("the master is silent, closing")
                    connection.close()
                elif now - connection.last_write >= heartbeat:
                    self._report(beat=True)
        finally:
            connection.close()
            self._connection, self._waits = None, ""
            self.tell(e.LinkLost(connection.link))
        if why := connection.refused:
            if not connection.free_id:
                why += await self._mending.answer(connection.differs, self.master_address)
            self.tell(e.Refused(connection.link, why, connection.free_id))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def status(self) -> dict[str, Any]:
        """The body of GET_BROKER_HA_STATUS 907."""
        return {
            "haConnectionInfo": [],
            "inSyncSlaveNums": 0,
            "master": False,
            "masterCommitLogMaxOffset": 0,
            "haClientRuntimeInfo": {
                "masterAddr": self.ha_address,
                "lastReadTimestamp": 0,
                "lastWriteTimestamp": 0,
                "masterFlushOffset": 0,
                "maxOffset": self._store.watermarks.appended,
                "transferredByteInSecond": 0,
            },
        }
