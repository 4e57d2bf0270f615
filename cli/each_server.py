"""One request to each broker, or to each nameserver: one that does not answer keeps none of the
others from theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, Self, TypeVar

from saturnmq.cli.output import counted, fail
from saturnmq.runtime.errors import SaturnError, nearest

T = TypeVar("T")


def nodes(client: Any, broker: str | None) -> list[Any]:
    """The nodes of this broker, or all of the cluster; there is one at least."""
    known = client.cluster()
    chosen = [node for node in known if broker in (None, node.broker_name)]
    if not known:
        fail("no broker is registered: start one")
    if not chosen:
        names = sorted({node.broker_name for node in known})
        fail(f"no broker is called {broker!r}{nearest(broker or '', names)}")
    return chosen


class EachServer(Generic[T]):
    """The answers by address, and why the others gave none. A request that the first server refuses
    is made of no other: its error is raised."""

    def __init__(self, kind: str, addresses: Iterable[str], ask: Callable[[str], T]) -> None:
        """`kind`: broker or nameserver, for the error."""
        self.found: dict[str, T] = {}
        self._kind = kind
        self._failed: list[str] = []
        for address in addresses:
            try:
                self.found[address] = ask(address)
            except SaturnError as error:
                if not (self.found or self._failed or error.retriable):
                    raise
                self._failed.append(f"{address}: {error}")

    @classmethod
    def of_brokers(cls, client: Any, broker: str | None, ask: Callable[[str], T]) -> Self:
        """The nodes of this broker, or all of the cluster."""
        return cls("broker", [node.address for node in nodes(client, broker)], ask)

    def end(self) -> None:
        """End with exit status 1 if not all have answered."""
        if self._failed:
            all_of_them = counted(len(self._failed) + len(self.found), self._kind)
            failed = f"{len(self._failed)} of {all_of_them} did not do it"
            fail(f"{failed}: {'; '.join(self._failed)}")
