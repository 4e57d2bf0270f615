"""The connections of one client to its servers: one for each address, opened when first needed.

Concurrent callers share one attempt to connect. A request waits for its response as long as the
client's time-out says; a connection that breaks fails the requests that wait on it.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Collection
from functools import partial

from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.credentials import Credentials, client_endpoint
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.makes import make_of
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.door import Runtime, split_address
from saturnmq.runtime.errors import (
    ConnectFailed,
    ConnectionLost,
    SaturnError,
    UnsupportedRequest,
    error_for,
)
from saturnmq.runtime.supervision import Supervisor

log = logging.getLogger(__name__)

OK: frozenset[int] = frozenset({0})
# A master that handed over has answered everything by then.
SUCCEEDED_S = 1.0
_CODES = frozenset(RequestCode)


class ServerConnections:
    """The open connections, by address. Loop thread only."""

    def __init__(
        self,
        runtime: Runtime,
        tasks: Supervisor,
        handle: Callable[[Endpoint, Command], None],
        *,
        connect_timeout: float,
        request_timeout: float,
        tls: ssl.SSLContext | None,
        credentials: Credentials | None,
        on_open: Callable[[str], None],
        on_lost: Callable[[str], None],
    ) -> None:
        """`handle` gets the requests of servers; `on_open` and `on_lost` get the address of a
        connection that was opened, or that has ended."""
        self._runtime = runtime
        self._tasks = tasks
        self._handle = handle
        self._connect_timeout = connect_timeout
        self._request_timeout = request_timeout
        self._tls, self._credentials = tls, credentials
        self._on_open = on_open
        self._on_lost = on_lost
        self._open_ones: dict[str, Endpoint] = {}
        self._addresses: dict[Endpoint, str] = {}
        self._connecting: dict[str, asyncio.Future[Endpoint]] = {}
        self._refusal: SaturnError | None = None  # of a client that is closed

    @property
    def closed(self) -> bool:
        """Whether no connection is opened any more."""
        return self._refusal is not None

    def close(self, refusal: SaturnError) -> None:
        """Close every connection; a later request for one raises `refusal`."""
        self._refusal = refusal
        for endpoint in list(self._open_ones.values()):
            endpoint.close()
        self._forget()

    def abandon(self, refusal: SaturnError) -> None:
        """Drop the connections without a word to the servers: they belong to the parent process."""
        self._refusal = refusal
        self._forget()

    def _forget(self) -> None:
        self._open_ones.clear()
        self._addresses.clear()

    # -- connections --------------------------------------------------------------------------

    def connected(self, address: str) -> Endpoint | None:
        """The open connection to `address`, if there is one now."""
        endpoint = self._open_ones.get(address)
        if endpoint is None or endpoint.closed:
            return None
        return endpoint

    async def connect(self, address: str) -> Endpoint:
        """The connection to `address`, opened if need be; concurrent callers share one attempt."""
        endpoint = self.connected(address)
        if endpoint is not None:
            return endpoint
        if self._refusal is not None:
            raise self._refusal
        pending = self._connecting.get(address)
        if pending is None:
            pending = self._begin_connecting(address)
        return await asyncio.shield(pending)

    def reconnect(self, address: str) -> None:
        """Open the connection to `address`, unless it is open or an attempt is under way."""
        if address not in self._connecting and address not in self._open_ones:
            self._begin_connecting(address)

    def _begin_connecting(self, address: str) -> asyncio.Future[Endpoint]:
        pending: asyncio.Future[Endpoint] = self._runtime.create_future()
        self._connecting[address] = pending
        self._tasks.once(
            partial(self._open, address),
            name=f"connect {address}",
            failed=partial(self._not_connected, address),
        )
        return pending

    def _not_connected(self, address: str, error: SaturnError) -> None:
        done = self._connecting.pop(address)
        done.set_exception(error)
        done.exception()  # nobody may be waiting any more

    async def _open(self, address: str) -> None:
        endpoint = client_endpoint(
            self._runtime, self._handle, self._on_close, credentials=self._credentials
        )
        try:
            host, port = split_address(address)
            async with asyncio.timeout(self._connect_timeout):
                await self._runtime.connect(host, port, endpoint, tls=self._tls)
        except ConnectionLost as error:
            self._not_connected(address, error)
            return
        except (OSError, TimeoutError, ValueError, SaturnError) as error:
            self._not_connected(address, ConnectFailed(f"no connection to {address}: {error!r}"))
            return
        if self._refusal is not None:
            endpoint.close()
            self._not_connected(address, self._refusal)
            return
        self._open_ones[address] = endpoint
        self._addresses[endpoint] = address
        self._connecting.pop(address).set_result(endpoint)
        self._on_open(address)

    def _on_close(self, endpoint: Endpoint, *_: object) -> None:
        address = self._addresses.pop(endpoint, None)
        if address is None:  # it was closed before it counted
            return
        del self._open_ones[address]
        self._on_lost(address)

    def address_of(self, endpoint: Endpoint) -> str:
        """The address that `endpoint` was opened to."""
        return self._addresses.get(endpoint, endpoint.peer_address)

    def drop(self, address: str) -> None:
        """Close the connection to `address`; the next request opens a new one."""
        endpoint = self._open_ones.get(address)
        if endpoint is not None:
            endpoint.close()

    def abort_if_silent(self, address: str) -> None:
        """Abort the connection to a master that was succeeded, if requests wait on it and it stays
        silent for SUCCEEDED_S: it hangs, and nothing may wait for it."""
        endpoint = self.connected(address)
        if endpoint is not None:
            now = self._runtime.monotonic()
            self._runtime.call_later(SUCCEEDED_S, self._abort, endpoint, now)

    @staticmethod
    def _abort(endpoint: Endpoint, since: float) -> None:
        if endpoint.waiting and endpoint.last_received <= since and not endpoint.closed:
            endpoint.abort("it hangs, and another broker is master now")

    # -- requests -----------------------------------------------------------------------------

    async def invoke(
        self,
        address: str,
        cmd: Command,
        timeout_s: float | None = None,
        ok: Collection[int] = OK,
    ) -> Command:
        """Send `cmd` and return its response; a code outside `ok` is raised as its typed error."""
        timeout = self._request_timeout if timeout_s is None else timeout_s
        endpoint = await self.connect(address)
        response = await endpoint.request(cmd, timeout)
        if response.code not in ok:
            raise _error_of(address, cmd, response)
        return response

    def oneway(self, address: str, cmd: Command) -> None:
        """Send `cmd` without an answer; opens the connection in the background if need be."""
        endpoint = self.connected(address)
        if endpoint is not None:
            endpoint.oneway(cmd)
        else:
            self._tasks.once(partial(self._oneway, address, cmd), name=f"oneway {address}")

    async def _oneway(self, address: str, cmd: Command) -> None:
        try:
            endpoint = await self.connect(address)
        except SaturnError as error:
            log.debug("one-way request %d to %s dropped: %s", cmd.code, address, error)
            return
        endpoint.oneway(cmd)


def _error_of(address: str, cmd: Command, response: Command) -> SaturnError:
    """The error of a response. RocketMQ names a request that it does not know by number only."""
    error = error_for(response.code, response.remark)
    if not isinstance(error, UnsupportedRequest):
        return error
    name = RequestCode(cmd.code).name if cmd.code in _CODES else f"request {cmd.code}"
    return UnsupportedRequest(
        f"{address} ({make_of(response)}) does not serve {name}: {str(error).strip()}; "
        "a newer version of it may"
    )
