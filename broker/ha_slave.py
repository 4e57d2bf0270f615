"""The slave's side of replication: its log's single writer is the master's byte stream.

It connects to the master's HA address (from the nameserver's answer to its registration, or
`haMasterAddress`), reports the end of its log at once, and appends what it gets. Every transfer and
every heartbeat, must start where its log ends; anything else closes the connection, which is tried
again. A report follows every append; with SYNC_FLUSH it follows the flush instead and says only
what is flushed. The master's tables (topics, groups, offsets, delays) are copied every 10 s;
offsets only rise.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Awaitable, Callable
from typing import Any

from saturnmq.broker.context import Context
from saturnmq.protocol import jsonx
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.errors import SaturnError, error_for
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.runtime import split_address

log = logging.getLogger(__name__)

HEADER = struct.Struct(">qi")
REPORT = struct.Struct(">q")
TRANSFER_MAX = 64 << 20  # a size above this is not a transfer but damage
BUFFER = 2 << 20


class MasterConnection(asyncio.BufferedProtocol):
    def __init__(self, slave: HaSlave, closed: asyncio.Event) -> None:
        self._slave = slave
        self._closed = closed
        self._view = memoryview(bytearray(BUFFER))
        self._start = self._end = 0
        self._transport: Any = None
        self.last_read = slave.now()
        self.last_write = 0.0
        self.reported = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, exc: BaseException | None) -> None:
        self._transport = None
        self._closed.set()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
        self._closed.set()

    def report(self, offset: int) -> None:
        if self._transport is not None:
            self.reported = offset
            self.last_write = self._slave.now()
            self._transport.write(REPORT.pack(offset))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        self.last_read = self._slave.now()
        needed = 0
        while self._end - self._start >= HEADER.size:
            offset, size = HEADER.unpack_from(self._view, self._start)
            if not 0 <= size <= TRANSFER_MAX:
                log.error("the master sent a transfer of %d bytes: closing", size)
                self.close()
                return
            if not self._slave.fits(offset, size):
                self.close()
                return
            needed = HEADER.size + size
            if self._end - self._start < needed:
                break
            body = self._start + HEADER.size
            self._start += needed
            needed = 0
            if size:
                try:
                    self._slave.append(offset, self._view[body : body + size])
                except SaturnError as error:
                    log.error("cannot append what the master sent: %s", error)
                    self.close()
                    return
        self._make_room(needed)
        self._slave.received(self)

    def _make_room(self, needed: int) -> None:
        rest = self._end - self._start
        if needed > len(self._view):
            fresh = memoryview(bytearray(needed))
            fresh[:rest] = self._view[self._start : self._end]
            self._view = fresh
        elif self._start:
            self._view[:rest] = self._view[self._start : self._end]
        self._start, self._end = 0, rest


class HaSlave:
    def __init__(
        self,
        context: Context,
        *,
        flush: Callable[[], Awaitable[None]],
        on_append: Callable[[], None],
        load_delay: Callable[[dict[str, Any]], None],
    ) -> None:
        self._c = context
        self._flush = flush
        self._on_append = on_append
        self._load_delay = load_delay
        self.master_address = ""
        self.ha_address = context.config.ha_master_address
        self._known = asyncio.Event()
        if self.ha_address:
            self._known.set()
        self._connection: MasterConnection | None = None
        self._endpoint: Endpoint | None = None

    def now(self) -> float:
        return self._c.runtime.monotonic()

    def master_is(self, address: str, ha_address: str) -> None:
        """What a nameserver says; a configured HA address is final."""
        if address:
            self.master_address = address
        if not self._c.config.ha_master_address:
            self.ha_address = ha_address
        self._known.set()

    # the log

    def fits(self, offset: int, size: int) -> bool:
        end = self._c.store.watermarks.appended
        if offset == end or (end == 0 and size >= 0):
            return True
        log.error("the master's data starts at %d, this log ends at %d: closing", offset, end)
        return False

    def append(self, offset: int, data: memoryview) -> None:
        self._c.store.append_raw(offset, data)

    def received(self, connection: MasterConnection) -> None:
        self._on_append()
        if not self._c.config.sync_flush:
            self._report(connection)

    def flushed(self) -> None:
        if self._c.config.sync_flush and self._connection is not None:
            self._report(self._connection)

    def _report(self, connection: MasterConnection) -> None:
        marks = self._c.store.watermarks
        position = marks.flushed if self._c.config.sync_flush else marks.appended
        if position > connection.reported and connection.reported >= 0:
            connection.report(position)

    async def run(self) -> None:
        c = self._c
        trouble = ""
        while True:
            await self._known.wait()
            try:
                await self._follow()
                trouble = ""
            except (SaturnError, OSError) as error:
                if str(error) != trouble:  # it may stay away for hours
                    trouble = str(error)
                    log.info("cannot follow %s: %s", self.ha_address, error)
            await c.runtime.sleep(c.config.ha_reconnect_ms / 1000)

    async def _follow(self) -> None:
        """One connection, from the first report to its end."""
        c = self._c
        closed = asyncio.Event()
        connection = MasterConnection(self, closed)
        host, port = split_address(self.ha_address)
        await c.runtime.connect(host, port, connection)
        # The first report decides where the master goes on, so it is the end of the log in any
        # mode; a SYNC_FLUSH slave flushes first, because a report also acknowledges.
        if c.config.sync_flush:
            await self._flush()
        self._connection = connection
        connection.report(c.store.watermarks.appended)
        log.info("following %s from %d", self.ha_address, c.store.watermarks.appended)
        heartbeat = c.config.ha_heartbeat_ms / 1000
        while not closed.is_set():
            try:
                async with asyncio.timeout(min(heartbeat, 1.0)):
                    await closed.wait()
            except TimeoutError:
                pass
            now = self.now()
            if now - connection.last_read > c.config.ha_idle_ms / 1000:
                log.warning("the master is silent, closing")
                connection.close()
            elif now - connection.last_write >= heartbeat:
                marks = c.store.watermarks
                connection.report(marks.flushed if c.config.sync_flush else marks.appended)
        self._connection = None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._endpoint is not None:
            self._endpoint.close()

    # the tables

    async def run_sync(self) -> None:
        while True:
            if self.master_address:
                try:
                    await self.sync_tables()
                except (SaturnError, OSError) as error:
                    log.info("tables of the master not copied: %s", error)
                await self._c.runtime.sleep(self._c.config.slave_sync_ms / 1000)
            else:
                await self._c.runtime.sleep(0.5)

    async def sync_tables(self) -> None:
        c = self._c
        if self._endpoint is None or self._endpoint.closed:
            self._endpoint = Endpoint(c.runtime, None)
            host, port = split_address(self.master_address)
            await c.runtime.connect(host, port, self._endpoint)
        c.topics.replace_all(await self._ask(RequestCode.GET_ALL_TOPIC_CONFIG))
        c.groups.replace_all(await self._ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
        c.offsets.merge(await self._ask(RequestCode.GET_ALL_CONSUMER_OFFSET))
        self._load_delay(await self._ask(RequestCode.GET_ALL_DELAY_OFFSET))

    async def _ask(self, code: int) -> dict[str, Any]:
        assert self._endpoint is not None
        reply = await self._endpoint.request(Command.request(code), 5.0)
        if reply.code:
            raise error_for(reply.code, reply.remark)
        if not reply.body:
            return {}
        document = jsonx.loads(bytes(reply.body))
        return document if isinstance(document, dict) else {}

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
                "maxOffset": self._c.store.watermarks.appended,
                "transferredByteInSecond": 0,
            },
        }
