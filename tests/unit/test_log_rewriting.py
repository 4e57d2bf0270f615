"""Changes of the log that are no appends: what follows a cut whatever becomes of the tables."""

from __future__ import annotations

import asyncio
import errno
from unittest.mock import AsyncMock, MagicMock

import pytest
from saturnmq.broker.commit.log_rewriting import LogRewriter


def test_a_cut_whose_tables_cannot_be_saved_still_asks_for_the_masters_progress() -> None:
    async def exclusive(work, *, pause, resume) -> None:
        work()

    context, told = MagicMock(), MagicMock()
    full = OSError(errno.ENOSPC, "no space left")
    rewriter = LogRewriter(
        context,
        MagicMock(exclusive=exclusive),
        MagicMock(),
        MagicMock(save=AsyncMock(side_effect=full)),
        delays=MagicMock(),
        timers=MagicMock(cut=AsyncMock()),
        sinks=MagicMock(),
        half_log=MagicMock(),
        wake_pulls=MagicMock(),
        on_truncated=told,
    )
    with pytest.raises(OSError, match="no space"):
        asyncio.run(rewriter.truncate(1, "a test"))
    context.store.truncate.assert_called_once()
    told.assert_called_once()
