"""The store alone on the simulated disk: crashes of two kinds, one after the other."""

from __future__ import annotations

import random

import pytest
from saturnmq.drills.sim.disk import SimDisk
from saturnmq.drills.sim.loop import SimLoop
from saturnmq.drills.sim.network import SimNetwork
from saturnmq.drills.sim.runtime import SimRuntime
from saturnmq.store.message_store import MessageStore, PendingMessage, StoreConfig

CONFIG = StoreConfig(
    root="/store",
    commitlog_segment_bytes=64 << 10,
    consumequeue_segment_bytes=2000,
    index_slots=16,
    index_items=100,
    zero_ahead_bytes=8 << 10,
)


@pytest.mark.parametrize("seed", range(5))
def test_what_recovery_calls_flushed_survives_a_power_loss(seed: int) -> None:
    loop = SimLoop(random.Random(seed))
    runtime = SimRuntime(loop, SimNetwork(loop, seed), seed, "node")
    disk = SimDisk(random.Random(seed), writeback=0.0)
    store = MessageStore.open(CONFIG, disk, runtime)
    for _ in range(20):
        store.put(PendingMessage("t", 0, b"x" * 500))
    disk.kill()
    disk.power_on()
    recovered = MessageStore.open(CONFIG, disk, runtime).watermarks
    disk.power_off()
    disk.power_on()
    again = MessageStore.open(CONFIG, disk, runtime).watermarks
    loop.close()
    assert again.appended >= recovered.flushed
