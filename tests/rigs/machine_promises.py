"""What the nodes of a world promise, and whether they keep it: looked at after every action, and
before every instruction that others rely on.

- At no time can two masters acknowledge.
- A message that is acknowledged, or shown to consumers, is in the log of the newest master, and is
  not cut; but by an operator's force, or by a promotion where nobody waits for copies.
- Each message lies in the epoch of the master that wrote it, and two logs of one group are equal as
  far as their epochs say so.
- No epoch is opened twice.
- What a node promises and becomes is on its disk before it is acted on, and holds while it has
  that disk.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

from machine_node import DAMAGED, Message, Node
from saturnmq.broker.replication import events as e
from saturnmq.store.log.epochs import Epoch, common


class Broken(AssertionError):
    """A promise was broken."""


class Promises:
    def __init__(self) -> None:
        self._keeps = True  # what is acknowledged
        self.acked: frozenset[Message] = frozenset()
        self.shown: frozenset[Message] = frozenset()
        self.opened: frozenset[tuple[str, int]] = frozenset()  # with their groups
        self.promised: dict[str, int] = {}  # by a node: the lowest epoch that it serves

    # -- what happens

    def acknowledged(self, node: Node, messages: Iterable[Message], nodes: list[Node]) -> None:
        messages = frozenset(messages)
        if self._keeps:
            for other in nodes:
                newer = other.leads and other.role.log_epoch > node.role.log_epoch
                if newer and not other.disk.has_all(messages):
                    raise Broken(
                        f"{node.name} acknowledges {sorted(messages)} behind {other.name}'s back"
                    )
        self.acked |= messages

    def showed(self, node: Node) -> None:
        """To consumers."""
        if self._keeps:
            self.shown |= {*node.disk.part(node.disk.start, node.confirmed)} - {DAMAGED}

    def let_go(self) -> None:
        """By an operator's force, or where a promotion may lose messages: nothing is promised of
        what is acknowledged any more."""
        self._keeps = False

    def lost_disk(self, node: Node) -> None:
        """Or has another one."""
        self.promised[node.name] = node.disk.promise

    # -- instructions

    def look_at(self, node: Node, instruction: e.Instruction) -> None:
        match instruction:
            case e.Cut(offset, _):
                self._cuts(node, offset)
            case e.Lead() | e.Answer() | e.Accept() | e.GoOn():
                self._relies(node)
            case e.SayJoin(_, fields, at) if at >= 0:
                self._relies(node)
                if not fields:
                    self._follows(node)

    def opens(self, node: Node, epoch: e.Open, nodes: list[Node]) -> None:
        """It writes that down now."""
        number, newest = epoch.number, max(node.disk.epochs, default=Epoch(0, 0))
        if number <= newest.number or epoch.start < newest.start:
            raise Broken(f"{node.name} opens epoch {number} at {epoch.start} after {newest}")
        identity = node.role.identity
        epochs = {(x.disk.identity, epoch.number) for x in nodes for epoch in x.disk.epochs}
        again = (identity, number) in self.opened and self._keeps and self.shown
        if identity and (again or (identity, number) in epochs):
            raise Broken(f"{node.name} opens epoch {number} a second time")
        self.opened |= {(identity, number)}

    def _cuts(self, node: Node, offset: int) -> None:
        gone = (self.acked | self.shown) & {*node.disk.part(offset, node.disk.end)}
        if gone and self._keeps and offset >= node.disk.start:
            raise Broken(f"{node.name} cuts {sorted(gone)}, which its group had confirmed")

    def _relies(self, node: Node) -> None:
        if node.disk.promise < node.role.promised_epoch:
            raise Broken(
                f"{node.name} acts in epoch {node.role.promised_epoch}, its disk knows of "
                f"{node.disk.promise}"
            )
        self.promised[node.name] = max(self.promised.get(node.name, 0), node.role.promised_epoch)

    def _follows(self, node: Node) -> None:
        saved = node.disk.role or {}
        if saved.get("identity") != node.role.identity:
            raise Broken(f"{node.name} follows, and its role.json does not know the group")
        if node.role.decided and saved.get("brokerId") != node.role.broker_id:
            raise Broken(f"{node.name} follows, and its role.json does not say so")

    def counts(self, master: Node, slave: Node) -> None:
        """The master counts what this slave reports."""
        known = (master.disk.role or {}).get("replicas", {})
        if slave.name not in known.values():
            raise Broken(f"{master.name} counts {slave.name}, which its role.json does not know")

    # -- after every action

    def check(self, nodes: list[Node], acknowledge: list[Node]) -> None:
        """`acknowledge`: those that can."""
        leaders = [node for node in nodes if node.leads]
        if self._keeps:
            self._check_kept(leaders)
            if len(acknowledge) > 1:
                raise Broken(f"{[node.name for node in acknowledge]} can both acknowledge")
        terms = [(node.disk.identity, node.role.log_epoch) for node in leaders]
        if len(set(terms)) < len(terms):
            raise Broken(f"two masters of one epoch: {terms}")
        for one, other in combinations(nodes, 2):
            self._check_equal(one, other)
        for node in nodes:
            self._check_written(node)
            if node.runs and node.role.promised_epoch < self.promised.get(node.name, 0):
                raise Broken(
                    f"{node.name} is back to epoch {node.role.promised_epoch}, it had promised "
                    f"{self.promised[node.name]}"
                )

    def _check_kept(self, leaders: list[Node]) -> None:
        newest = max(leaders, key=lambda node: node.role.log_epoch, default=None)
        if newest is None or DAMAGED in newest.disk.log:
            return
        for what, messages in (("acknowledged", self.acked), ("shown", self.shown)):
            if gone := messages - {*newest.disk.log}:
                raise Broken(f"{newest.name} leads without {sorted(gone)}, which was {what}")

    def _check_written(self, node: Node) -> None:
        """Each message lies in the epoch of the master that wrote it."""
        for offset, message in enumerate(node.disk.log, node.disk.start):
            epochs = (number for number, start in reversed(node.disk.epochs) if start <= offset)
            if message != DAMAGED and next(epochs, None) != message[0]:
                raise Broken(f"{node.name} has {message} at {offset}, in epochs {node.disk.epochs}")

    def _check_equal(self, one: Node, other: Node) -> None:
        a, b = one.disk, other.disk
        if not (a.identity and a.identity == b.identity):
            return
        found = common(a.epochs, a.end, b.epochs, b.end)
        if found is None:
            return
        first = max(a.start, b.start)
        last = max(first, found[1])
        for mine, theirs in zip(a.part(first, last), b.part(first, last), strict=True):
            if mine != theirs and DAMAGED not in (mine, theirs):
                raise Broken(
                    f"{one.name} and {other.name} share epoch {found[0].number}, and have {mine} "
                    f"and {theirs} in one place"
                )
