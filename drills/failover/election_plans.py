"""Drills about groups that elect their masters, and about the etcd that they do it through."""

from __future__ import annotations

import asyncio

from saturnmq.drills.failover.drill import ELECTED_S, Drill, DrillRun

OUTAGE_S = 6.0  # an etcd without its leader has another one within 2 s, a lease of 3 s is over


async def etcd_one_by_one(run: DrillRun) -> None:
    for name in run.chance.sample(run.etcds, len(run.etcds)):
        await run.kill(name)
        await run.sleep(3.0)
        await run.restart(name)
        await run.sleep(1.0)


async def etcd_away(run: DrillRun) -> None:
    """Every other seed it is paused: connections to it stay."""
    if run.chance.random() < 0.5:
        await run.kill(*run.etcds)
        await run.sleep(OUTAGE_S)
        await run.restart(*run.etcds)
    else:
        await asyncio.gather(*map(run.pause, run.etcds))
        await run.sleep(OUTAGE_S)
        await asyncio.gather(*map(run.resume, run.etcds))
    await run.sleep(3.0)


async def etcd_leader_parted(run: DrillRun) -> None:
    """Part etcd's leader from its other members; every broker still reaches both sides."""
    leader = await run.etcd_leader()
    await run.cut(leader, *(name for name in run.etcds if name != leader))
    await run.sleep(OUTAGE_S)
    await run.join()
    await run.sleep(3.0)


async def etcd_no_quorum(run: DrillRun) -> None:
    """A master dies while one member of three is left, so its successor waits for a second one."""
    old = run.master(run.group())
    gone = run.chance.sample(run.etcds, 2)
    await run.kill(*gone)
    await run.sleep(1.0)
    await run.kill(old)
    await run.sleep(OUTAGE_S)
    await run.restart(gone[0])
    await run.succeed(old)
    await run.sleep(2.0)
    await run.restart(gone[1], old)
    await run.sleep(2.0)


async def master_without_etcd(run: DrillRun) -> None:
    await run.cut(run.master(run.group()), *run.etcds)
    await run.sleep(OUTAGE_S)
    await run.join()


async def master_in_minority(run: DrillRun) -> None:
    """Part a master, etcd's leader and a nameserver from the other members, nameservers and slaves,
    but not from clients; those that ask this nameserver hear of no other master."""
    group = run.group()
    old, leader = run.master(group), await run.etcd_leader()
    nameserver = run.chance.choice(run.nameservers)
    here = (old, leader, nameserver)
    there = [n for n in (*run.etcds, *run.nameservers, *run.slaves(group)) if n not in here]
    await run.cut(leader, *there)
    await run.cut(nameserver, *there)
    await run.cut(old, *there)
    await run.succeed(old)
    await run.sleep(OUTAGE_S)
    await run.join()
    await run.sleep(3.0)


ELECTION_DRILLS = tuple(
    drill.with_elections()
    for drill in (
        Drill("etcd-one-by-one", "SIGKILL each member of the etcd, and start it again",
              etcd_one_by_one, steady=True),
        Drill("etcd-away", "SIGKILL or SIGSTOP the whole etcd", etcd_away, steady=True),
        Drill("etcd-leader-parted", "the leader of the etcd is cut off from its other members",
              etcd_leader_parted, ("partition",), steady=True),
        Drill("etcd-no-quorum", "SIGKILL two of three members of the etcd, then a master",
              etcd_no_quorum),
        Drill("master-without-etcd", "a master is cut off from the etcd only",
              master_without_etcd, ("partition",), steady=True),
        Drill("master-in-minority",
              "a master, a nameserver and the leader of the etcd are cut off, but not from clients",
              master_in_minority, ("partition",), lone_s=ELECTED_S),
    )
)  # fmt: skip
