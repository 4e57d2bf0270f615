"""Disks of brokers that lose what they had: replaced, not mounted, an older copy, damaged (F16).

One node of a group at a time: before another one's disk loses something, all of them have been seen
with all of their log. So one copy at least of everything stays, and nothing that was acknowledged
with more than one may be lost. Wherever the nameservers could help they may be restarted, too. They
run on where a master that waits for nobody gets an older or an empty disk: if no slave has followed
its last epoch, nobody remembers that, and it opens it again; who had read in the first one goes on
behind as many new messages. One with an empty disk may even make a group of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from saturnmq.drills.sim.nodes import SimBroker
from saturnmq.drills.sim.pages import PowerCutOdds

if TYPE_CHECKING:
    from saturnmq.drills.sim.faults import Faults

ALL_OF_IT = PowerCutOdds(kept=1.0, torn=0.0, names=1.0)
NEWEST = 3  # segments in which bits rot
HEADER = 60  # bytes before a body that are its frame's for sure
ATTEMPTS = range(13, 17)  # of those: how often it was sent back, which no checksum protects


class Amnesia:
    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._cluster = faults.cluster
        self._rng = faults.rng
        self.kinds: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "wipe_master": self._wipe_master,
            "lose_commitlog": self._lose_commitlog,
            "restore_old_copy": self._restore_old_copy,
            "delete_segment": self._delete_segment,
            "bit_rot": self._bit_rot,
        }

    def _victim(self, masters_only: bool = False) -> SimBroker | None:
        node = self._faults.victim(masters_only=masters_only)
        if node is None or not self._faults.may_age(node):
            return None
        node.busy = node.ageing = True
        return node

    async def _wipe_master(self) -> None:
        if node := self._victim(masters_only=True):
            await self._take_down(node)
            remembered = self._cluster.plan.copies == 1
            await self._bring_back(node, "master wiped", node.wipe, remembered=remembered)

    async def _lose_commitlog(self) -> None:
        if node := self._victim():
            await self._take_down(node)
            await self._bring_back(node, "commitlog lost", node.lose_commitlog)

    async def _restore_old_copy(self) -> None:
        """Cold copies are of stopped brokers; a hot one is what a power loss would have left."""
        if node := self._faults.victim():
            cold = self._rng.random() < 0.5
            if cold:
                node.busy = True
                await node.stop()
                image = node.disk.crash_image(self._rng, ALL_OF_IT)
                await self._faults.bring_back(node)
            else:
                image = node.disk.crash_image(self._rng)
            self._faults.note("copy of a disk", f"{node.name} {'cold' if cold else 'hot'}")
            await self._faults.last(self._rng.uniform(0.0, self._cluster.plan.safety_s / 2))
            if not node.up or node.busy or not self._faults.may_age(node):
                return
            node.busy = node.ageing = True
            await self._take_down(node)
            remembered = self._cluster.plan.copies == 1
            change = partial(node.go_back_to, image)
            await self._bring_back(node, "older copy restored", change, remembered=remembered)

    async def _delete_segment(self) -> None:
        """Under the running broker, or while it is down."""
        if node := self._victim():
            if self._rng.random() < 0.5:
                await self._delete(node)
                self._faults.note("segment deleted", f"{node.name}, running")
                await self._faults.last(self._rng.choice((0.1, 2.0, 10.0)))
                await self._take_down(node)
                node.age()  # until now it had all in its mappings
                await self._bring_back(node)
            else:
                await self._take_down(node)
                await self._bring_back(node, "segment deleted", partial(self._delete, node))

    async def _delete(self, node: SimBroker) -> None:
        if segments := node.segments():
            node.age()
            node.disk.lose(self._rng.choice(segments))

    async def _bit_rot(self) -> None:
        if node := self._victim():
            await self._take_down(node)
            await self._bring_back(node, "bit flipped", partial(self._flip, node))

    async def _flip(self, node: SimBroker) -> None:
        """Flip a bit in the frame of an acknowledged message that another log has in the same
        place. A copy that the broker made of a message may be on one disk only."""
        others = [each for each in self._cluster.nodes_of(node.group) if each is not node]
        marks = [b"%s|" % value.encode() for value in sorted(self._cluster.history.acked, key=str)]
        for path in node.segments()[-NEWEST:]:
            content = node.disk.content(path)
            copies = [each.disk.content(path) for each in others if path in each.segments()]
            found = [
                at
                for mark in marks
                if (at := content.find(mark)) > HEADER
                and any(copy.startswith(mark, at) for copy in copies)
            ]
            if found:
                node.age()
                before = [n for n in range(-8, HEADER) if n not in ATTEMPTS]
                position = self._rng.choice(found) - self._rng.choice(before)
                node.disk.flip(path, position, self._rng.randrange(8))
                return

    # the machine

    async def _take_down(self, node: SimBroker) -> None:
        way = self._rng.choice(("killed", "power", "stopped"))
        if way == "stopped":
            await node.stop()
        elif way == "power":
            node.lose_power()
        else:
            node.kill()

    async def _bring_back(
        self,
        node: SimBroker,
        kind: str = "",
        change: Callable[[], Coroutine[Any, Any, None]] | None = None,
        *,
        remembered: bool = False,
    ) -> None:
        """`remembered`: the nameservers run on, and one knows the group; else the disk stays."""

        async def lose() -> None:
            if remembered and not self._faults.is_remembered(node):
                return
            if change is not None:
                await change()
                self._faults.note(kind, node.name)
            if self._rng.random() < 0.4 and not remembered:
                await self._faults.restart(self._cluster.nameservers, 0.0)

        await self._faults.bring_back(node, lose)
        node.ageing = False
