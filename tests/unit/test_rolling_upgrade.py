"""`cluster upgrade --rolling` against a cluster that is only told of: its order, and how it ends
when a node cannot be spared, does not start or does not come back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from saturnmq.cli.launcher import LauncherError, LocalCluster, Node, Settings
from saturnmq.cli.main import app
from saturnmq.cli.rolling import Upgrade
from saturnmq.client.admin.handover import Drained
from saturnmq.client.admin.replicas import Replica
from saturnmq.runtime.errors import NoPermission
from typer.testing import CliRunner


class Process(Node):
    """A node that runs if it is said to."""

    runs = True

    def alive(self) -> bool:
        return self.runs

    def registers_as(self) -> str:
        return self.address


class World(LocalCluster):
    """A cluster, and the admin that asks it."""

    def __init__(self, masters: int = 1, slaves: int = 1) -> None:
        nodes: list[Node] = [Process("nameserver-0", "nameserver", "h", 1, "d")]
        nodes.append(Process("etcd-0", "etcd", "h", 2, "d"))
        for group in range(masters):
            for number in range(1 + slaves):
                kind = "slave" if number else "master"
                name = f"{kind}-{group}" + (f"-{number}" if slaves > 1 and number else "")
                place = (name, kind, "h", 100 * (group + 1) + number, "d")
                nodes.append(Process(*place, broker_name=f"broker-{group}", broker_id=number))
        super().__init__(Path("nowhere"), Settings(), nodes)
        self.members = {
            node.address: Replica(
                node.broker_name,
                node.broker_id,
                node.address,
                role=node.kind,
                in_sync=None if node.kind == "master" else True,
            )
            for node in nodes
            if node.broker_name
        }
        self.did: list[str] = []
        self.fails: dict[str, Exception] = {}  # what was to be done
        self.after: dict[str, dict[str, Any]] = {}  # what a node is when it was restarted
        self.said: list[str] = []

    def act(self, what: str) -> None:
        if what in self.fails:
            raise self.fails[what]
        self.did.append(what)

    def restart(self, name: str) -> Node:
        self.act(f"restart {name}")
        node = self.node(name)
        if name in self.after:
            self.members[node.address] = replace(self.members[node.address], **self.after[name])
        return node

    def replicas(self, group: str) -> list[Replica]:
        return [member for member in self.members.values() if member.group == group]

    def preview_drain(self, address: str) -> list[Drained]:
        self.act(f"preview {address}")
        self.did.pop()
        return []

    def drain(self, address: str) -> list[Drained]:
        member = self.members[address]
        if member.role != "master":
            return [Drained(member.group, address, False, "", "")]
        others = [each for each in self.replicas(member.group) if each.role == "slave"]
        self.act(f"drain {address}")
        self.lead(others[0].address)
        return [Drained(member.group, address, True, others[0].address, "")]

    def hand_over(self, group: str, address: str) -> None:
        self.act(f"back to {address}")
        self.lead(address)

    def lead(self, address: str) -> None:
        for each in self.replicas(self.members[address].group):
            leads = each.address == address
            role, in_sync = ("master", None) if leads else ("slave", True)
            self.members[each.address] = replace(each, role=role, in_sync=in_sync)

    def upgrade(self) -> Upgrade:
        return Upgrade(self, self, self.said.append, whole_s=0.0)  # type: ignore[arg-type]


def test_slaves_are_first_then_nameservers_then_masters_that_have_handed_over() -> None:
    world = World(masters=2)
    work = world.upgrade()
    assert work.run() == ["slave-0", "slave-1", "nameserver-0", "master-0", "master-1"]
    assert world.did == [
        "restart slave-0",
        "restart slave-1",
        "restart nameserver-0",
        "drain h:100",
        "restart master-0",
        "drain h:200",
        "restart master-1",
        "back to h:100",
        "back to h:200",
    ]
    assert work.leaders == {"broker-0": "master-0", "broker-1": "master-1"}
    assert "  handed broker-0 over to slave-0" in world.said


def test_who_leads_is_the_last_whatever_it_was_started_as() -> None:
    world = World(slaves=2)
    world.lead("h:102")
    assert world.upgrade().run() == ["master-0", "slave-0-1", "nameserver-0", "slave-0-2"]
    assert world.did[-1] == "back to h:102"
    assert world.members["h:102"].is_master


def test_a_slave_that_was_elected_meanwhile_hands_over_before_it_is_stopped() -> None:
    world = World(slaves=2)
    world.after["slave-0-1"] = {"in_sync": True}
    restart = world.restart

    def elects(name: str) -> Node:
        node = restart(name)
        if name == "slave-0-1":
            world.lead("h:102")
        return node

    world.restart = elects  # type: ignore[method-assign]
    world.upgrade().run()
    at = world.did.index("restart slave-0-2")
    assert world.did[at - 1] == "drain h:102"
    assert world.members["h:100"].is_master


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"role": "fenced"}, "slave-0 is fenced and not in sync"),
        ({"in_sync": False, "lag_bytes": 1234}, "not in sync, 1,234 bytes behind"),
        ({"caught_up": False, "trouble": "its log differs"}, r"not in sync \(its log differs\)"),
        ({"error": "silence"}, "slave-0 does not answer: silence"),
    ],
)
def test_nothing_is_restarted_before_every_group_is_whole(change: dict[str, Any], why: str) -> None:
    world = World()
    world.members["h:101"] = replace(world.members["h:101"], **change)
    with pytest.raises(LauncherError, match=rf"(?s){why}.*Nothing was restarted"):
        world.upgrade().run()
    assert world.did == []


def test_nothing_is_restarted_where_a_master_has_nobody_to_relieve_it() -> None:
    world = World()
    world.fails["preview h:100"] = NoPermission("no node can take broker-0 over")
    with pytest.raises(
        LauncherError, match=r"no node can take.*Nothing was restarted.*restart NODE"
    ):
        world.upgrade().run()
    world = World()
    world.members["h:100"] = replace(world.members["h:100"], refuses="its disk is full")
    with pytest.raises(LauncherError, match="master-0 takes no writes: its disk is full"):
        world.upgrade().run()
    world = World()
    world.node("etcd-0").runs = False  # type: ignore[attr-defined]
    with pytest.raises(LauncherError, match=r"etcd-0 does not run: .*Nothing was restarted"):
        world.upgrade().run()
    assert world.did == []


def test_a_node_that_does_not_start_ends_it() -> None:
    world = World()
    world.fails["restart slave-0"] = LauncherError("slave-0 ended while starting")
    with pytest.raises(
        LauncherError, match=r"stopped at slave-0.*ended while.*cluster restart slave-0.*again"
    ):
        world.upgrade().run()
    assert world.did == []


def test_a_node_that_does_not_come_back_in_sync_ends_it() -> None:
    world = World()
    world.after["slave-0"] = {"in_sync": False}
    with pytest.raises(LauncherError, match=r"stopped at slave-0.*not whole.*not in sync.*again"):
        world.upgrade().run()
    assert world.did == ["restart slave-0"]


def test_a_master_that_does_not_hand_over_runs_as_before() -> None:
    world = World()
    world.fails["drain h:100"] = NoPermission("it is 9 bytes behind")
    with pytest.raises(LauncherError, match=r"stopped before master-0, which runs.*9 bytes behind"):
        world.upgrade().run()
    assert world.did == ["restart slave-0", "restart nameserver-0"]


def test_a_lead_that_is_not_given_back_is_told() -> None:
    world = World()
    world.fails["back to h:100"] = NoPermission("it is 9 bytes behind")
    with pytest.raises(
        LauncherError, match=r"every node is restarted.*admin handover broker-0 master-0"
    ):
        world.upgrade().run()


def test_without_rolling_it_is_said_what_that_needs(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["cluster", "upgrade", "--data", str(tmp_path)])
    assert done.exit_code == 1
    assert "say --rolling" in done.stderr
    assert "a slave in sync" in done.stderr
