"""The report of a crash drill."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass
class CrashReport:
    """Figures of one life of a store, or of many added up; `ok` means that nothing was violated
    and that something was tried.
    """

    seeds: int = 0
    images: int = 0
    recoveries: int = 0
    boundaries: int = 0
    messages: int = 0
    acked: int = 0
    operations: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    checks: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """A run without faults has shown nothing: it failed, too."""
        return not self.violations and self.images > 0 and self.faults.total() > 0

    def add(self, other: CrashReport) -> None:
        for name in ("seeds", "images", "recoveries", "boundaries", "messages", "acked"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.operations += other.operations
        self.faults += other.faults
        self.checks += other.checks
        self.violations += other.violations

    def to_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "seeds": self.seeds,
            "images": self.images,
            "recoveries": self.recoveries,
            "boundaries": self.boundaries,
            "messages": self.messages,
            "acked": self.acked,
            "operations": dict(self.operations),
            "faults": dict(self.faults),
            "checks": dict(self.checks),
            "violations": self.violations,
        }
