"""Real processes and a real etcd: a group that loses its master goes on by itself.

A producer sends while the master is killed or stopped. Nobody promotes anybody. What was
acknowledged before, meanwhile and afterwards is read from the new master.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cluster_rig import check_loops, make_topic, read_all, running
from etcd_rig import need_etcd, running_etcd
from saturnmq import Admin, Message, Producer, SaturnError
from saturnmq.broker.replication.election import SETTLE_S
from saturnmq.cli import local_etcd
from saturnmq.cli.free_ports import free_block
from saturnmq.cli.launcher import STATE_FILE, LocalCluster, Node, Settings
from saturnmq.client.producer.results import SendStatus
from saturnmq.drills.failover.processes import SMALL_FILES

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]
GOES_ON_S = 30.0


@pytest.fixture(autouse=True)
def _etcd() -> None:
    need_etcd()


def wait_until(condition: Callable[[], Any], what: str, seconds: float = GOES_ON_S) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not after {seconds:g} s: {what}"
        time.sleep(0.05)


def send(producer: Producer, number: int, acked: list[bytes]) -> bool:
    body = b"%06d" % number
    try:
        result = producer.send(Message("T", body))
    except SaturnError:
        return False
    if result.status is SendStatus.OK:
        acked.append(body)
        return True
    return False


def send_some(producer: Producer, acked: list[bytes], count: int, number: int) -> int:
    """Until so many more are acknowledged; the number of the next message."""
    wanted = len(acked) + count
    deadline = time.monotonic() + GOES_ON_S
    while len(acked) < wanted:
        assert time.monotonic() < deadline, f"{len(acked)} of {wanted} are acknowledged"
        send(producer, number, acked)
        number += 1
    return number


def ready(admin: Admin) -> bool:
    return all(replica.no_failover == "" for replica in admin.replicas())


@pytest.mark.parametrize(
    ("replication", "slaves", "how"),
    [("sync", 2, signal.SIGKILL), ("async", 1, signal.SIGKILL), ("async", 1, signal.SIGSTOP)],
)
def test_sends_go_on_by_themselves_when_the_master_is_gone(
    tmp_path: Path, replication: str, slaves: int, how: signal.Signals
) -> None:
    acked: list[bytes] = []
    with running_etcd(tmp_path) as etcd:
        settings = Settings(
            slaves=slaves, replication=replication, broker_options={"etcdEndpoints": etcd.endpoint}
        )
        with running(tmp_path / "cluster", settings) as cluster:
            make_topic(cluster, "T", 2)
            old = cluster.node("master-0")
            with (
                Admin(cluster.nameservers) as admin,
                Producer("P", nameservers=cluster.nameservers) as producer,
            ):
                number = send_some(producer, acked, 50, 0)
                wait_until(lambda: ready(admin), "a fail-over is possible")
                if replication == "async":  # what only the master has is lost with it
                    wait_until(lambda: lags(admin) == {0}, "the slave has all of it")
                if how is signal.SIGKILL:
                    cluster.kill(old.name)
                else:
                    cluster._signal(old, how)
                number = send_some(producer, acked, 50, number)
                leads = [r for r in admin.replicas() if r.is_master]
                assert [r.address for r in leads] != [old.address]
                assert leads[0].epoch > 200_000
                if how is signal.SIGKILL:
                    cluster.start(old.name)
                else:
                    cluster._signal(old, signal.SIGCONT)
                wait_until(
                    lambda: any(
                        r.address == old.address and r.role == "slave" for r in admin.replicas()
                    ),
                    "the old master follows the new one",
                )
                wait_until(lambda: ready(admin), "the next fail-over is possible")
                send_some(producer, acked, 50, number)
            lost = set(acked) - read_all(cluster, set(acked))
            assert not lost, f"{len(lost)} of {len(acked)}: {sorted(lost)[:5]}"


def lags(admin: Admin) -> set[int | None]:
    return {replica.lag_bytes for replica in admin.replicas() if replica.role == "slave"}


def test_a_master_goes_on_without_etcd_while_its_slave_follows_it(tmp_path: Path) -> None:
    acked: list[bytes] = []
    with running_etcd(tmp_path) as etcd:
        options = {"etcdEndpoints": etcd.endpoint}
        settings = Settings(slaves=1, replication="async", broker_options=options)
        with running(tmp_path / "cluster", settings) as cluster:
            make_topic(cluster, "T", 2)
            with (
                Admin(cluster.nameservers) as admin,
                Producer("P", nameservers=cluster.nameservers) as producer,
            ):
                number = send_some(producer, acked, 10, 0)
                wait_until(lambda: ready(admin), "a fail-over is possible")
                etcd.kill()
                wait_until(
                    lambda: all(
                        "etcd does not answer" in (replica.no_failover or "")
                        for replica in admin.replicas()
                    ),
                    "both nodes say that none is",
                )
                number = send_some(producer, acked, 50, number)
                cluster.kill("slave-0")  # who could be elected, were etcd back: nobody knows
                wait_until(
                    lambda: not send(producer, number, []), "no acknowledgement without it", 10
                )
                (alone,) = [replica for replica in admin.replicas() if replica.is_master]
                assert "could be elected" in alone.refuses
                etcd.start()
                wait_until(lambda: send(producer, number, acked), "acknowledged with a lease")
                cluster.start("slave-0")
                wait_until(lambda: ready(admin), "the next fail-over is possible")
            assert set(acked) <= read_all(cluster, set(acked))


def saturnmq(*words: str) -> Any:
    """What the command prints with --json."""
    command = [sys.executable, "-m", "saturnmq.cli.main", *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return json.loads(done.stdout) if done.stdout else done.stderr


def test_cluster_up_starts_an_etcd_beside_its_nodes(tmp_path: Path) -> None:
    data = ("--data", str(tmp_path / "cluster"))
    small = [word for key, value in SMALL_FILES.items() for word in ("--set", f"{key}={value}")]
    up = ("cluster", "up", "--slaves", "2", "--election", *small, *data)

    def leaders(told: Any) -> list[str]:
        return [node["name"] for node in told["nodes"] if node["role"] == "master"]

    try:
        assert leaders(saturnmq(*up)) == ["master-0"]
        cluster = LocalCluster.load(tmp_path / "cluster")
        assert {node.kind for node in cluster.nodes} == {"nameserver", "master", "slave", "etcd"}
        make_topic(cluster, "T", 2)
        with Producer("P", nameservers=cluster.nameservers) as producer:
            send_some(producer, [], 1, 0)
        with Admin(cluster.nameservers) as admin:
            wait_until(lambda: ready(admin), "a fail-over is possible")
            saturnmq("cluster", "kill", "master-0", *data)
            wait_until(
                lambda: leaders(saturnmq("cluster", "status", *data)) not in ([], ["master-0"]),
                "another one leads",
            )
        saturnmq("cluster", "down", *data)
        assert not any(node.alive() for node in cluster.nodes)
        again = saturnmq(*up)
        assert len(leaders(again)) == 1
        with Admin(cluster.nameservers) as admin:
            wait_until(lambda: ready(admin), "etcd is the one of before")
        saturnmq("cluster", "down", *data)
        check_loops(tmp_path / "cluster")
        assert "an etcd of its own" in saturnmq("cluster", "up", "--slaves", "2", *data)
    finally:
        saturnmq("cluster", "down", *data)
        shutil.rmtree(tmp_path / "cluster", ignore_errors=True)


def test_an_etcd_of_three_survives_the_loss_of_its_leader(tmp_path: Path) -> None:
    port = free_block("127.0.0.1", 3 * local_etcd.PORTS)
    names = [f"etcd-{number}" for number in range(3)]
    nodes = [
        Node(name, "etcd", "127.0.0.1", port + number * local_etcd.PORTS, str(tmp_path / name))
        for number, name in enumerate(names)
    ]
    state = {"settings": {"election": True, "etcds": 3}, "nodes": [vars(node) for node in nodes]}
    (tmp_path / STATE_FILE).write_text(json.dumps(state))
    cluster = LocalCluster.load(tmp_path)

    def leaders() -> list[str]:
        return [node.name for node in nodes if local_etcd.leads(node.host, node.port)]

    try:
        for name in names:  # the first waits for nobody, the second for the first
            cluster.start(name)
        wait_until(leaders, "one leads")
        (old,) = leaders()
        cluster.kill(old)
        wait_until(lambda: leaders() not in ([], [old]), "another one leads")
        cluster.start(old)
        assert all(local_etcd.is_healthy(node.host, node.port) for node in nodes)
    finally:
        cluster.down()


def test_a_preferred_slave_takes_over_from_a_living_master(tmp_path: Path) -> None:
    acked: list[bytes] = []
    with running_etcd(tmp_path) as etcd:
        settings = Settings(
            slaves=1,
            replication="async",  # what is lost here is lost by the hand-over
            broker_options={"etcdEndpoints": etcd.endpoint},
            prefixes={"slave-0": ["env", "SATURNMQ_ELECTION_PRIORITY=1"]},
        )
        with running(tmp_path / "cluster", settings) as cluster:
            make_topic(cluster, "T", 2)
            preferred = cluster.node("slave-0").address
            with (
                Admin(cluster.nameservers) as admin,
                Producer("P", nameservers=cluster.nameservers) as producer,
            ):
                number = 0
                deadline = time.monotonic() + SETTLE_S + GOES_ON_S
                while not any(r.is_master and r.address == preferred for r in admin.replicas()):
                    assert time.monotonic() < deadline, "the preferred one does not lead"
                    number = send_some(producer, acked, 20, number)
                send_some(producer, acked, 20, number)
                wait_until(lambda: ready(admin), "the other one follows")
            lost = set(acked) - read_all(cluster, set(acked))
            assert not lost, f"{len(lost)} of {len(acked)}: {sorted(lost)[:5]}"


def test_an_etcd_that_lost_its_past_is_refused_until_an_operator_says_otherwise(
    tmp_path: Path,
) -> None:
    with running_etcd(tmp_path) as etcd:
        options = {"etcdEndpoints": etcd.endpoint}
        settings = Settings(slaves=1, replication="sync", broker_options=options)
        with running(tmp_path / "cluster", settings) as cluster:
            make_topic(cluster, "T", 2)

            def refused(admin: Admin) -> bool:
                told = [replica.no_failover or "" for replica in admin.replicas()]
                return len(told) == 2 and all("config/election.json" in each for each in told)

            with (
                Admin(cluster.nameservers) as admin,
                Producer("P", nameservers=cluster.nameservers) as producer,
            ):
                send_some(producer, [], 5, 0)
                wait_until(lambda: ready(admin), "a fail-over is possible")
                files = [
                    Path(cluster.node(name).data) / "store/config/election.json"
                    for name in ("master-0", "slave-0")
                ]
                wait_until(lambda: all(file.exists() for file in files), "its past is noted")
                etcd.kill()
                etcd.wipe()
                etcd.start()
                wait_until(lambda: refused(admin), "both nodes refuse it")
                send_some(producer, [], 5, 5)
                for name in ("slave-0", "master-0"):
                    cluster.restart(name)
                wait_until(lambda: refused(admin), "after a restart, too")
                for name, file in zip(("master-0", "slave-0"), files, strict=True):
                    cluster.stop(name)
                    for each in file.parent.glob("election.json*"):
                        each.unlink()
                for name in ("master-0", "slave-0"):
                    cluster.start(name)
                wait_until(lambda: ready(admin), "a fail-over is possible again")
                send_some(producer, [], 5, 10)


def test_a_group_that_elects_its_masters_goes_on_after_an_operators_hand_over(
    tmp_path: Path,
) -> None:
    acked: list[bytes] = []
    with running_etcd(tmp_path) as etcd:
        options = {"etcdEndpoints": etcd.endpoint}
        settings = Settings(slaves=1, replication="async", broker_options=options)
        with running(tmp_path / "cluster", settings) as cluster:
            make_topic(cluster, "T", 2)
            with (
                Admin(cluster.nameservers) as admin,
                Producer("P", nameservers=cluster.nameservers) as producer,
            ):
                number = send_some(producer, acked, 20, 0)
                wait_until(lambda: ready(admin), "a fail-over is possible")
                result = admin.hand_over("broker-0")
                assert result.master == cluster.node("slave-0").address
                number = send_some(producer, acked, 20, number)
                assert len(acked) == number, "a send has failed"
                wait_until(lambda: ready(admin), "etcd knows the new master")
                wait_until(lambda: lags(admin) == {0}, "the old one has all of it")
                cluster.kill("slave-0")
                number = send_some(producer, acked, 20, number)
                leads = [each.address for each in admin.replicas() if each.is_master]
                assert leads == [cluster.node("master-0").address]
                cluster.start("slave-0")
                wait_until(lambda: ready(admin), "the next fail-over is possible")
            lost = set(acked) - read_all(cluster, set(acked))
            assert not lost, f"{len(lost)} of {len(acked)}: {sorted(lost)[:5]}"
