"""The plan of one simulated cluster: nodes, modes, sizes, load and faults, drawn from its seed.

Swarm testing: each seed leaves out some kinds of fault altogether and exaggerates others, so that
rare mixes meet often. Segments and transfers are tiny: everything rolls and splits all the time.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection
from dataclasses import dataclass, field, replace

TOPIC = "orders"
ROOT = "/store"
NAMESERVER_PORT = 9876
BROKER_PORT = 10911
MESSAGE_BYTES_MAX = 4096  # also of a batch
LIVENESS_S = 30.0  # after the last fault everything goes on within that

# How often a seed that has this kind of fault at all draws it.
FAULTS = {
    "kill": 4,
    "power_loss": 4,
    "power_loss_inside": 3,
    "pause": 3,
    "partition": 3,
    "one_way": 2,
    "clients_cut_off": 2,
    "slaves_cut_off": 3,
    "connections": 3,
    "slow_link": 2,
    "slow_disk": 2,
    "full_disk": 1,
    "failing_disk": 1,
    "wipe_slave": 1,
    "nameserver": 2,
    "clock_jump": 1,
    "consumer": 2,
    "promote": 3,
}

# Disks that lose what they had (`amnesia.py`), nodes of elsewhere and nodes with the configuration
# of another (`strangers.py`). Seeds draw them with a chance of their own, so that those without
# them stay what they were.
RARE = {
    "wipe_master": 3,
    "lose_commitlog": 3,
    "restore_old_copy": 3,
    "delete_segment": 3,
    "bit_rot": 3,
    "new_slave": 2,
    "foreign_slave": 2,
    "foreign_master": 2,
    "cloned_node": 2,
}
# Those that came later: each is drawn from a stream of random numbers of its own.
LATER = {"master_in_file": 2}
RARE |= LATER
RARE_CHANCE = 0.05
# Where masters are elected: what etcd does to them (`etcd_faults.py`), always and with a chance.
ETCD_FAULTS = {"etcd_away": 2, "etcd_cut_off": 3, "etcd_slow": 2}
ETCD_RARE = {"etcd_denied": 2, "etcd_compacted": 2, "etcd_restored": 2}
ETCD_RARE_CHANCE = 0.3
ALONE = 0.5  # the chance that a cluster with such a fault has no operator


# The scenes (`scenes/`) that seeds draw from, and the chance of each: greater for those of which
# each is about a kind of messages.
SCENE, KIND = 0.1, 0.2
ENABLED = dict.fromkeys(
    (
        "clocks",
        "delaying",
        "forgetting",
        "growing",
        "misbehaving",
        "recreating",
        "retrying",
        "shrinking",
        "spreading",
        "taking-long",
    ),
    SCENE,
) | dict.fromkeys(
    (
        "checking-types",
        "polling",
        "popping",
        "replying",
        "resending",
        "resetting",
        "timing",
        "transacting",
    ),
    KIND,
)
TRANSACTION_TIMEOUT_S = 0.5  # after which brokers ask about an open transaction
TRANSACTION_CHECK_S = 1.0
TRANSACTION_CHECKS = 12


@dataclass(frozen=True)
class SimPlan:
    """Times in seconds, sizes in bytes."""

    nameservers: int = 2
    groups: int = 1
    slaves: int = 1
    sync_flush: bool = False
    copies: int = 1  # that a send waits for; 1: replication is asynchronous
    # sizes
    segment_bytes: int = 16 << 10
    queue_entries: int = 50
    index_slots: int = 64
    index_items: int = 200
    transfer_bytes: int = 32 << 10
    tiny_chunks: float = 0.05
    # timers
    flush_s: float = 0.2
    heartbeat_s: float = 5.0
    reconnect_s: float = 0.2
    tables_s: float = 1.0
    offsets_s: float = 1.0
    register_s: float = 5.0
    route_s: float = 30.0
    # load
    queues: int = 2
    lane_messages: int = 20
    loose_messages: int = 20
    delayed_messages: int = 0
    sink_epochs: int = 0
    sent_back: float = 0.0  # the chance that a listener wants a batch again
    padding: int = 100
    pace_s: float = 0.3
    consumers: int = 1
    ordered: bool = True
    # faults
    safety_s: float = 30.0
    gap_s: float = 4.0  # between two faults, on average
    weights: dict[str, int] = field(default_factory=lambda: dict(FAULTS))
    rare: dict[str, int] = field(default_factory=dict)
    away: float = 0.2  # the chance that a broken master stays away until the end of faults
    patience_s: float = 5.0  # after which the operator promotes somebody else
    force: float = 0.1  # the chance that the operator insists
    lease_s: int = 0  # of an elected master; 0: nobody is elected
    scenes: frozenset[str] = frozenset()
    secret: str = ""  # that nodes and operators share; empty: none

    @classmethod
    def draw(cls, rng: random.Random) -> SimPlan:
        groups = rng.choice((1, 1, 1, 2))
        slaves = rng.choice((1, 1, 2)) if groups == 1 else 1
        copies = rng.choice((1, 2, 2, 1 + slaves))
        weights = {name: rng.choice((0, 1, 1, 3)) * weight for name, weight in FAULTS.items()}
        if not any(weights.values()):
            weights["kill"] = 1
        lane_messages = rng.randint(5, 25)
        safety = rng.choice((10.0, 20.0, 40.0))
        return cls(
            nameservers=rng.choice((1, 2, 2)),
            groups=groups,
            slaves=slaves,
            sync_flush=rng.random() < 0.5,
            copies=copies,
            segment_bytes=rng.choice((8 << 10, 16 << 10, 64 << 10)),
            queue_entries=rng.choice((16, 50, 1000)),
            transfer_bytes=rng.choice((100, 1000, 32 << 10)),
            tiny_chunks=rng.choice((0.0, 0.02, 0.1)),
            flush_s=rng.choice((0.05, 0.2)),
            heartbeat_s=rng.choice((0.5, 5.0)),
            reconnect_s=rng.choice((0.05, 0.2, 1.0)),
            tables_s=rng.choice((0.2, 1.0)),
            offsets_s=rng.choice((0.2, 1.0)),
            register_s=rng.choice((2.0, 10.0, 30.0)),
            route_s=rng.choice((2.0, 30.0)),
            queues=rng.randint(1, 3),
            lane_messages=lane_messages,
            loose_messages=rng.randint(5, 25),
            delayed_messages=rng.choice((0, 0, 5)),
            sent_back=rng.choice((0.0, 0.0, 0.1)),
            padding=rng.choice((0, 100, 1000)),
            pace_s=safety / lane_messages * rng.choice((0.1, 0.7, 0.7)),
            consumers=rng.randint(1, 2),
            ordered=rng.random() < 0.6,
            safety_s=safety,
            gap_s=rng.choice((1.0, 3.0, 6.0)),
            weights=weights,
            away=rng.choice((0.0, 0.2, 0.6)),
            patience_s=rng.choice((0.5, 3.0, 10.0)),
            force=rng.choice((0.0, 0.0, 0.3)),
            sink_epochs=rng.choice((0, 3, 6)),
        )

    def with_rare(self, rng: random.Random, rare: dict[str, int]) -> SimPlan:
        """The same plan with these faults. In some runs there is no operator, and the cluster must
        help itself."""
        if not rare:
            return self
        patience = math.inf if rng.random() < ALONE else self.patience_s
        weights = self.weights | {"promote": 0} if patience == math.inf else self.weights
        return replace(self, rare=rare, patience_s=patience, weights=weights)

    def with_election(self, rng: random.Random, names: Collection[str] | None = None) -> SimPlan:
        """The same plan with an etcd; an operator promotes only where he deleted a group's record.
        `names`: the only faults of etcd."""
        lease_s = rng.randint(3, 5)
        rare = {n: weight for n, weight in ETCD_RARE.items() if rng.random() > 1 - ETCD_RARE_CHANCE}
        faults = ETCD_FAULTS | rare
        if names is not None:
            faults = {n: weight for n, weight in (ETCD_FAULTS | ETCD_RARE).items() if n in names}
        weights = self.weights | {"promote": 0} | faults
        return replace(self, lease_s=lease_s, patience_s=math.inf, weights=weights)

    @property
    def checks_types(self) -> bool:
        """Whether brokers look at the types of messages."""
        return "checking-types" in self.scenes

    @property
    def mode(self) -> str:
        flush = "sync" if self.sync_flush else "async"
        return f"{flush} flush, {'async' if self.copies == 1 else self.copies} copies"
