"""The report of simulated runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

_SUMS = (
    "seeds",
    "sent",
    "acked",
    "unknown",
    "rejected",
    "delivered",
    "duplicates",
    "lost",
    "steps",
)
# Faults and states that a long run must reach: one that it never reaches is a defect of the
# simulator.
FAULTS = frozenset(
    {
        "EIO on flush",
        "EIO on write",
        "brokers of a group cut off",
        "clients cut off",
        "connection killed",
        "consumer killed",
        "disk full",
        "member joined",
        "member killed",
        "member left",
        "nameserver killed",
        "one-way partition",
        "pages dropped or torn",
        "partition",
        "power lost",
        "power lost inside an operation",
        "power lost while recovering",
        "process frozen",
        "process killed",
        "queues changed",
        "slave wiped",
        "slow disk",
        "slow link",
        "topic deleted",
        "wall clock jumped",
    }
)
STATES = frozenset(
    {
        "down",
        "fenced",
        "master",
        "promoted",
        "promotion refused",
        "recovering",
        "slave",
        "tail copied back",
        "truncated",
        "unsure",
    }
)


@dataclass
class SimReport:
    """Figures of one seed, or of many added up; `ok` means that nothing was violated and that
    something was tried. `lost` is what a mode may lose, and did.
    """

    seeds: int = 0
    sent: int = 0
    acked: int = 0
    unknown: int = 0
    rejected: int = 0
    delivered: int = 0
    duplicates: int = 0
    lost: int = 0
    steps: int = 0
    virtual_s: float = 0.0
    quiet_s: float = 0.0  # the longest that a cluster took to be quiet after its faults
    faults: Counter[str] = field(default_factory=Counter)
    states: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    # Of one seed only.
    trace_hash: str = ""
    last_steps: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """A run without faults has shown nothing: it failed, too."""
        return not self.violations and self.acked > 0 and self.faults.total() > 0

    @property
    def never(self) -> list[str]:
        """Faults and states that did not come about."""
        return sorted((FAULTS - self.faults.keys()) | (STATES - self.states.keys()))

    def add(self, other: SimReport) -> None:
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.virtual_s += other.virtual_s
        self.quiet_s = max(self.quiet_s, other.quiet_s)
        self.faults += other.faults
        self.states += other.states
        self.violations += other.violations

    def to_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            **{name: getattr(self, name) for name in _SUMS},
            "virtual_s": round(self.virtual_s, 3),
            "quiet_s": round(self.quiet_s, 3),
            "faults": dict(sorted(self.faults.items())),
            "states": dict(sorted(self.states.items())),
            "never": self.never,
            "violations": self.violations,
        }
