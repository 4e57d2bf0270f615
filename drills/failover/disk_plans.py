"""Drills about nodes that come back with less than they had, and about nodes of elsewhere. One disk
of a group loses something at a time, so nothing that has two copies may be lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

from saturnmq.drills.failover import disks
from saturnmq.drills.failover.drill import Drill, DrillRun
from saturnmq.drills.failover.foreign import GROUP
from saturnmq.drills.failover.workload import PADDING

OUTAGE_S = 6.0
HEALED_S = 15.0  # by itself; then an operator replaces the disk
SMALL_SEGMENTS = {"mappedFileSizeCommitLog": 1 << 20}


async def take_down(run: DrillRun, name: str) -> None:
    await run.chance.choice((run.kill, run.stop))(name)


async def bring_back(run: DrillRun, name: str) -> None:
    """Bring a node back, with restarted nameservers, which know of nothing, or with the old
    ones."""
    if run.chance.random() < 0.5:
        await run.kill(*run.nameservers)
        await run.restart(*run.nameservers)
    await run.sleep(1.0)
    await run.restart(name)
    await run.sleep(OUTAGE_S)


async def spoil(run: DrillRun, name: str, what: str, act: Callable[[Path], None]) -> None:
    await take_down(run, name)
    await run.spoil(name, what, act)
    await bring_back(run, name)


async def wipe_master(run: DrillRun) -> None:
    await spoil(run, run.master(run.group()), "all is gone from the disk", disks.empty)


async def lost_mount(run: DrillRun) -> None:
    what = "the commitlog is gone from the disk"
    await spoil(run, run.master(run.group()), what, disks.lose_commitlog)


async def restore_old_copy(run: DrillRun) -> None:
    """A cold copy is of a stopped broker."""
    victim = run.master(run.group())
    cold = run.chance.random() < 0.5
    if cold:
        await run.stop(victim)
    backup = run.backend.directory / "backup"
    await asyncio.to_thread(disks.copy, run.backend.store(victim), backup)
    if cold:
        await run.restart(victim)
    await run.sleep(OUTAGE_S)
    await spoil(run, victim, "an older copy is on the disk", disks.restore(backup))


async def deleted_segment(run: DrillRun) -> None:
    victim = run.master(run.group())
    await run.sleep(OUTAGE_S)  # until there are some
    await run.spoil(victim, "a segment is gone from the disk", disks.delete_segment(run.chance))
    await run.sleep(2.0)
    await take_down(run, victim)
    await bring_back(run, victim)


async def bit_rot_tail(run: DrillRun) -> None:
    """Bit rot at the end of the log of the master or its slave. A node that does not repair it must
    leave all bytes to an operator."""
    group = run.group()
    victim = run.chance.choice((run.master(group), run.slave(group)))
    values = [e.value for e in run.history.events if e.kind == "ok" and e.broker == group]
    flip = disks.flip_bit(run.chance, values, PADDING)
    await spoil(run, victim, "a bit is flipped on the disk", flip)
    if not await run.is_replicated(HEALED_S):
        await run.kill(victim)
        await run.spoil(victim, "a new disk, in place of the damaged one", disks.empty)
        await run.restart(victim)
        await run.sleep(OUTAGE_S)


async def foreign(run: DrillRun, *, master: bool) -> None:
    neighbour = await asyncio.to_thread(run.backend.neighbour, run.chance)
    await neighbour.live()
    kind = "master" if master else "slave"
    await run.strange(
        f"the {kind} of another {GROUP} starts here",
        lambda _name: run.backend.admit(neighbour, run.master(GROUP), master=master),
    )
    await run.sleep(OUTAGE_S)
    await run.gone(f"the {kind} of the other {GROUP} is gone", lambda _name: neighbour.close())
    await run.sleep(2.0)


async def new_slave_power_cut(run: DrillRun) -> None:
    """Cut the power of a master that only the new slave of its group follows: its unflushed bytes
    are lost. The drill asks for the flushed position a moment before; bytes flushed since count as
    damage then."""
    group = run.group()
    master, old = run.master(group), run.slave(group)
    await run.kill(old)
    await run.sleep(1.0)
    await run.add_slave(group)
    taken = len(run.history.events)
    while not any(e.kind == "ok" and e.broker == group for e in run.history.events[taken:]):
        await asyncio.sleep(0.01)
    await asyncio.sleep(run.chance.uniform(0.0, 0.3))
    flushed = await run.flushed(master)
    await run.kill(master)
    await run.spoil(master, f"the disk has nothing behind {flushed}", disks.cut(flushed))
    await run.restart(old, master)
    await run.sleep(OUTAGE_S)


DISK_DRILLS = (
    Drill("wipe-master", "the disk of a master is empty when it starts again", wipe_master,
          ("disk",), needs_copies=True),
    Drill("lost-mount", "the commitlog of a master is gone when it starts again", lost_mount,
          ("disk",), needs_copies=True),
    Drill("restore-old-copy", "an older copy of its disk is restored to a master",
          restore_old_copy, ("disk",), needs_copies=True),
    Drill("deleted-segment", "a file of its log is deleted under a master", deleted_segment,
          ("disk",), needs_copies=True, padding=2000, broker_options=SMALL_SEGMENTS),
    Drill("bit-rot-tail", "a bit flips in the newest 4 MiB of the log of a master or slave",
          bit_rot_tail, ("disk",), needs_copies=True),
    Drill("foreign-slave", "a slave of another cluster is started with these nameservers",
          partial(foreign, master=False), ("neighbour",)),
    Drill("foreign-master", "a master of another cluster is started with these nameservers",
          partial(foreign, master=True), ("neighbour",)),
    Drill("new-slave-power-cut", "a master loses its power when a new slave has just joined",
          new_slave_power_cut, ("disk", "neighbour"), needs_copies=True),
)  # fmt: skip
