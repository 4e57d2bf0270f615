"""The trace of a simulated run: a running hash of everything that could differ, and its last lines.

Every door of the simulator (loop, network, disk) and the checker write here, stamped with virtual
time. Two runs of one seed on one commit must end with the same hash; when they do not, `lines` of
both runs show the first step at which they parted, which is where real time, hash order or real
chance leaked in.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable


class Trace:
    """Collects steps. `keep` bounds the memory: a long run keeps only its last steps as text."""

    def __init__(self, keep: int = 2000) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self.lines: deque[str] = deque(maxlen=keep)
        self.steps = 0
        self.counts: dict[str, int] = {}
        self.now: Callable[[], float] = lambda: 0.0

    def note(self, kind: str, text: str = "", data: bytes | memoryview = b"") -> None:
        """Adds one step; `data` enters the hash but not the text."""
        line = f"{self.now():.9f} {kind} {text}"
        self._hash.update(line.encode())
        self._hash.update(data)
        self.lines.append(line)
        self.steps += 1
        self.counts[kind] = self.counts.get(kind, 0) + 1

    def hexdigest(self) -> str:
        return self._hash.copy().hexdigest()
