"""The broker processes that the route table knows, and what one is told when it registers."""

from collections.abc import Hashable
from dataclasses import dataclass

from saturnmq.protocol.route import DataVersion


@dataclass(slots=True)
class LiveBroker:
    """One broker process that gave a sign of life."""

    cluster: str
    name: str
    broker_id: int
    address: str
    ha_address: str
    identity: str
    version: DataVersion
    timeout_ms: int
    last_seen_ms: int
    connection: Hashable


@dataclass(slots=True)
class Master:
    """The master that a slave follows."""

    address: str
    ha_address: str
    identity: str


@dataclass(slots=True)
class Term:
    """The highest epoch in which a master of a group registered."""

    epoch: int
    holder: Master


@dataclass(slots=True)
class Deposed:
    """A master that is in no route, because there was one of a later epoch."""

    connection: Hashable
    until_ms: int  # end of the silence that it announced


@dataclass(slots=True)
class Registered:
    """The outcome of a registration."""

    taken: bool
    term: Term | None  # of the group; none with RocketMQ's brokers
    master: Master | None  # of the group, for a slave and for a deposed master
    deposed: LiveBroker | None = None  # was master until now, and should register again

    @property
    def epoch(self) -> int:
        """The highest known epoch of the group; 0: none."""
        return self.term.epoch if self.term else 0

    @property
    def identity(self) -> str:
        """The identity of the group with this master and epoch; empty: unknown."""
        named = self.master or (self.term.holder if self.term else None)
        return named.identity if named else ""
