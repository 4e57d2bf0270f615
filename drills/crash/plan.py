"""The plan of one life of a store: sizes, operations and faults, all drawn from its seed.

Swarm testing: each seed leaves out some operations and faults altogether and exaggerates others, so
that rare mixes meet often. Segments are tiny: everything rolls all the time.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from saturnmq.store.message_store import StoreConfig

ROOT = "/store"
USUAL_WEIGHTS = {
    "put": 40,
    "put_batch": 8,
    "put_half": 2,
    "flush": 14,
    "flush_beside": 6,
    "dispatch": 14,
    "derive": 5,
    "prepare": 4,
    "save_config": 3,
    "read": 4,
    "truncate": 1,
    "clean": 2,
    "reopen": 1,
    "die": 1,
    "lose_power": 1,
}
GROUPS = "put_group", 4
DELETIONS = "delete_topic", 2
FAULTS = ("fail_flush", "fail_write", "fail_derived", "fill_disk")
FAULT_WEIGHT = 2
# Enough of each, so that 200 operations hold all of them.
EXHAUSTIVE_WEIGHTS = USUAL_WEIGHTS | {"truncate": 2, "reopen": 3, "die": 2, "lose_power": 2}
EXHAUSTIVE_WEIGHTS |= dict([GROUPS, DELETIONS])


@dataclass(frozen=True)
class CrashPlan:
    """Sizes in bytes; `weights` of the operations; the chances of what happens beside them."""

    operations: int = 200
    segment_bytes: int = 8 << 10
    queue_entries: int = 10
    index_slots: int = 7
    index_items: int = 20
    zero_ahead: int = 4 << 10
    sync_zeros: bool = False
    bodies: tuple[int, ...] = (0, 10, 100, 100, 500, 2000)
    topics: int = 2
    queues: int = 2
    weights: dict[str, int] = field(default_factory=lambda: dict(USUAL_WEIGHTS))
    beside: float = 0.3  # an operation of the loop while a thread flushes
    nested: float = 0.15  # a crash while an image recovers
    writeback: float = 0.05
    flips: bool = False

    @classmethod
    def draw(cls, rng: random.Random) -> CrashPlan:
        weights = {
            name: weight if name == "put" else weight * rng.choice((0, 1, 1, 1, 3))
            for name, weight in USUAL_WEIGHTS.items()
        }
        weights["flush"] = max(weights["flush"], 1)
        for fault in FAULTS:
            weights[fault] = rng.choice((0, 0, FAULT_WEIGHT))
        size = rng.choice((None, None, 100, 300, 450, 1500))
        plan = cls(
            operations=rng.choice((30, 60, 120)),
            segment_bytes=rng.choice((4 << 10, 8 << 10, 10_000, 16 << 10, 64 << 10)),
            queue_entries=rng.choice((3, 10, 50, 300)),
            index_slots=rng.choice((1, 7, 50)),
            index_items=rng.choice((4, 20, 100)),
            zero_ahead=rng.choice((0, 4 << 10, 16 << 10)),
            sync_zeros=rng.random() < 0.3,
            bodies=cls.bodies if size is None else (size,),
            topics=rng.randint(1, 3),
            queues=rng.randint(1, 3),
            weights=weights,
            beside=rng.choice((0.0, 0.3, 0.6)),
            writeback=rng.choice((0.0, 0.1, 0.5)),
            flips=rng.random() < 0.2,
        )
        name, weight = GROUPS  # drawn last: a seed without groups is what it was before them
        weights[name] = weight * rng.choice((0, 1, 1, 3))
        name, weight = DELETIONS  # the same; what bit rot is compared with knows nothing of them
        weights[name] = 0 if plan.flips else weight * rng.choice((0, 1, 1, 3))
        return plan

    def config(self) -> StoreConfig:
        return StoreConfig(
            root=ROOT,
            commitlog_segment_bytes=self.segment_bytes,
            consumequeue_segment_bytes=self.queue_entries * 20,
            index_slots=self.index_slots,
            index_items=self.index_items,
            zero_ahead_bytes=self.zero_ahead,
            sync_zeros=self.sync_zeros,
            max_message_bytes=self.segment_bytes - 8,
            file_reserved_hours=0,
            delete_when=";".join(str(hour) for hour in range(24)),
            delete_batch_max=2,
            delete_grace_ms=2000,
            # where there are several, they take turns
            queue_files_mapped=1 if self.topics * self.queues > 3 else 1000,
        )
