"""How many queue entries one read by tag or by condition looks at."""

from __future__ import annotations

import random
from typing import Any

import pytest
from saturnmq.drills.sim.disk import SimDisk
from saturnmq.protocol.sql92 import Sql
from saturnmq.store.config import StoreConfig
from saturnmq.store.derived import lookup
from saturnmq.store.message_store import MessageStore, PendingMessage


class Clock:
    def now_ms(self) -> int:
        return 1_700_000_000_000


@pytest.mark.parametrize("select", [{"codes": frozenset([1])}, {"sql": Sql("TAGS = 'no'")}])
def test_a_reader_that_selects_without_rocketmqs_limits_has_more_looked_at(
    select: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = StoreConfig(
        root="/store", commitlog_segment_bytes=1 << 20, zero_ahead_bytes=4096, filter_bytes=20 * 12
    )
    store = MessageStore.open(config, SimDisk(random.Random(1)), Clock())
    for _ in range(100):
        store.put(PendingMessage("T", 0, b"x", b"TAGS\x01A\x02"))
    while store.reput():
        pass

    def following(most: int = 5, **more: Any) -> int:
        return store.get_message("T", 0, 0, most, **more).next_begin_offset

    assert following(**select) == 12
    assert following(**select, override_limits=True) == 100
    assert following(override_limits=True) == 5
    monkeypatch.setattr(lookup, "LOOKED_AT", 50)
    assert following(**select, override_limits=True) == 50
    assert following(70, **select, override_limits=True) == 70
    assert following(**select, override_limits=True, end=7) == 7
