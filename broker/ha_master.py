"""The master's side of replication: sends the log to slaves, counts what they have.

RocketMQ's classic protocol, one TCP connection per slave (remoting §5.1):

| direction | bytes |
|---|---|
| slave -> master, report | i64 the slave's end of log |
| master -> slave, transfer | i64 offset of the first byte, i32 size, then raw CommitLog bytes |
| master -> slave, heartbeat | the same with size 0 and the offset of the next byte to send |

Nothing is sent before the first report, which says where to start; 0 starts at the log's beginning
(a Java master would start at its last segment; a Java slave accepts either). A transfer never
crosses a segment's end. An offset outside the log closes the connection and is logged: a Java
master would send heartbeats for ever.

`replicated` = the offset that `in_sync_replicas` - 1 slaves have reported. A slave of ours with
SYNC_FLUSH reports only what it has flushed, so that sync x sync means flushed on both.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable
from typing import Any

from saturnmq.broker.context import Context
from saturnmq.protocol.runtime import Listener

log = logging.getLogger(__name__)

REPORT = struct.Struct(">q")
HEADER = struct.Struct(">qi")
UNSENT_MAX = 4 << 20  # bytes in the transport before sending pauses


class SlaveConnection(asyncio.BufferedProtocol):
    """One slave. Sends as fast as the socket takes it, from the position the slave asked for."""

    def __init__(self, master: HaMaster) -> None:
        self._master = master
        self._view = memoryview(bytearray(8 * 1024))
        self._filled = 0
        self._transport: Any = None
        self.address = ""
        self.next: int | None = None  # first byte not sent yet; None before the first report
        self.reported = -1
        self.last_read = self.last_write = 0.0
        self.sent_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self.last_read = self.last_write = self._master.now()
        peer = transport.get_extra_info("peername")
        self.address = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer)
        self._master.connections.append(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._transport = None
        if self in self._master.connections:
            self._master.connections.remove(self)
        log.info("slave %s is gone (%s)", self.address, exc or "closed")
        self._master.recount()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        whole = self._filled - self._filled % 8
        if not whole:
            return
        (report,) = REPORT.unpack_from(self._view, whole - 8)
        rest = self._filled - whole
        self._view[:rest] = self._view[whole : self._filled]
        self._filled = rest
        self.last_read = self._master.now()
        self._reported(report)

    def _reported(self, report: int) -> None:
        if self.next is None:
            marks = self._master.watermarks
            start = marks.start if report == 0 else report
            if not marks.start <= start <= marks.appended:
                log.error(
                    "slave %s asks for offset %d, the log has %d to %d: closing. Its log is not a "
                    "prefix of this one; wipe its store to start it anew",
                    self.address,
                    report,
                    marks.start,
                    marks.appended,
                )
                self.close()
                return
            self.next = start
            log.info("slave %s joins at offset %d", self.address, start)
        if report > self.reported:
            self.reported = report
            self._master.recount()
        self.push()

    def resume_writing(self) -> None:
        self.push()

    def push(self) -> None:
        """Send what there is until the transport has enough."""
        if self.next is None or self._transport is None:
            return
        while self._transport.get_write_buffer_size() < UNSENT_MAX:
            data = self._master.read(self.next)
            if data is None or not len(data):
                start = self._master.watermarks.start
                if self.next < start:
                    log.error(
                        "slave %s wants the log from %d, deleted up to %d: it must begin with an "
                        "empty directory",
                        self.address,
                        self.next,
                        start,
                    )
                    self.close()
                return
            self._write(HEADER.pack(self.next, len(data)) + data)
            self.next += len(data)
            self.sent_bytes += len(data)
            if self._transport is None:
                return

    def heartbeat(self) -> None:
        if self.next is not None:
            self._write(HEADER.pack(self.next, 0))

    def _write(self, data: bytes) -> None:
        self.last_write = self._master.now()
        self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class HaMaster:
    def __init__(self, context: Context, on_replicated: Callable[[], None]) -> None:
        self._c = context
        self._on_replicated = on_replicated
        self._batch = context.config.ha_transfer_bytes
        self.watermarks = context.store.watermarks
        self.connections: list[SlaveConnection] = []
        self._listener: Listener | None = None
        self._slaves_by = 0.0
        self.address = ""

    def now(self) -> float:
        return self._c.runtime.monotonic()

    def read(self, offset: int) -> bytes | memoryview | None:
        return self._c.store.read_log(offset, self._batch)

    async def start(self) -> None:
        config = self._c.config
        self._listener = await self._c.runtime.listen(
            config.host, config.ha_port, lambda: SlaveConnection(self)
        )
        self.address = self._listener.address
        if self.watermarks.appended > 0:
            self._slaves_by = self.now() + config.slave_timeout_ms / 1000

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        for connection in list(self.connections):
            connection.close()

    def appended(self) -> None:
        for connection in self.connections:
            connection.push()

    def in_sync(self, connection: SlaveConnection) -> bool:
        gap = self.watermarks.appended - connection.reported
        return connection.next is not None and gap < self._c.config.ha_max_gap_bytes

    def enough_replicas(self) -> bool:
        """Whether a send that waits for replicas can hope to be acknowledged.

        Just after a restart it can: the slaves are dialling.
        """
        needed = self._c.config.replicas_required - 1
        if needed <= 0 or self.now() < self._slaves_by:
            return True
        return sum(map(self.in_sync, self.connections)) >= needed

    def recount(self) -> None:
        """What enough slaves have reported is `replicated`; it never falls."""
        needed = self._c.config.replicas_required - 1
        reports = sorted((c.reported for c in self.connections), reverse=True)
        if needed > 0 and len(reports) >= needed:
            self.watermarks.replicated = min(reports[needed - 1], self.watermarks.appended)
            self._on_replicated()

    async def run(self) -> None:
        """Heartbeats to idle slaves, and an end to silent ones."""
        config = self._c.config
        while True:
            await self._c.runtime.sleep(min(config.ha_heartbeat_ms / 1000, 1.0))
            now = self.now()
            for connection in list(self.connections):
                if now - connection.last_read > config.ha_idle_ms / 1000:
                    log.warning("slave %s is silent, closing", connection.address)
                    connection.close()
                    continue
                connection.push()
                if now - connection.last_write >= config.ha_heartbeat_ms / 1000:
                    connection.heartbeat()

    def status(self) -> dict[str, Any]:
        """The body of GET_BROKER_HA_STATUS 907."""
        end = self.watermarks.appended
        return {
            "haConnectionInfo": [
                {
                    "addr": c.address,
                    "slaveAckOffset": c.reported,
                    "diff": end - c.reported,
                    "inSync": self.in_sync(c),
                    "transferredByteInSecond": 0,
                    "transferFromWhere": c.next or 0,
                }
                for c in self.connections
            ],
            "inSyncSlaveNums": sum(map(self.in_sync, self.connections)),
            "master": True,
            "masterCommitLogMaxOffset": end,
            "haClientRuntimeInfo": {
                "lastReadTimestamp": 0,
                "lastWriteTimestamp": 0,
                "masterFlushOffset": 0,
                "maxOffset": 0,
                "transferredByteInSecond": 0,
            },
        }
