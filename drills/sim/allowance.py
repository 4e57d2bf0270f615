"""The losses that a mode allows (docs/guarantees.md 2).

A message that was acknowledged with `copies` copies may be gone only if
- that many machines, the acknowledging one among them, lost it before the group's nodes all had all
  of its log again between two of these losses. A machine loses bytes that it cannot have synced yet
  (never with SYNC_FLUSH), or its disk loses bytes that it had; or
- replication is asynchronous, or an operator insisted, and another node was promoted; then its
  bytes lie in a side file of the node that was cut, unless that node lost them as above.
The same holds for a message that a consumer saw without an acknowledgement: it was below the
watermark.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from saturnmq.broker.registration import AGAIN_S, RETRY_S
from saturnmq.drills.sim.faults import PromotionOrder
from saturnmq.drills.sim.network import CONNECT_TIMEOUT_S
from saturnmq.drills.sim.nodes import SimBroker, SimNameServer, Span
from saturnmq.drills.sim.plan import SimPlan

FLUSH_BOUND_S = 0.6  # a message is on the disk so long after its acknowledgement, at the latest
WRITTEN_S = 3.0  # a broker writes its notes about its clocks to disk within this time
FENCE_S = 0.1  # an old master that hears of a new one takes no message for longer
# One that was cut off hears of it when it dials a nameserver again: it may just have begun to wait.
HEAR_S = FENCE_S + CONNECT_TIMEOUT_S + RETRY_S + AGAIN_S


@dataclass
class Allowance:
    """The history of the machines, and the losses that it allows."""

    plan: SimPlan
    nodes: Sequence[SimBroker]
    promotions: Sequence[PromotionOrder]
    nameservers: Sequence[SimNameServer] = ()
    # By group: when all its nodes had all of its log again, after losses.
    healed: Mapping[str, Sequence[float]] = field(default_factory=dict)
    helped: Sequence[tuple[str, float]] = ()  # groups for which an operator had to name a master

    def may_go(self, group: str, at: float, by: str | None) -> bool:
        """Whether what was promised at this time, `by` the broker of this name if that is known,
        may be gone from the log of its group.
        """
        nodes = self.nodes_of(group)
        if by is not None and by not in {node.name for node in nodes}:
            return False  # a broker of another cluster: nothing of theirs is promised to ours
        if by is not None:
            at = self._given_at(by, at)
        for begin, end in pairwise([-math.inf, *self.healed.get(group, ()), math.inf]):
            lacking = [node.name for node in nodes if self._lost(node, at, begin, end)]
            if len(lacking) >= self.plan.copies and (by is None or by in lacking):
                return True
        return any(
            order.node.group == group
            and (self.plan.copies == 1 or order.forced)
            and at <= self._deposed_by(order, by)
            for order in self.promotions
        )

    def _lost(self, node: SimBroker, at: float, begin: float, end: float) -> bool:
        """Whether this node may have lost, before `end`, what was promised at this time. At `begin`
        all nodes had it, if any had."""
        # If the node is not known that delivered it, it may be this one, before it died.
        left = self._given_at(node.name, at)
        return end >= left and self._lacks(node, max(left, begin), end)

    def lacks(self, name: str, at: float) -> bool:
        """Whether the copy that this node had at this time may be gone from its disk."""
        return self._lacks(self._node(name), self._given_at(name, at))

    def _given_at(self, by: str, at: float) -> float:
        """The latest time at which the promise that a sender had at this time left its broker: a
        reply under way when the broker died still arrives."""
        downs = self._node(by).past.down
        return min([at, *(down.start for down in downs if down.start <= at < down.end)])

    def _node(self, name: str) -> SimBroker:
        return next(node for node in self.nodes if node.name == name)

    def nodes_of(self, group: str) -> list[SimBroker]:
        return [node for node in self.nodes if node.group == group]

    def may_lead(self, group: str, since: float, until: float) -> bool:
        """Whether two nodes may have acknowledged one after the other in this time. Where no copy
        is waited for, and no lease is needed, or an operator insisted, a deposed master may not
        know it yet."""
        return any(name == group and since <= at <= until for name, at in self.helped) or any(
            order.node.group == group
            and order.at <= until
            and (order.ended >= since or self._may_not_know(order))
            for order in self.promotions
        )

    def misled(self, group: str, begun: float, at: float) -> bool:
        """Whether a broker may have had to take a wrong clock's word for how long something waited
        since `begun`: it stepped while its broker was down, or shortly before, when that had not
        been written down."""
        return any(
            down.start - WRITTEN_S <= step <= min(down.end, at) and down.end > begun
            for node in self.nodes_of(group)
            for step in node.past.steps
            for down in node.past.idle
        )

    def _may_not_know(self, order: PromotionOrder) -> bool:
        return order.forced or (self.plan.copies == 1 and not self.plan.lease_s)

    def _deposed_by(self, order: PromotionOrder, by: str | None) -> float:
        """The time until which a master may have acknowledged messages that a promotion then cut
        off. If every nameserver has forgotten the promotion, a master that was away meanwhile can
        hear of it only from the new master."""
        end = order.ended + FENCE_S
        if not self._may_not_know(order):
            return end  # its lease was over before
        forgotten = bool(self.nameservers) and all(
            any(at >= order.ended for at in nameserver.died_at) for nameserver in self.nameservers
        )
        for node in self.nodes_of(order.node.group):
            if by in (None, node.name):
                spans = [*node.past.isolated]
                if forgotten:
                    spans += [*node.past.idle, *order.node.past.idle]
                end = put_off(end, spans, HEAR_S)
        return end

    def _lacks(self, node: SimBroker, at: float, until: float = math.inf) -> bool:
        """Whether a loss up to `until` may have taken what it had at this time."""
        past = node.past
        if any(at <= aged <= until for aged in past.aged_at):
            return True
        if self.plan.sync_flush:
            return False
        safe = min(until, put_off(at + FLUSH_BOUND_S, past.idle, FLUSH_BOUND_S))
        return any(loss.start <= safe and loss.end >= at for loss in past.losses)


def put_off(time: float, spans: Sequence[Span], then: float) -> float:
    """`time`, put off by the spans that it falls into: `then` begins at the end of each."""
    for span in sorted(spans, key=lambda span: span.start):
        if span.start <= time:
            time = max(time, span.end + then)
    return time
