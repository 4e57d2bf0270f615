"""The report of a drill: as a value, as JSON, as lines for people."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from saturnmq.drills.failover.checker import DrillVerdict
from saturnmq.drills.failover.measure import Effect, Timeline, medians


@dataclass
class DrillReport:
    """One drill, one seed, one mode."""

    name: str
    mode: str
    seed: int
    skipped: str = ""  # why it could not run here
    seconds: float = 0.0
    verdict: DrillVerdict = field(default_factory=DrillVerdict)
    effects: list[Effect] = field(default_factory=list)
    latency_ms: dict[str, float] = field(default_factory=dict)
    timeline: Timeline = field(default_factory=Timeline)
    kept: Path | None = None  # history, logs and stores, if something is wrong or it was asked for
    options: str = ""  # of the command line, beyond seed and mode

    @property
    def ok(self) -> bool:
        return bool(self.skipped) or self.verdict.ok

    @property
    def again(self) -> str:
        """The command that runs it once more."""
        command = f"saturnmq drill run {self.name} --seed {self.seed} --mode {self.mode}"
        return f"{command} {self.options}".rstrip()

    def to_json(self) -> dict[str, Any]:
        if self.skipped:
            return {"name": self.name, "mode": self.mode, "skipped": self.skipped}
        return {
            "name": self.name,
            "mode": self.mode,
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            **self.verdict.to_json(),
            "latency_ms": self.latency_ms,
            "medians": medians(self.effects),
            "effects": [asdict(effect) for effect in self.effects],
            "again": self.again,
            "kept": str(self.kept) if self.kept else None,
        }


def duplicates(verdict: DrillVerdict) -> int:
    """Second deliveries, over all groups."""
    return sum(n for name, n in verdict.counts.items() if name.startswith("duplicates of "))


@dataclass
class DrillsReport:
    """Several drills."""

    drills: list[DrillReport] = field(default_factory=list)

    @property
    def ran(self) -> list[DrillReport]:
        return [drill for drill in self.drills if not drill.skipped]

    @property
    def violations(self) -> list[str]:
        return [
            f"{drill.name}, mode {drill.mode}, seed {drill.seed}: {text}"
            for drill in self.ran
            for text in drill.verdict.violations
        ]

    def summary(self) -> list[dict[str, Any]]:
        """A row for each drill and mode, over its seeds."""
        groups: dict[tuple[str, str], list[DrillReport]] = {}
        for drill in self.ran:
            groups.setdefault((drill.name, drill.mode), []).append(drill)
        return [_summary(*key, drills) for key, drills in groups.items()]

    def to_json(self) -> dict[str, Any]:
        return {
            "ok": bool(self.ran) and not self.violations,
            "summary": self.summary(),
            "violations": self.violations,
            "drills": [drill.to_json() for drill in self.drills],
        }


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


def _summary(name: str, mode: str, drills: list[DrillReport]) -> dict[str, Any]:
    counts = [drill.verdict.counts for drill in drills]
    middle = medians(effect for drill in drills for effect in drill.effects)
    return {
        "drill": name,
        "mode": mode,
        "seeds": len(drills),
        "acked": sum(each["acknowledged"] for each in counts),
        "unknown": sum(each["unknown"] for each in counts),
        "refused": sum(each["refused"] for each in counts),
        "duplicates": sum(duplicates(drill.verdict) for drill in drills),
        "RPO": sum(each["lost in the window of the mode"] for each in counts),
        "RPO ms": round(max(drill.verdict.rpo_ms for drill in drills), 1),
        "send ms": _ms(middle["send_s"]),
        "stall ms": _ms(middle["stall_s"]),
        "group ms": _ms(middle["send_group_s"]),
        "read ms": _ms(middle["read_s"]),
        "violations": sum(len(drill.verdict.violations) for drill in drills),
    }
