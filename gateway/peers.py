"""Connections to other nodes, for calls that belong to them: one for each address, opened when it
is first needed. One on which nothing came while a request timed out is left: later requests get a
new one. A network that drops its packets would let each of them wait, for many minutes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from copy import copy
from typing import TypeVar

from saturnmq.gateway.callers import as_itself
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.endpoint import Endpoint, Handler
from saturnmq.protocol.inner_endpoint import Late
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.door import Runtime, split_address
from saturnmq.runtime.errors import ConnectFailed, RequestTimeout, SaturnError
from saturnmq.runtime.turns import Turns

CONNECT_S = 2.0
SILENT_S = 1.0  # a connection is left after no shorter silence: a call may have less time
A = TypeVar("A", Command, Command | SaturnError)


async def claimed(answer: asyncio.Future[A], late: Late, turns: Turns) -> A:
    """The answer of a pop, when the turn of the loop has time for the work on it. `late` gets it if
    the caller is cancelled when it has come, and the caller does not see it."""
    try:
        found = await answer
        await turns.free()
        return found
    except asyncio.CancelledError:
        has_come = answer.done() and not answer.cancelled() and answer.exception() is None
        if has_come and isinstance(told := answer.result(), Command):
            late(told)
        raise
    finally:
        del answer  # this frame is in the traceback of the error that it may have


class Peers:
    def __init__(
        self,
        runtime: Runtime,
        asked: Handler,
        sign: Callable[[Command], None],
        turns: Turns | None = None,
    ) -> None:
        """`asked` gets the requests of other nodes; `sign` says whose a request is; `turns`: those
        of the node."""
        self._sign = sign
        self.turns = turns or Turns(runtime)
        self._runtime = runtime
        self._asked = asked
        self._open: dict[str, Endpoint] = {}
        self._opening: dict[str, asyncio.Task[Endpoint | SaturnError]] = {}

    async def ask(
        self, address: str, command: Command, timeout_s: float, late: Late | None = None
    ) -> Command:
        """The answer of the node at `address`, whatever its code. SaturnError: it cannot be
        reached, or does not answer in time. `late` gets an answer that comes in time, but to nobody
        any more: the call, a pop, was cancelled. Then the node is told to answer it."""
        endpoint = self._open.get(address)
        if endpoint is None or endpoint.closed:
            endpoint = await self._connect(address)
        self._sign(command)
        # An error is its result: as its exception it would keep this frame, which has it.
        answer: asyncio.Future[Command | SaturnError] = self._runtime.create_future()
        asked_at = self._runtime.monotonic()

        def came(found: Command | SaturnError) -> None:
            waited_s = self._runtime.monotonic() - asked_at
            is_silent = endpoint.last_received <= asked_at and waited_s >= SILENT_S
            if isinstance(found, RequestTimeout) and is_silent:
                self._leave(endpoint)
            if self._open.get(address) is not endpoint and not endpoint.waiting:
                endpoint.abort("nothing came over it any more")
            if answer.cancelled():
                if late is not None and isinstance(found, Command):
                    late(found)
            else:
                answer.set_result(found)

        endpoint.request_callback(command, timeout_s, came)
        try:
            told = await (answer if late is None else claimed(answer, late, self.turns))
        except asyncio.CancelledError:
            if late is not None and not endpoint.closed:
                self._end_poll(endpoint, command.opaque)
            raise
        if isinstance(told, SaturnError):
            raise copy(told)
        return told

    def _end_poll(self, endpoint: Endpoint, opaque: int) -> None:
        """Have a pop answered that waits for a client that has gone: it would take messages."""
        ended = Command.request(RequestCode.END_POLL, {"opaque": str(opaque)})
        self._sign(ended)
        endpoint.oneway(ended)

    async def _connect(self, address: str) -> Endpoint:
        """All who wait for a connection share one try, and its failure."""
        opening = self._opening.get(address)
        if opening is None:
            opening = self._runtime.spawn(as_itself(self._opened(address)), name="gateway-peer")
            self._opening[address] = opening
            opening.add_done_callback(lambda _: self._opening.pop(address, None))
        found = await asyncio.shield(opening)
        if isinstance(found, SaturnError):
            raise copy(found)  # the task has the original; see FreshFacts
        return found

    async def _opened(self, address: str) -> Endpoint | SaturnError:
        """A new connection, or why there is none: a task that fails would end the process. Its
        broker's requests belong to no call."""
        endpoint = Endpoint(self._runtime, self._asked, self._leave)
        try:
            host, port = split_address(address)
            async with asyncio.timeout(CONNECT_S):
                await self._runtime.connect(host, port, endpoint)
        except SaturnError as error:
            return error
        except (OSError, TimeoutError, ValueError) as error:
            return ConnectFailed(f"no connection to {address}: {error!r}")
        self._open[address] = endpoint
        return endpoint

    def _leave(self, endpoint: Endpoint) -> None:
        for address, known in list(self._open.items()):
            if known is endpoint:
                del self._open[address]

    def close(self) -> None:
        for endpoint in list(self._open.values()):
            endpoint.close()
