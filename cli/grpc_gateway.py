"""The gateway of a server process, with the real door: brokers and nameservers have one beside
them."""

from __future__ import annotations

import importlib
import logging
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from saturnmq.runtime.door import EXPOSED, is_loopback, join_address, split_address
from saturnmq.runtime.errors import ConfigError

if TYPE_CHECKING:
    from saturnmq.gateway.door import Door
    from saturnmq.gateway.gateway import Gateway
    from saturnmq.gateway.node import GatewayNode
    from saturnmq.protocol.connections import Connections
    from saturnmq.protocol.tls import Certificates
    from saturnmq.runtime.native import NativeRuntime

log = logging.getLogger(__name__)

OFF = -1
USUAL_PORT = 8081
TLS_HELP = "TLS of all ports: auto = self-signed unless there is a certificate, off = none."


class TlsMode(StrEnum):
    """`--tls`."""

    AUTO = "auto"
    OFF = "off"


def allows_self_signed(mode: TlsMode, certificate: str) -> bool:
    """ConfigError: there is to be no TLS, but there is a certificate."""
    if mode is TlsMode.OFF and certificate:
        raise ConfigError(f"--tls off, but there is a certificate: tlsCertPath {certificate}")
    return mode is TlsMode.AUTO


@dataclass(frozen=True)
class TlsSettings:
    """The certificate of a node, for the ports of Remoting and of gRPC."""

    certificate: str  # a path; empty: self-signed, if `is_self_signed`
    key: str
    is_self_signed: bool
    directory: Path | None  # of the self-signed certificate; None: it is kept in memory

    def certificate_of(self, host: str) -> Certificates:
        """The certificate of a node at `host`. Blocking. ConfigError: the files of the
        operator cannot be used."""
        from saturnmq.gateway.certificates import Certificate, self_signed, temporary

        if self.certificate:
            return Certificate(self.certificate, self.key).current
        if not self.is_self_signed:
            return lambda: None
        hosts = ["127.0.0.1", host]
        try:
            if self.directory is None:
                context = temporary(hosts)
                return lambda: context
            made = str(self_signed(self.directory, hosts))
            return Certificate(made, made).current
        except ConfigError as error:
            log.warning("clients are served without TLS: %s", error)
            return lambda: None


class NodeGateway:
    """The gateway of a node. It starts after the node and ends before it."""

    def __init__(
        self,
        runtime: NativeRuntime,
        node: GatewayNode,
        connections: Connections,
        host: str,
        port: int,
        tls: TlsSettings,
    ) -> None:
        """`host` and `port`: where it listens; port 0 is any free one, -1 none."""
        self._runtime = runtime
        self._node = node
        self._host = host
        self._port = port
        self._connections = connections
        self._tls = tls
        self._certificates: Certificates | None = None
        self._door: Door | None = None
        self._gateway: Gateway | None = None
        self.address = ""  # as clients are told; empty if there is none
        if port != OFF:
            importlib.import_module("saturnmq.gateway.door")  # before the loop has work

    def read_certificate(self) -> None:
        """Read the certificate of the operator, before the start. Blocking. ConfigError: it cannot
        serve with it."""
        if self._tls.certificate:
            self._certificates = self._tls.certificate_of(self._host)

    async def start(self) -> None:
        """Serve. A port that is not free is told, and the node serves Remoting alone: two nodes of
        one machine may have the usual port, which is no error. The ports of Remoting take TLS by
        then, too."""
        runtime = self._runtime
        certificates = self._certificates
        if certificates is None:  # a self-signed one names the host that clients are told
            certificates = await runtime.run_blocking(self._tls.certificate_of, self._node.host)
        if certificates() is not None:
            self._connections.certificates = certificates
        if self._port == OFF:
            return
        from saturnmq.gateway.door import Door
        from saturnmq.gateway.gateway import Gateway
        from saturnmq.gateway.http2.grpc_calls import GrpcCalls

        door = Door(runtime, self._connections, certificates, self._node.body_max)
        try:
            bound = await door.listen(self._host, self._port)
        except ConfigError as error:
            way_out = "give another one, or -1 for none (grpcServerPort; --grpc-port)"
            level = logging.WARNING if self._port == USUAL_PORT else logging.ERROR
            log.log(level, "clients of the gRPC API are not served: %s; %s", error, way_out)
            await door.close()
            return
        self.address = join_address(self._node.host, split_address(bound)[1])
        if not is_loopback(bound) and self._node.credentials is None:
            log.warning(EXPOSED, bound)
        self._door = door
        turns = self._connections.turns
        self._gateway = Gateway(self._runtime, self._node, self.address, turns)
        door.serve(GrpcCalls(runtime, self._gateway.services, turns).begin)
        self._node.offers(self.address)
        log.info("clients of the gRPC API are served at %s", self.address)

    async def close(self) -> None:
        if self._gateway is not None:
            await self._gateway.health.end()
        if self._door is not None:
            await self._door.close()
        if self._gateway is not None:
            await self._gateway.close()
