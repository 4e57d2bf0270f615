"""Drills under the real kernel (docs/guarantees.md 7): power cuts as reflink clones of a loop
device under load, and block errors under the real page cache. They need root; `why_not` says what
else is missing.
"""

from saturnmq.drills.kernel.drill import run_kernel_drill
from saturnmq.drills.kernel.mounts import RigUnavailable, why_not
from saturnmq.drills.kernel.report import KernelReport

__all__ = ["KernelReport", "RigUnavailable", "run_kernel_drill", "why_not"]
