"""The drills: which faults are made when. All random values are drawn from the seed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from saturnmq.drills.failover.backend import CLIENTS, Backend
from saturnmq.drills.failover.checker import DrillVerdict
from saturnmq.drills.failover.disk_plans import DISK_DRILLS
from saturnmq.drills.failover.drill import Drill, DrillRun, together
from saturnmq.drills.failover.election_plans import (
    ELECTION_DRILLS,
    etcd_away,
    etcd_leader_parted,
    master_without_etcd,
)
from saturnmq.drills.semantics.drill import BROKER_OPTIONS
from saturnmq.drills.semantics.drill import live as live_semantics

OUTAGE_S = 6.0
PAUSE_S = 30.0
# A log that rolls while its disk is full, and of which nothing is deleted to make room.
SMALL_SEGMENTS = {"mappedFileSizeCommitLog": 1 << 20, "cleanFileForciblyEnable": False}


async def kill_master(run: DrillRun) -> None:
    victim = run.master(run.group())
    await run.kill(victim)
    await run.sleep(OUTAGE_S)
    await run.restart(victim)


async def fail_over(run: DrillRun) -> None:
    group = run.group()
    old, new = run.master(group), run.slave(group)
    lags = run.backend.why_not("partition") is None and run.chance.random() < 0.5
    if lags:  # the slave gets what it lacks now only when the old master is back
        await run.cut(old, new)
        await run.sleep(2.0)
    await run.kill(old)
    if lags:
        await run.join()
    await run.sleep(2.0)
    await run.succeed(old, new)
    await run.sleep(OUTAGE_S)
    await run.restart(old)
    await run.sleep(2.0)


async def kill_slave(run: DrillRun) -> None:
    victim = run.slave(run.group())
    await run.kill(victim)
    await run.sleep(OUTAGE_S)
    await run.restart(victim)


async def kill_nameserver(run: DrillRun) -> None:
    victim = run.chance.choice(run.nameservers)
    await run.kill(victim)
    await run.sleep(OUTAGE_S)
    await run.restart(victim)


async def kill_all_nameservers(run: DrillRun) -> None:
    await run.kill(*run.nameservers)
    await run.sleep(OUTAGE_S)
    await run.restart(*run.nameservers)


async def pause_master(run: DrillRun) -> None:
    group = run.group()
    old, new = run.master(group), run.slave(group)
    await run.pause(old)
    await run.sleep(4.0)
    await run.succeed(old, new)
    await run.sleep(PAUSE_S - 4.0, jitter=0.05)
    await run.resume(old)
    await run.sleep(3.0)


async def partition_slave(run: DrillRun) -> None:
    group = run.group()
    await run.cut(run.master(group), run.slave(group))
    await run.sleep(OUTAGE_S)
    await run.join()


async def partition_clients(run: DrillRun) -> None:
    await run.cut(run.master(run.group()), CLIENTS)
    await run.sleep(OUTAGE_S)
    await run.join()


async def partition_one_way(run: DrillRun) -> None:
    group = run.group()
    master, slave = run.master(group), run.slave(group)
    ways = [(master, slave), (slave, master), (master, CLIENTS), (CLIENTS, master)]
    source, target = run.chance.choice(ways)
    await run.cut(source, target, one_way=True)
    await run.sleep(OUTAGE_S)
    await run.join()


async def isolate_master(run: DrillRun) -> None:
    group = run.group()
    old, new = run.master(group), run.slave(group)
    everybody = [n for n in (*run.brokers, *run.nameservers, *run.etcds) if n != old]
    await run.cut(old, *everybody, CLIENTS)
    await run.sleep(3.0)
    await run.succeed(old, new)
    await run.sleep(OUTAGE_S)
    await run.join()
    await run.sleep(3.0)


async def slow_slave(run: DrillRun) -> None:
    victim = run.slave(run.group())
    await run.slow(victim, run.chance.choice((0.02, 0.1, 0.3)))
    await run.sleep(8.0)
    await run.quick(victim)


async def disk_full(run: DrillRun) -> None:
    victim = run.chance.choice(run.brokers)
    await run.fill_disk(victim)
    await run.sleep(8.0)
    await run.free_disk(victim)


async def wipe_slave(run: DrillRun) -> None:
    victim = run.slave(run.group())
    await run.kill(victim)
    await run.wipe(victim)
    await run.sleep(2.0)
    await run.restart(victim)
    await run.sleep(3.0)


async def rolling_restart(run: DrillRun) -> None:
    for group in run.groups:
        for name in (*run.slaves(group), run.master(group)):
            await run.stop(name)
            await run.restart(name)
            await run.sleep(1.5)
    for name in run.nameservers:
        await run.stop(name)
        await run.restart(name)
        await run.sleep(1.0)


async def rolling_upgrade(run: DrillRun) -> None:
    await run.upgrade()


async def clock_jump(run: DrillRun) -> None:
    victim = run.chance.choice(run.brokers + run.nameservers)
    seconds = run.chance.choice((-3600.0, -30.0, 30.0, 3600.0))
    await run.shift_clock(victim, seconds)
    await run.sleep(OUTAGE_S)
    await run.right_clock(victim)


async def administration(run: DrillRun) -> None:
    """Twice: one node of a group dies while the operator works."""
    for pick in (run.master, run.chance.choice((run.master, run.slave))):
        await run.sleep(2.0)
        victim = pick(run.group())
        await run.kill(victim)
        await run.sleep(3.0)
        await run.restart(victim)
        await run.sleep(3.0)


async def clocks(run: DrillRun) -> None:
    """The clocks of all brokers step, both ways and by little or much, one after the other."""
    steps = (-3600.0, -30.0, -0.02, 0.02, 30.0, 3600.0)
    for name in run.chance.sample(run.brokers, len(run.brokers)):
        for seconds in run.chance.sample(steps, 2):
            await run.shift_clock(name, seconds)
            await run.sleep(2.0)
        await run.right_clock(name)


async def power_cut(run: DrillRun) -> None:
    everything = (*run.etcds, *run.nameservers, *run.brokers)
    await run.kill(*everything)
    await run.sleep(1.0)
    await run.restart(*everything)


async def promote(run: DrillRun) -> None:
    group = run.group()
    old, new = run.master(group), run.slave(group)
    await run.promote(group, new, planned=True)
    await run.sleep(5.0)
    await run.promote(group, old, planned=True)
    await run.sleep(3.0)


def pipeline(
    backend: Backend, directory: Path, seed: int, say: Callable[[str], None]
) -> DrillVerdict:
    from saturnmq.drills.pipeline.workload import live  # needs what the others do not: pyarrow

    return live(backend, directory, seed, say)


async def random_mix(run: DrillRun) -> None:
    """Faults for `minutes`, drawn from the seed, with quiet between them: of the whole cluster, of
    one group, or of all groups at once, then maybe with a nameserver gone as well."""
    of_cluster = [kill_nameserver, kill_all_nameservers, power_cut]
    of_group = [kill_master, fail_over, promote, kill_slave, slow_slave, wipe_slave]
    if run.backend.why_not("partition") is None:
        of_group += [partition_slave, partition_clients, partition_one_way, isolate_master]
    if run.elects:
        of_cluster.append(etcd_away)
    if run.elects and run.backend.why_not("partition") is None:
        of_cluster.append(etcd_leader_parted)
        of_group.append(master_without_etcd)
    end = run.history.now() + 60.0 * run.minutes
    while run.history.now() < end:
        kind = run.chance.choice(("cluster", "group", "groups", "groups"))
        if kind == "cluster":
            await run.chance.choice(of_cluster)(run)
        elif kind == "group":
            await run.chance.choice(of_group)(run)
        else:
            acts = [run.chance.choice(of_group)(run.within(group)) for group in run.groups]
            if run.chance.random() < 0.5:
                acts.append(kill_nameserver(run))
            await together(*acts)
        await run.sleep(4.0, jitter=0.5)


_ALL = (
    Drill("kill-master", "SIGKILL a master, start it again", kill_master),
    Drill("fail-over", "SIGKILL a master, promote its slave (which may lag), start the old one",
          fail_over, optional=("partition",), leaves_behind=True),
    Drill("promote", "hand the master's role to the slave under load, and back", promote),
    Drill("kill-slave", "SIGKILL a slave, start it again", kill_slave),
    Drill("kill-nameserver", "SIGKILL one nameserver", kill_nameserver),
    Drill("kill-all-nameservers", "SIGKILL all nameservers; they come back empty",
          kill_all_nameservers),
    Drill("pause-master", "SIGSTOP a master for 30 s, promote its slave meanwhile", pause_master,
          leaves_behind=True),
    Drill("partition-slave", "no packets between a master and its slave", partition_slave,
          ("partition",)),
    Drill("partition-clients", "no packets between a master and all clients", partition_clients,
          ("partition",)),
    Drill("partition-one-way", "packets pass one way only, to or from a master",
          partition_one_way, ("partition",)),
    Drill("isolate-master", "a master is cut off from everybody, its slave is promoted",
          isolate_master, ("partition",), leaves_behind=True),
    Drill("slow-slave", "a slave runs for 2 to 30 % of the time", slow_slave, ("slow",)),
    Drill("disk-full", "the disk of a master or slave is full", disk_full, ("full-disk",),
          padding=2000, broker_options=SMALL_SEGMENTS),
    Drill("wipe-slave", "SIGKILL a slave, delete its store, start it again", wipe_slave,
          ("wipe",)),
    Drill("rolling-restart", "stop and start every node in order", rolling_restart),
    Drill("rolling-upgrade", "every node restarted by `cluster upgrade --rolling`", rolling_upgrade,
          ("upgrade",), slaves=2, steady=True),
    Drill("clock-jump", "the wall clock of a node jumps by up to an hour, and back", clock_jump,
          ("clock",)),
    Drill("administration",
          "SIGKILL nodes while topics, queues, offsets and members change; delays, retries",
          administration, chores=True),
    Drill("clocks", "the wall clocks of all brokers step both ways under delays and retries",
          clocks, ("clock",), chores=True),
    Drill("power-cut", "SIGKILL everything at once, start everything", power_cut),
    Drill("random-mix", "one or several faults at a time, drawn from the seed", random_mix,
          ("wipe", "slow"), optional=("partition",), leaves_behind=True),
    Drill("pipeline", "SIGKILL driver, worker and broker while Spark archives, replays and streams",
          None, ("spark",), live=pipeline),
    Drill("semantics", "SIGKILL a master every 10 s under 200,000 messages of every kind",
          None, broker_options=BROKER_OPTIONS, live=live_semantics),
    *DISK_DRILLS,
    *ELECTION_DRILLS,
)  # fmt: skip

DRILLS = {drill.name: drill for drill in _ALL}
