"""Copies back the end of a log, from a slave that has more of it than its restarted master.

The slave serves it as a master would (`ha_master.py`): the joining master says `tail`, and its
checksum before the place where it goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from saturnmq.broker.context import Context
from saturnmq.broker.ha_master import CHECK_BYTES, tail_checksum
from saturnmq.broker.ha_slave import MasterConnection
from saturnmq.protocol import ha
from saturnmq.protocol.errors import RequestTimeout, StoreDamaged
from saturnmq.protocol.runtime import split_address

IDLE_S = 10.0


class TailCopy:
    """One copy."""

    def __init__(self, context: Context, wake: Callable[[], None]) -> None:
        self._c = context
        self._wake = wake

    async def run(self, ha_address: str, end: int) -> None:
        """Until this log ends at `end`; a SaturnError or OSError if it does not."""
        c = self._c
        connection = MasterConnection(self)
        host, port = split_address(ha_address)
        await c.runtime.connect(host, port, connection)
        try:
            connection.greet(c.store.watermarks.appended)
            while c.store.watermarks.appended < end:
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

    def greeted(self, connection: MasterConnection, hello: dict[str, Any]) -> None:
        c = self._c
        marks = c.store.watermarks
        offset, start = marks.appended, int(hello["start"])
        if hello["brokerName"] != c.config.broker_name or start > offset:
            raise StoreDamaged(f"its log is of {hello['brokerName']} and starts at {start}")
        first = min(max(marks.start, start, offset - CHECK_BYTES), offset)
        connection.join(
            {
                "tail": True,
                "brokerId": c.role.broker_id,
                "address": c.address,
                "epoch": c.role.epoch,
                "from": offset,
                "check": [first, offset, tail_checksum(c, first, offset)],
            }
        )

    def told(self, group: dict[str, Any]) -> None:
        """Only a master tells."""

    def append(self, transfer: ha.Transfer) -> None:
        end = self._c.store.watermarks.appended
        if transfer.offset != end:
            raise StoreDamaged(f"its data starts at {transfer.offset}, this log ends at {end}")
        if len(transfer.data):
            self._c.store.append_raw(end, transfer.data)

    def received(self, connection: MasterConnection) -> None:
        self._wake()
