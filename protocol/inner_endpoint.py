"""A connection whose client is in the same process: requests go to the handler as they are, and the
answers come back without a byte in between.

The gateway of the gRPC API asks its broker in this way, one connection for each of its clients. So
the tables of a broker, which know clients by their connections, have them beside those of
Remoting: they count in the limits, are told of changes and expire.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from saturnmq.runtime.door import Runtime
from saturnmq.runtime.errors import RequestTimeout, SaturnError, UnsupportedRequest

from .budget import Budget
from .endpoint import Endpoint, Handler, ResultCallback
from .remoting import Command

log = logging.getLogger(__name__)

Dropped = Callable[["InnerEndpoint", Command], bool]
Late = Callable[[Command], None]


class InnerClient(Protocol):
    """The client's side of such a connection."""

    def told(self, command: Command) -> None:
        """The server sends a request without an answer."""
        ...

    async def asked(self, command: Command) -> Command:
        """The answer to a request of the server. SaturnError: there is none."""
        ...


class Silent:
    """A client that only asks."""

    def told(self, command: Command) -> None:
        pass

    async def asked(self, command: Command) -> Command:
        raise UnsupportedRequest(f"this client answers no request {command.code}")


class InnerEndpoint(Endpoint):
    """Both ends of such a connection; `ask` is the client's."""

    def __init__(
        self,
        runtime: Runtime,
        handler: Handler,
        peer_address: str,
        client: InnerClient,
        *,
        on_open: Callable[[Endpoint], None],
        on_close: Callable[[Endpoint], None],
        on_drop: Dropped,
        budget: Budget,
    ) -> None:
        """`on_drop` is told when nobody waits for the answer to a request any more. It returns
        whether the request is forgotten, so that no answer comes."""
        super().__init__(runtime, handler, on_close, on_open=on_open, budget=budget)
        self.peer_address = peer_address
        self._client = client
        self._on_drop = on_drop
        self.sign: Callable[[Command], None] = _unsigned
        """Says whose a request is, before it is asked."""
        self._asked: dict[int, tuple[asyncio.Future[Command], Late | None]] = {}
        self._late: dict[int, Late] = {}  # of requests that were cancelled, but not forgotten
        on_open(self)

    def ask(self, command: Command, late: Late | None = None) -> asyncio.Future[Command]:
        """Send a request. The future gives the response, whatever its code, or ConnectionLost.
        Cancelling it drops the request; `late` gets an answer that comes all the same."""
        future: asyncio.Future[Command] = self._runtime.create_future()
        if self.closed:
            future.set_exception(self._lost(f"request {command.code}"))
            return future
        self.heard()
        self.sign(command)
        command.opaque = self._next_opaque()
        self._asked[command.opaque] = future, late
        self._request(command)
        if not future.done():
            future.add_done_callback(lambda done: self._settled(command, done))
        return future

    def heard(self) -> None:
        """The client lives."""
        self.last_received = self._runtime.monotonic()

    def _ask(
        self,
        command: Command,
        timeout_s: float,
        waiter: asyncio.Future[Command] | ResultCallback,
    ) -> int:
        if self.closed:
            self._runtime.call_soon(self._finish, waiter, self._lost(f"request {command.code}"))
            return -1
        work = self._answered(command, timeout_s, waiter)
        self._runtime.spawn(work, name="ask-inside")
        return -1

    async def _answered(
        self,
        command: Command,
        timeout_s: float,
        waiter: asyncio.Future[Command] | ResultCallback,
    ) -> None:
        found: Command | SaturnError = self._lost(f"request {command.code}")
        try:
            async with asyncio.timeout(timeout_s):
                found = await self._client.asked(command)
        except TimeoutError:
            found = RequestTimeout(f"no answer to request {command.code} in {timeout_s:g} s")
        except SaturnError as error:
            found = command.reply(error.code, str(error))
        except Exception as error:
            log.exception("request %d to %s failed", command.code, self.peer_address)
            found = command.reply(1, f"{type(error).__name__}: {error}")
        finally:
            self._finish(waiter, found)

    def _settled(self, command: Command, future: asyncio.Future[Command]) -> None:
        if not future.cancelled():
            return
        _, late = self._asked.pop(command.opaque, (None, None))
        if not self._on_drop(self, command) and late is not None:
            self._late[command.opaque] = late

    def _send(self, command: Command) -> None:
        if self.closed:
            return
        if not command.is_response:
            self._client.told(command)
            return
        future, late = self._asked.pop(command.opaque, (None, None))
        late = self._late.pop(command.opaque, late)
        if command.more:
            command.body, command.more = b"".join((command.body, *command.more)), ()
        if future is not None and not future.done():
            future.set_result(command)
        elif late is not None:
            late(command)

    def _shut(self) -> None:
        waiting, self._asked = self._asked, {}
        self._late.clear()
        super()._shut()
        # Cut the cycle with the client: a node's collector would never free it (`cli/garbage.py`).
        self._client, self.sign = Silent(), _unsigned
        for future, _ in waiting.values():
            if not future.done():
                future.set_exception(self._lost("a request"))


def _unsigned(_: Command) -> None:
    """Nobody is asked who it is."""
