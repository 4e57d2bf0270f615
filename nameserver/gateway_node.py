"""A nameserver as its gateway of the gRPC API sees it: it knows routes, and has no messages."""

from __future__ import annotations

from saturnmq.protocol.credentials import Credentials
from saturnmq.protocol.inner_endpoint import InnerClient, InnerEndpoint
from saturnmq.protocol.route import TopicRoute
from saturnmq.runtime.door import Runtime, split_address

from .server import NameServer

BODY_MAX = 4 << 20  # brokers have settings of their own, and check again
EVERYWHERE = ("0.0.0.0", "::", "")


class NameserverNode:
    """The nameserver, which has started."""

    broker_name = ""
    checks_users = True
    body_max = BODY_MAX

    def __init__(
        self,
        runtime: Runtime,
        server: NameServer,
        *,
        is_proxy: bool = False,
        credentials: Credentials | None = None,
    ) -> None:
        """`is_proxy`: clients of its gateway send it all calls, also those for brokers.
        `credentials`: of the user that it is for brokers."""
        self._credentials = credentials
        self._runtime = runtime
        self._server = server
        self.is_proxy = is_proxy

    @property
    def address(self) -> str:
        return self._server.address

    @property
    def host(self) -> str:
        host, _ = split_address(self.address)
        return self._runtime.own_address() if host in EVERYWHERE else host

    @property
    def credentials(self) -> Credentials | None:
        return self._credentials

    def connect_inside(self, peer_address: str, client: InnerClient) -> InnerEndpoint:
        """A client counts as a connection; it asks the nameserver nothing."""
        return self._server.connections.accept_inside(peer_address, client, lambda _, __: False)

    def masters(self) -> list[str]:
        names = self._server.routes.cluster_info()["brokerAddrTable"]
        addresses = (self._server.routes.addresses(name).get(0) for name in names)
        return [address for address in addresses if address is not None]

    def offers(self, grpc_address: str) -> None:
        """Nobody asks a nameserver for its gateway."""

    async def find_route(self, topic: str, timeout_s: float) -> TopicRoute:
        route = self._server.routes.route(topic)
        route.order_topic_conf = self._server.order_of(topic)
        return route
