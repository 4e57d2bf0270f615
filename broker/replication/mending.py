"""Damage in a log that another node of the group may have whole.

A start finds damage by itself (`store/recovery/recovery.py`), a master also before it copies a
message (`broker/commit/sound_reads.py`). A JOIN finds it when two logs differ
within one epoch: one master wrote both, so if their checksums differ, at least one of them holds
frames whose own checksums fail: a flipped bit. A node that finds such frames in its log reads the
same bytes at the other node (READ_LOG). If those are sound, it writes them in place of its own. If
neither node's frames are damaged, nothing is written: an operator has to look.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from saturnmq.broker.context import Context, answer
from saturnmq.broker.replication.asking import connection_to
from saturnmq.broker.replication.identity import known
from saturnmq.broker.replication.kinship import is_foreign
from saturnmq.protocol import headers
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.errors import (
    InvalidParameter,
    NoPermission,
    SaturnError,
    StoreDamaged,
    error_for,
)

log = logging.getLogger(__name__)

READ_MAX = 8 << 20  # bytes of the log in one answer
READ_S = 10.0


class Mending:
    def __init__(
        self, context: Context, alone: Callable[[Callable[[], Any]], Awaitable[None]]
    ) -> None:
        """`alone` runs a blocking call on the store while nothing else works on it."""
        self._c = context
        self._alone = alone
        self.master_address: Callable[[], str] = str  # that a slave follows

    async def try_to_mend(self, start: int, end: int, address: str) -> None:
        """As `mend`, for frames that may be damaged at the other node, too. OSError, SaturnError:
        it may succeed later."""
        try:
            await self.mend(start, end, address)
        except (StoreDamaged, InvalidParameter) as error:
            log.error("the log stays damaged from %d to %d: %s", start, end, error)

    async def answer(self, differs: tuple[int, int] | None, address: str) -> str:
        """The text to add to a refusal by the node at `address`. If its log is sound where the two
        differ, this one may be damaged there, and is mended."""
        if differs is None or not address:
            return ""
        try:
            if await self.mend(*differs, address):
                return ": this log was damaged there, and is mended"
        except (SaturnError, OSError) as error:
            return f"; this log is damaged there and not mended: {error}"
        return (
            f", and so are those of this log ({self._c.address}): one of them was copied from "
            "elsewhere. Nothing is cut; look at both with `saturnmq store dump`, and wipe the "
            "store that is wrong"
        )

    async def mend(self, start: int, end: int, address: str) -> int:
        """Replace damaged frames in [start, end) by those of the node at `address`; return the
        number of bytes. StoreDamaged: its frames are no better. OSError, SaturnError: it cannot be
        done now."""
        c = self._c
        damaged = await c.runtime.run_blocking(c.store.damage, start, end)
        if not damaged:
            return 0
        log.error("frames of this log are damaged: %s; reading them at %s", damaged, address)
        endpoint = await connection_to(c, address)
        try:
            for first, last in damaged:
                data = await self._read(endpoint, first, last)
                assert len(data) == last - first, f"{len(data)} bytes from {first} to {last}"
                await self._alone(partial(c.store.repair, first, data))
                log.warning("the log is mended from %d to %d", first, last)
        finally:
            endpoint.close()
        return sum(last - first for first, last in damaged)

    async def mend_by_any(self, start: int, end: int) -> bool:
        """Mend damage that this node has met while it serves, by the first other one with sound
        frames. False: none has them. OSError, SaturnError: one that may have them cannot be asked
        now."""
        silent: list[Exception] = []
        for address in self._others():
            try:
                await self.mend(start, end, address)
                return True
            except (StoreDamaged, InvalidParameter) as error:
                log.warning("%s cannot mend the log from %d to %d: %s", address, start, end, error)
            except (SaturnError, OSError) as error:
                silent = [error]
        if silent:
            raise silent.pop()
        return False

    def _others(self) -> list[str]:
        """The addresses of the group's other nodes."""
        role = self._c.role
        first = self.master_address() if role.is_slave else ""
        known = dict.fromkeys((first, *role.replicas.values()))
        return [address for address in known if address and address != self._c.address]

    async def _read(self, endpoint: Endpoint, first: int, last: int) -> bytes:
        parts = []
        while first < last:
            ext = {
                "brokerName": self._c.config.broker_name,
                "identity": self._c.role.identity,
                "offset": str(first),
                "size": str(min(last - first, READ_MAX)),
            }
            reply = await endpoint.request(Command.request(RequestCode.READ_LOG, ext), READ_S)
            if reply.code:
                raise error_for(reply.code, reply.remark)
            if not len(reply.body) or first + len(reply.body) > last:
                raise StoreDamaged(f"it answers {len(reply.body)} bytes of the log from {first}")
            parts.append(bytes(reply.body))
            first += len(reply.body)
        return b"".join(parts)

    def on_read(self, endpoint: Endpoint, request: Command, header: headers.ReadLogHeader) -> None:
        """READ_LOG: send raw bytes of the log to a node of this group."""
        c, mine = self._c, known(self._c)
        foreign = is_foreign(mine, header.identity) or header.broker_name != c.config.broker_name
        if not mine or foreign:
            raise NoPermission(f"this node is of group {c.config.broker_name} {mine}")
        offset, size = header.offset, header.size
        marks = c.store.watermarks
        if not (marks.start <= offset < marks.appended and size <= READ_MAX):
            raise InvalidParameter(
                f"{size} bytes from {offset}: the log has {marks.start} to {marks.appended}, and "
                f"at most {READ_MAX} are read at once"
            )
        data = c.store.read_log(offset, min(size, marks.appended - offset))
        if data is None or not len(data):
            raise StoreDamaged(f"the log cannot be read at {offset}")
        answer(endpoint, request, request.reply(0, body=bytes(data)))
