"""The ports that clients connect to, and the address that they are told.

A Java slave copies tables at the address of its master with a port that is lower by 2, so the
broker serves there, too (`fastPort`). The port of replication is `HaMaster`'s.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from ipaddress import ip_address

from saturnmq.broker.config import BrokerConfig
from saturnmq.protocol.ids import encode_host
from saturnmq.runtime.door import (
    EXPOSED,
    Listener,
    Runtime,
    is_loopback,
    join_address,
    split_address,
)
from saturnmq.runtime.errors import ConfigError

log = logging.getLogger(__name__)

EVERYWHERE = ("0.0.0.0", "::", "")
FAST = 2  # so much lower is the second port


class Listening:
    def __init__(
        self, config: BrokerConfig, runtime: Runtime, accept: Callable[[], asyncio.BaseProtocol]
    ) -> None:
        self._config = config
        self._runtime = runtime
        self._accept = accept
        self._listeners: list[Listener] = []
        self.host = ""  # the host that clients are told
        self.address = ""  # the same, with the port
        self.store_host = b""  # the same, as frames store it

    async def open(self) -> None:
        config = self._config
        bound = await self._listen(config.port)
        bound_host, port = split_address(bound)
        self.host = self._advertised()
        self.address = join_address(self.host, port)
        try:
            self.store_host = encode_host(self.host, port)
        except ValueError as error:
            raise ConfigError(
                f"the advertised host {self.host!r} is no IP address, but every stored message "
                "carries it as one; set brokerIP1"
            ) from error
        if not is_loopback(bound):
            if not config.authentication:
                log.warning(EXPOSED, bound)
        elif not ip_address(self.host).is_loopback:
            log.warning(
                "clients are told %s (brokerIP1), but the broker listens on %s only: set "
                "bindAddress to 0.0.0.0 to be reached from other machines",
                self.address,
                bound_host,
            )
        if config.fast_port and config.port > FAST:
            await self._listen_fast(config.port - FAST)
        if config.local_socket:
            await self._listen_locally()

    def ha_address(self, bound: str) -> str:
        """The address that slaves are told, of the port of replication, which is bound there."""
        _, port = split_address(bound)
        return join_address(self._config.ha_advertised_host or self.host, port)

    def close(self) -> None:
        for listener in self._listeners:
            listener.close()

    async def _listen(self, port: int) -> str:
        listener = await self._runtime.listen(self._config.host, port, self._accept)
        self._listeners.append(listener)
        return listener.address

    async def _listen_fast(self, port: int) -> None:
        try:
            await self._listen(port)
        except ConfigError as error:
            log.warning(
                "port %d (port - 2) is not free, Java slaves cannot copy topics: %s", port, error
            )

    async def _listen_locally(self) -> None:
        listener = await self._runtime.listen_locally(self.address, self._accept)
        if listener is not None:
            self._listeners.append(listener)

    def _advertised(self) -> str:
        config = self._config
        host = config.advertised_host or (
            self._runtime.own_address() if config.host in EVERYWHERE else config.host
        )
        return "127.0.0.1" if host == "localhost" else host
