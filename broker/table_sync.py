"""Copying a group's tables: topics, subscription groups, consumer offsets, delay progress.

A slave takes over its master's (codes 21, 201, 43, 45); a master that returns takes from its slave
the offsets that were committed there meanwhile. Offsets only rise.
"""

from __future__ import annotations

from typing import Any

from saturnmq.broker.context import Context
from saturnmq.broker.delay import DelayService
from saturnmq.protocol import jsonx
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.errors import error_for
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.runtime import split_address


class TableSync:
    def __init__(self, context: Context, delays: DelayService) -> None:
        self._c = context
        self._delays = delays
        self._endpoint: Endpoint | None = None
        self._address = ""

    async def copy_from(self, address: str) -> float:
        """Take over this master's tables; in how many seconds to look again."""
        c = self._c
        if self._endpoint is None or self._endpoint.closed or self._address != address:
            if self._endpoint is not None:
                self._endpoint.close()
            self._endpoint, self._address = await self._open(address), address
        endpoint = self._endpoint
        c.topics.replace_all(await self._ask(endpoint, RequestCode.GET_ALL_TOPIC_CONFIG))
        c.groups.replace_all(
            await self._ask(endpoint, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        )
        c.offsets.merge(await self._ask(endpoint, RequestCode.GET_ALL_CONSUMER_OFFSET))
        self._delays.load(await self._ask(endpoint, RequestCode.GET_ALL_DELAY_OFFSET))
        return c.config.slave_sync_ms / 1000

    async def merge_back(self, address: str) -> None:
        """Take what this slave knows better."""
        endpoint = await self._open(address)
        try:
            self._c.offsets.merge(await self._ask(endpoint, RequestCode.GET_ALL_CONSUMER_OFFSET))
        finally:
            endpoint.close()

    async def _open(self, address: str) -> Endpoint:
        endpoint = Endpoint(self._c.runtime, None)
        host, port = split_address(address)
        await self._c.runtime.connect(host, port, endpoint)
        return endpoint

    async def _ask(self, endpoint: Endpoint, code: int) -> dict[str, Any]:
        reply = await endpoint.request(Command.request(code), 5.0)
        if reply.code:
            raise error_for(reply.code, reply.remark)
        if not reply.body:
            return {}
        document = jsonx.loads(bytes(reply.body))
        return document if isinstance(document, dict) else {}
