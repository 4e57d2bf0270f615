"""Restarting the processes of a local cluster one at a time, while it serves.

The order: slaves, nameservers, masters; each master hands its group over before. A process with
the package that this program is of is started; once it is loaded it stops the old one in order,
and serves on its ports, data and options. Then its group is waited for: it is whole when its
master takes writes and every other node follows, in sync. In the end the groups are led by those
that led them in the beginning. The first problem ends it, with what to do. An etcd is not ours: it
is left alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from saturnmq.cli.launcher import LauncherError, LocalCluster, Node
from saturnmq.runtime.errors import SaturnError

if TYPE_CHECKING:
    from saturnmq import Admin
    from saturnmq.client.admin.replicas import Replica

WHOLE_S = 60.0  # a group is whole by then
LOOK_S = 0.1
AGAIN = "say `saturnmq cluster upgrade --rolling` again"


class Upgrade:
    """One round through a cluster."""

    def __init__(
        self,
        cluster: LocalCluster,
        admin: Admin,
        say: Callable[[str], None],
        *,
        whole_s: float = WHOLE_S,
    ) -> None:
        self._cluster = cluster
        self._admin = admin
        self._say = say
        self._whole_s = whole_s
        self._brokers = [node for node in cluster.nodes if node.broker_name]
        self._groups = sorted({node.broker_name or "" for node in self._brokers})
        self.leaders: dict[str, str] = {}  # the master of each group at the beginning

    def check(self) -> list[str]:
        """The names of the nodes in their order; a LauncherError if one could not be spared."""
        down = [node.name for node in self._cluster.nodes if not node.alive()]
        if down:
            raise LauncherError(
                f"{', '.join(down)} does not run: `saturnmq cluster restart {down[0]}` first. "
                "Nothing was restarted"
            )
        try:
            for group in self._groups:
                master = self._whole(group)
                self.leaders[group] = self._name(master.address)
                self._admin.preview_drain(master.address)
        except (LauncherError, SaturnError) as problem:
            raise LauncherError(
                f"{problem}. Nothing was restarted. `saturnmq cluster restart NODE` restarts a "
                "node that no other can relieve, or that is in no other's way"
            ) from problem
        leading = self.leaders.values()
        names = [node.name for node in self._brokers if node.name not in leading]
        names += [node.name for node in self._cluster.nodes if node.kind == "nameserver"]
        return names + [node.name for node in self._brokers if node.name in leading]

    def run(self) -> list[str]:
        """Restart all of them, and name them in their order; a LauncherError says where it ended,
        and what to do."""
        names = self.check()
        for number, name in enumerate(names, 1):
            node = self._cluster.node(name)
            self._say(f"{name} ({number} of {len(names)})")
            try:
                self._relieve(node)
            except (LauncherError, SaturnError) as problem:
                raise LauncherError(
                    f"stopped before {name}, which runs as before: {problem}. See `saturnmq admin "
                    f"replicas`; when its group is whole, {AGAIN}"
                ) from problem
            try:
                self._renew(node)
            except (LauncherError, SaturnError, OSError) as problem:
                raise LauncherError(
                    f"stopped at {name}: {problem}. The others run. When `saturnmq cluster restart "
                    f"{name}` has started it and it is in sync, {AGAIN}"
                ) from problem
        for group, name in self.leaders.items():
            self._give_back(group, name)
        return names

    def _relieve(self, node: Node) -> None:
        """Have it lead nothing."""
        if not node.broker_name:
            return
        self._whole(node.broker_name)
        for drained in self._admin.drain(node.registers_as()):
            if drained.led:
                successor = self._name(drained.master)
                self._say(f"  handed {drained.group} over to {successor}")
                self._whole(drained.group)
            elif drained.risk:
                self._say(f"  note: {drained.risk}")

    def _renew(self, node: Node) -> None:
        began = time.monotonic()
        self._cluster.restart(node.name)
        if node.broker_name:
            self._whole(node.broker_name)
        done = "restarted, in sync" if node.broker_name else "restarted"
        self._say(f"  {done} after {time.monotonic() - began:.1f} s")

    def _give_back(self, group: str, name: str) -> None:
        address = self._cluster.node(name).registers_as()
        try:
            if self._whole(group).address != address:
                self._admin.hand_over(group, address)
                self._say(f"{group} is led by {name} again")
        except (LauncherError, SaturnError) as problem:
            raise LauncherError(
                f"every node is restarted, but {name} does not lead {group} again: {problem}. "
                f"`saturnmq admin handover {group} {name}` makes it the master"
            ) from problem

    def _whole(self, group: str) -> Replica:
        """The master of a group, when all of it is there."""
        wanted = {n.registers_as(): n.name for n in self._brokers if n.broker_name == group}
        deadline = time.monotonic() + self._whole_s
        while True:
            try:
                members = {each.address: each for each in self._admin.replicas(group)}
                missing = [_missing(members.get(each), wanted[each]) for each in wanted]
                missing = [each for each in missing if each]
                masters = [each for each in members.values() if each.is_master]
                if not missing and len(masters) == 1:
                    return masters[0]
            except SaturnError as error:
                missing = [str(error)]
            if time.monotonic() >= deadline:
                what = "; ".join(missing) or "it has no master, or two"
                raise LauncherError(f"{group} is not whole after {self._whole_s:.0f} s: {what}")
            time.sleep(LOOK_S)

    def _name(self, address: str) -> str:
        """The name of the node that registers under this address."""
        names = (node.name for node in self._brokers if node.registers_as() == address)
        return next(names, address)


def _missing(member: Replica | None, name: str) -> str:
    """The conditions that a node of a group does not meet yet; empty if it meets all."""
    if member is None:
        return f"{name} is not registered"
    if member.error:
        return f"{name} does not answer: {member.error}"
    if member.is_master:
        return f"{name} takes no writes: {member.refuses}" if member.refuses else ""
    if member.role == "slave" and member.in_sync and member.caught_up:
        return ""
    behind = "" if member.lag_bytes is None else f", {member.lag_bytes:,} bytes behind"
    trouble = f" ({member.trouble})" if member.trouble else ""
    return f"{name} is {member.role} and not in sync{behind}{trouble}"
