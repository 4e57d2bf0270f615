"""Reading the log for waiting messages."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from saturnmq.broker.timer.pending import PendingMessages
from saturnmq.broker.timer.reading import TimerReader


@pytest.mark.parametrize("read", [0, 3, 5])
def test_markers_that_were_all_deleted_are_not_waited_for(read: int) -> None:
    """The log begins behind them: the simulator found a reader that asked without end."""
    store = SimpleNamespace(visible_end=lambda *_: 0, markers=(5, 5))
    context = SimpleNamespace(store=store, visible=100)
    nothing = SimpleNamespace()
    reader = TimerReader(context, nothing, nothing, 0)  # type: ignore[arg-type]
    pending = PendingMessages()
    pending.next_marker = read
    assert not asyncio.run(reader.step(pending))
    assert pending.next_marker == 5
    assert reader.is_level(pending)
