"""Connections to other nodes, for calls that belong to them: one for each address, opened when it
is first needed."""

from __future__ import annotations

import asyncio

from saturnmq.protocol.endpoint import Endpoint, Handler
from saturnmq.protocol.inner_endpoint import Late
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.door import Runtime, split_address
from saturnmq.runtime.errors import ConnectFailed, SaturnError

CONNECT_S = 2.0


async def claimed(answer: asyncio.Future[Command], late: Late | None) -> Command:
    """The answer, which `late` gets if the caller is cancelled in the turn of the loop in which it
    comes: then it is there, and the caller does not see it."""
    try:
        return await answer
    except asyncio.CancelledError:
        has_come = answer.done() and not answer.cancelled() and answer.exception() is None
        if late is not None and has_come:
            late(answer.result())
        raise


class Peers:
    def __init__(self, runtime: Runtime, asked: Handler) -> None:
        """`asked` gets the requests of other nodes."""
        self._runtime = runtime
        self._asked = asked
        self._open: dict[str, Endpoint] = {}
        self._opening: dict[str, asyncio.Lock] = {}

    async def ask(
        self, address: str, command: Command, timeout_s: float, late: Late | None = None
    ) -> Command:
        """The answer of the node at `address`, whatever its code. SaturnError: it cannot be
        reached, or does not answer in time. `late` gets an answer that comes in time, but to nobody
        any more: the call was cancelled."""
        endpoint = self._open.get(address)
        if endpoint is None or endpoint.closed:
            endpoint = await self._connect(address)
        answer: asyncio.Future[Command] = self._runtime.create_future()

        def came(found: Command | SaturnError) -> None:
            if answer.cancelled():
                if late is not None and isinstance(found, Command):
                    late(found)
            elif isinstance(found, Command):
                answer.set_result(found)
            else:
                answer.set_exception(found)

        endpoint.request_callback(command, timeout_s, came)
        return await claimed(answer, late)

    async def _connect(self, address: str) -> Endpoint:
        async with self._opening.setdefault(address, asyncio.Lock()):
            known = self._open.get(address)
            if known is not None and not known.closed:
                return known
            endpoint = Endpoint(self._runtime, self._asked, self._closed)
            try:
                host, port = split_address(address)
                async with asyncio.timeout(CONNECT_S):
                    await self._runtime.connect(host, port, endpoint)
            except (OSError, TimeoutError, ValueError) as error:
                raise ConnectFailed(f"no connection to {address}: {error!r}") from error
            self._open[address] = endpoint
            return endpoint

    def _closed(self, endpoint: Endpoint) -> None:
        for address, known in list(self._open.items()):
            if known is endpoint:
                del self._open[address]
                self._opening.pop(address, None)

    def close(self) -> None:
        for endpoint in list(self._open.values()):
            endpoint.close()
