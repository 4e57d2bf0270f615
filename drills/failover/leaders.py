"""The present master of each group, according to its nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from saturnmq.client.admin.replicas import Replica, ask_state
from saturnmq.client.core import ClientCore
from saturnmq.drills.failover.backend import BROKER, NAMESERVER, DrillNode
from saturnmq.drills.failover.history import History
from saturnmq.runtime.door import Runtime
from saturnmq.runtime.errors import SaturnError

LOOK_S = 0.2
ASK_S = 1.0
READY_S = 30.0


class Leaders:
    """Asks every node again and again, and writes down each new master."""

    def __init__(self, runtime: Runtime, nodes: Sequence[DrillNode], history: History) -> None:
        self._core = ClientCore(runtime, [n.address for n in nodes if n.kind == NAMESERVER])
        self._brokers = [node for node in nodes if node.kind == BROKER]
        self._history = history
        self._states: dict[str, Replica | None] = {node.name: None for node in self._brokers}
        self._epochs: dict[str, int] = {}
        # By group; in the beginning those that are configured.
        self.names = {n.group: n.name for n in self._brokers if not n.broker_id}

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as asking:
                for node in self._brokers:
                    asking.create_task(self._watch(node))
        finally:
            await self._core.close()

    async def until_ready(self) -> None:
        """Wait until every node says that its group can elect another master."""
        async with asyncio.timeout(READY_S):
            while not all(s is not None and s.no_failover == "" for s in self._states.values()):
                await asyncio.sleep(LOOK_S)

    async def _watch(self, node: DrillNode) -> None:
        while True:
            try:
                state = await ask_state(self._core, node.address, ASK_S)
            except SaturnError:
                state = None
            self._states[node.name] = state
            if state is not None and state.is_master:
                self._leads(node, state.epoch)
            await asyncio.sleep(LOOK_S)

    def _leads(self, node: DrillNode, epoch: int) -> None:
        if epoch > self._epochs.get(node.group, 0):
            self._epochs[node.group] = epoch
            self.names[node.group] = node.name
            self._history.add("leads", node.name, broker=node.group, note=f"epoch {epoch}")
