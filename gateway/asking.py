"""Requests to the broker that a call belongs to: this node's own one, asked without a socket in the
client's name, or another one.

A broker that is not the master any more says so without looking at the request; then the master of
the route is asked, and if that refuses, too, or takes no connection, the master of a route that is
asked for now. So clients go on through a fail-over with the routes that they have.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from saturnmq.gateway.clients import Client
from saturnmq.gateway.codes import NOT_MASTER
from saturnmq.gateway.node import GatewayNode
from saturnmq.gateway.peers import Peers, claimed
from saturnmq.gateway.topics import Directory
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.inner_endpoint import Late
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.errors import ConnectFailed, ConnectionLost, SaturnError, SystemBusy

AT_ONCE = 16  # requests of one call, each of which is answered in its turn of the loop

E = TypeVar("E")
T = TypeVar("T")


class Asking:
    def __init__(self, node: GatewayNode, peers: Peers, directory: Directory) -> None:
        self._node = node
        self._peers = peers
        self._directory = directory

    async def turn(self) -> None:
        """Wait until the turn of the loop has time for more work of a call."""
        await self._peers.turns.free()

    async def for_each(
        self, entries: Sequence[E], ask: Callable[[E], Coroutine[Any, Any, T]]
    ) -> list[T]:
        """The results of `ask` for the entries of one call, which are asked for in their order."""
        found: list[T] = []
        for at in range(0, len(entries), AT_ONCE):
            await self.turn()
            found += await asyncio.gather(*map(ask, entries[at : at + AT_ONCE]))
        return found

    async def at(
        self,
        client: Client | None,
        topic: str,
        broker: str,
        request: Command,
        timeout_s: float,
        late: Late | None = None,
    ) -> Command:
        """The answer of the broker of this name to a request about a topic, whatever its code.
        Without a client the gateway asks for itself: a request of a client shows that it lives.
        When the call is cancelled this broker drops the request, if it can; `late` gets an answer
        that comes after that, of whichever broker.
        """
        refusal: Command | None = None
        if broker == self._node.broker_name:
            link = self._directory.inside() if client is None else client.link
            if late is None:
                reply = await link.ask(request)
            else:
                reply = await claimed(link.ask(request, late), late, self._peers.turns)
            if not is_refusal(reply):
                return reply
            refusal = reply
        # In a list, not by name: an error that a frame of its traceback names is freed by the
        # collector only, with all that those frames have.
        problem: list[SaturnError] = [
            SystemBusy(f"{NOT_MASTER}broker {broker} has no master now; try again")
        ]
        asked = {self._node.address}
        for renewed in (False, True):  # the master that is known here, and after that the newest
            facts = await self._directory.topic(topic, renewed=renewed)
            if facts.route.broker(broker) is None and not isinstance(problem[0], ConnectFailed):
                problem[0] = SystemBusy(
                    f"{NOT_MASTER}the route of topic {topic} has no broker {broker!r:.80}: ask for "
                    "the route again"
                )
            master = facts.master(broker)
            if master is None or master in asked:
                continue
            asked.add(master)
            try:
                reply = await self._peers.ask(master, request, timeout_s, late)
            except ConnectFailed as error:
                problem[0] = error
                continue
            if not is_refusal(reply):
                return reply
            refusal = reply
        if refusal is not None:
            return refusal
        raise problem.pop()

    async def to_read(
        self, client: Client, topic: str, broker: str, request: Command, timeout_s: float
    ) -> Command:
        """The answer of a node of this broker to a request that any of its copies can answer: the
        master, and without it a slave."""
        if broker == self._node.broker_name:
            return await client.link.ask(request)
        found = (await self._directory.topic(topic)).route.broker(broker)
        problem: list[SaturnError] = [
            SystemBusy(f"no node of broker {broker} is known now; try again")
        ]
        for _, address in sorted(found.addresses.items() if found is not None else ()):
            try:
                return await self._peers.ask(address, request, timeout_s)
            except (ConnectFailed, ConnectionLost) as error:
                problem[0] = error
        raise problem.pop()


def is_refusal(reply: Command) -> bool:
    """Whether a node refused a request, without a look at it, because it is no master."""
    is_busy = reply.code == ResponseCode.SYSTEM_BUSY
    return is_busy and (reply.remark or "").startswith(NOT_MASTER)
