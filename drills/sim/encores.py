"""The last part of each scene: what it orders on a cluster without faults has to be done soon."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from saturnmq.drills.sim.plan import LIVENESS_S
from saturnmq.drills.sim.scenes.scene import Scene

if TYPE_CHECKING:
    from saturnmq.drills.sim.cluster import SimCluster

LOOK_S = 0.5  # a look reads the logs


async def play(cluster: SimCluster) -> None:
    """Let scenes play their last part, without faults, when all their messages have come."""
    if not cluster.scenes or cluster.in_trouble():
        return
    for scene in cluster.scenes:
        await _until_done(cluster, scene)
    if cluster.in_trouble():
        return
    for scene in cluster.scenes:
        try:
            async with asyncio.timeout_at(cluster.since() + scene.patience_s):
                await scene.encore()
        except TimeoutError:
            cluster.problems.append(
                f"I12 {scene.topic}: what its encore orders is not done after "
                f"{scene.patience_s:g} s without a fault"
            )
            return
    # A message that was acknowledged at this very moment may have no queue entry yet.
    await _until_caught_up(cluster)
    for scene in cluster.scenes:
        await _until_done(cluster, scene)
    await _until_caught_up(cluster)


async def _until_done(cluster: SimCluster, scene: Scene) -> None:
    since = cluster.since()
    while missing := scene.waits_for():
        if cluster.loop.time() - since > scene.patience_s:
            cluster.problems.append(
                f"I12 {scene.topic}: still waits for {missing} after {scene.patience_s:g} s "
                "without a fault"
            )
            return
        await asyncio.sleep(LOOK_S)


async def _until_caught_up(cluster: SimCluster) -> None:
    deadline = cluster.since() + LIVENESS_S
    while not cluster.caught_up():
        if cluster.loop.time() > deadline:
            cluster.problems.append(f"I12 {LIVENESS_S:g} s after the encores: slaves lag")
            return
        await asyncio.sleep(0.1)
