"""Copies back the end of a log, or all of it, from a slave that has more than its master.

The slave serves the log as a master would (`ha_master.py`): the joining master sends `tail`, and a
checksum of its log before the offset to go on at. An empty log begins where the slave's does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from saturnmq.broker.context import Context
from saturnmq.broker.replication.ha_slave import MasterConnection
from saturnmq.broker.replication.identity import known
from saturnmq.broker.replication.introductions import Hello, MemberState, introduce
from saturnmq.broker.replication.joining import CHECK_BYTES
from saturnmq.broker.replication.kinship import is_foreign
from saturnmq.broker.replication.log_checksum import tail_checksum
from saturnmq.protocol import ha
from saturnmq.runtime.door import split_address
from saturnmq.runtime.errors import ConnectionLost, RequestTimeout, StoreDamaged

log = logging.getLogger(__name__)

IDLE_S = 10.0
TELL_S = 5.0


class TailCopy:
    """One copy of a log's end, or of all of it."""

    def __init__(self, context: Context, wake: Callable[[], None]) -> None:
        self._c = context
        self._store = context.store
        self._wake = wake
        self._connection: MasterConnection | None = None
        self._closed = False

    def close(self) -> None:
        """End the copy: `run` fails."""
        self._closed = True
        if self._connection is not None:
            self._connection.close()

    @property
    def differs(self) -> tuple[int, int] | None:
        """A part where the logs differ and the slave's is sound: this one is damaged there."""
        return None if self._connection is None else self._connection.differs

    async def run(self, member: MemberState) -> None:
        """Copy until this log ends where that of `member` did; a SaturnError or OSError says why it
        does not."""
        c, ha_address = self._c, member.ha_address
        connection = self._connection = MasterConnection(self, c)
        host, port = split_address(ha_address)
        await c.runtime.connect(host, port, connection)
        told = self.now()
        try:
            if self._closed:
                raise ConnectionLost("it is not wanted any more")
            connection.greet(c.store.watermarks.appended)
            while (at := c.store.watermarks.appended) < member.end:
                if self.now() - told >= TELL_S:
                    told = self.now()
                    log.info("copied back to %d of %d MB", at >> 20, member.end >> 20)
                try:
                    async with asyncio.timeout(0.05):
                        await connection.closed.wait()
                except TimeoutError:
                    if self.now() - connection.last_read > IDLE_S:
                        raise RequestTimeout(f"{ha_address} is silent") from None
                    continue
                raise StoreDamaged(connection.refused or f"{ha_address} closed the connection")
        finally:
            connection.close()

    def now(self) -> float:
        return self._c.runtime.monotonic()

    def greeted(self, connection: MasterConnection, hello: Hello) -> None:
        c = self._c
        marks = c.store.watermarks
        offset = marks.appended or hello.start
        if hello.name != c.config.broker_name or is_foreign(known(c), hello.group):
            raise StoreDamaged(f"its log is of {hello.name} {hello.identity}")
        if hello.start > offset:
            raise StoreDamaged(f"its log starts at {hello.start}, this one ends at {offset}")
        first = min(max(marks.start, hello.start, offset - CHECK_BYTES), offset)
        if not marks.appended:
            first = offset
        connection.join(
            {
                **introduce(c),
                "tail": True,
                "from": offset,
                "check": [first, offset, tail_checksum(c, first, offset)],
            }
        )

    def apply_group_info(self, group: dict[str, Any]) -> None:
        """Ignored: only a master reports its group."""

    def accepted(self, connection: MasterConnection) -> None:
        """Ignored: only a slave asks."""

    def append(self, transfer: ha.Transfer) -> None:
        end = self._store.watermarks.appended
        if end not in (transfer.offset, 0):
            raise StoreDamaged(f"its data starts at {transfer.offset}, this log ends at {end}")
        if len(transfer.data):
            self._store.append_raw(transfer.offset, transfer.data)

    def received(self, connection: MasterConnection) -> None:
        self._wake()
