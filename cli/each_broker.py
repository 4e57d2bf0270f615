"""One request to each broker: one that does not answer keeps none of the others from theirs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from saturnmq.cli.output import fail
from saturnmq.runtime.errors import SaturnError, nearest

T = TypeVar("T")


def nodes(client: Any, broker: str | None) -> list[Any]:
    """The nodes of this broker, or all of the cluster; there is one."""
    known = client.cluster()
    chosen = [node for node in known if broker in (None, node.broker_name)]
    if not known:
        fail("no broker is registered: start one")
    if not chosen:
        names = sorted({node.broker_name for node in known})
        fail(f"no broker is called {broker!r}{nearest(broker or '', names)}")
    return chosen


class EachBroker(Generic[T]):
    """The answers by address, and why the others gave none. A request that the first broker refuses
    is made of no other: its error is raised."""

    def __init__(self, client: Any, broker: str | None, ask: Callable[[str], T]) -> None:
        self.found: dict[str, T] = {}
        self._failed: list[str] = []
        for node in nodes(client, broker):
            try:
                self.found[node.address] = ask(node.address)
            except SaturnError as error:
                if not (self.found or self._failed or error.retriable):
                    raise
                self._failed.append(f"{node.address}: {error}")

    def end(self) -> None:
        """End with exit status 1 if not all have answered."""
        if self._failed:
            count = len(self._failed) + len(self.found)
            fail(f"{len(self._failed)} of {count} brokers did not do it: {'; '.join(self._failed)}")
