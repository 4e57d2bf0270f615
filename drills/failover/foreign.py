"""Another cluster with the names of this one: same groups, topic and consumers, other messages. One
of its nodes is started by mistake with the nameservers of this cluster.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from saturnmq import Message, aio
from saturnmq.cli.launcher import LocalCluster, Settings
from saturnmq.drills.failover.workload import GROUPS, QUEUES, TOPIC
from saturnmq.drills.sim.history import make_body

GROUP = "broker-0"
MESSAGES = 6000  # so that its consumers are further than those of this cluster
AT_ONCE = 500
PROMOTIONS = 2  # its epochs are higher than those of this cluster
WHOLE_S = 30.0


class ForeignCluster:
    """A cluster of one nameserver and one group, whose name this cluster has, too."""

    def __init__(self, directory: Path, settings: Settings, chance: random.Random) -> None:
        self._cluster = LocalCluster.up(directory, settings)
        self._chance = chance
        self._master, self._slave = "master-0", "slave-0"

    async def live(self) -> None:
        """Its life before: messages, consumers that have read them all, promotions."""
        nameservers = self._cluster.nameservers
        async with aio.Admin(nameservers=nameservers) as admin:
            await admin.create_topic(TOPIC, queues=QUEUES)
            async with aio.Producer("foreign", nameservers) as producer:
                for first in range(0, MESSAGES, AT_ONCE):
                    values = [f"foreign-{n}" for n in range(first, first + AT_ONCE)]
                    bodies = [(value, make_body(value, 0)) for value in values]
                    messages = [Message(TOPIC, body, keys=value) for value, body in bodies]
                    await asyncio.gather(*map(producer.send, messages))
            for group in GROUPS:
                await admin.create_group(group)
                await admin.reset_offsets(group, TOPIC)
            for _ in range(PROMOTIONS):
                await admin.promote(GROUP, self._cluster.node(self._slave).address)
                self._master, self._slave = self._slave, self._master
                await self._whole(admin)
            await asyncio.sleep(3.0)  # tables follow once a second

    async def _whole(self, admin: aio.Admin) -> None:
        """The old master follows the new one, and may be promoted."""
        async with asyncio.timeout(WHOLE_S):
            while sum(member.caught_up for member in await admin.replicas(GROUP)) < 2:
                await asyncio.sleep(0.05)

    def start_by_mistake(self, nameservers: list[str], ha_address: str, *, master: bool) -> str:
        """Start one of its nodes with these nameservers, by mistake; a slave may also get the
        address to dial."""
        name = self._master if master else self._slave
        self._cluster.down()
        options = {"namesrvAddr": ";".join(nameservers)}
        if not master and self._chance.random() < 0.5:
            options["haMasterAddress"] = ha_address
        self._cluster.settings.broker_options.update(options)
        self._cluster.start(name)
        return name

    def close(self) -> None:
        self._cluster.down()
