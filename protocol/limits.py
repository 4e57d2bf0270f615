"""The resources that the peers of one process may take: the defaults, defined once
(docs/limits.md). The commands show them in their help, so this module imports next to nothing.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

log = logging.getLogger(__name__)

MEMORY_MIN = 64 << 20  # one connection has room for a request of 16 MiB


@dataclass(frozen=True)
class Limits:
    """The limits of one process; `connections.py` acts on peers that exceed them."""

    connections: int = 16_384
    per_address: int = 8_192
    idle_s: float = 120
    frame_s: float = 30
    memory_bytes: int = 512 << 20

    def within(self, memory_bytes: int) -> Limits:
        """These limits for a process that has so much memory in all: half of it is for the rest."""
        most = max(memory_bytes // 2, MEMORY_MIN)
        if most >= self.memory_bytes:
            return self
        log.warning(
            "memoryBudgetBytes is %d, half of the memory there is: %d were asked for",
            most,
            self.memory_bytes,
        )
        return replace(self, memory_bytes=most)
