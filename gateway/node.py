"""The node that a gateway is a part of, as the gateway sees it."""

from __future__ import annotations

from typing import Protocol

from saturnmq.protocol.credentials import Credentials
from saturnmq.protocol.inner_endpoint import InnerClient, InnerEndpoint
from saturnmq.protocol.route import TopicRoute


class GatewayNode(Protocol):
    """A broker or a nameserver."""

    @property
    def broker_name(self) -> str:
        """Its name as a broker; empty: it is a nameserver."""
        ...

    @property
    def is_proxy(self) -> bool:
        """All clients of this node stay at it, as at RocketMQ's proxy."""
        ...

    @property
    def host(self) -> str:
        """The host that clients are told."""
        ...

    @property
    def address(self) -> str:
        """The address of its Remoting port, as clients are told."""
        ...

    @property
    def body_max(self) -> int:
        """The largest body of a message that it takes."""
        ...

    @property
    def checks_users(self) -> bool:
        """Whether calls may need a user: those of a broker that checks them, and all of a
        nameserver, whose brokers may."""
        ...

    @property
    def credentials(self) -> Credentials | None:
        """With which its gateway asks brokers for itself."""
        ...

    def connect_inside(self, peer_address: str, client: InnerClient) -> InnerEndpoint:
        """A connection to it for one client."""
        ...

    def masters(self) -> list[str]:
        """The addresses of brokers that a nameserver may ask for facts that all of them know."""
        ...

    def offers(self, grpc_address: str) -> None:
        """There is a gateway at this address."""
        ...

    async def find_route(self, topic: str, timeout_s: float) -> TopicRoute:
        """TopicNotExist; SystemBusy: nobody knows now."""
        ...
