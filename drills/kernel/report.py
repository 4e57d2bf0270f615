"""The report of a kernel drill, with the figures of docs/measurements/power-cuts.md."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

SATURNMQ, ROCKETMQ = "saturnmq", "rocketmq"
ASYNC_BOUND_MS = 500.0  # docs/guarantees.md 2.2: what async flush may lose


@dataclass
class ImageLoss:
    """Acknowledged messages that one image of the disk does not hold."""

    messages: int = 0
    # From the acknowledgement of the first of them to that of the last. How long before the power
    # cut they lie is no measure: behind a disk that stalls nothing is acknowledged any more.
    ms: float = 0.0

    @classmethod
    def of(cls, times: list[float]) -> ImageLoss:
        """The loss of messages that were acknowledged at these monotonic seconds."""
        return cls(len(times), (max(times) - min(times)) * 1000) if times else cls()

    def violations(self, *, sync: bool) -> list[str]:
        lost = f"{self.messages} acknowledged messages, {self.ms:.0f} ms of acknowledgements"
        if sync and self.messages:
            return [f"I1: sync flush lost {lost}"]
        if self.ms > ASYNC_BOUND_MS:
            return [f"I1: async flush lost {lost}, the bound is {ASYNC_BOUND_MS:.0f} ms"]
        return []


@dataclass
class KernelRun:
    """One life of a broker under load, and what its power cuts or block errors left."""

    kind: str  # "power cut", or the name of the block error
    seed: int
    flush: str  # sync | async
    rate: int  # messages per second asked for
    server: str = SATURNMQ
    acked: int = 0
    refused: int = 0
    seconds_of_load: float = 0.0
    losses: list[ImageLoss] = field(default_factory=list)  # one for each image
    faults: dict[str, int] = field(default_factory=dict)  # faults of the block device, by kind
    violations: list[str] = field(default_factory=list)


@dataclass
class KernelReport:
    """All runs of a drill."""

    seed: int
    machine: str = ""
    seconds: float = 0.0
    runs: list[KernelRun] = field(default_factory=list)

    @property
    def images(self) -> int:
        """Power cuts looked at."""
        return sum(len(run.losses) for run in self.runs if run.kind == "power cut")

    @property
    def errors(self) -> int:
        """Runs on a block device with faults."""
        return sum(run.kind != "power cut" for run in self.runs)

    @property
    def acked(self) -> int:
        return sum(run.acked for run in self.runs)

    @property
    def violations(self) -> list[str]:
        """Each names the run that shows it. Nothing done counts as one."""
        found = [
            f"{run.kind}, {run.flush} flush, {run.rate:,} msg/s, seed {run.seed}: {text}"
            for run in self.runs
            for text in run.violations
        ]
        return found if self.runs else ["the drill did nothing: no image, no block error"]

    def table(self) -> list[dict[str, Any]]:
        """A row for each server, kind, flush mode and rate."""
        groups: dict[tuple[str, str, str, int], list[KernelRun]] = {}
        for run in self.runs:
            groups.setdefault((run.server, run.kind, run.flush, run.rate), []).append(run)
        return [_row(*key, runs) for key, runs in groups.items()]

    def to_json(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "machine": self.machine,
            "seconds": round(self.seconds, 1),
            "images": self.images,
            "errors": self.errors,
            "acked": self.acked,
            "violations": self.violations,
            "table": self.table(),
            "runs": [asdict(run) for run in self.runs],
        }


def _row(server: str, kind: str, flush: str, rate: int, runs: list[KernelRun]) -> dict[str, Any]:
    losses = sorted((loss for run in runs for loss in run.losses), key=lambda loss: loss.ms)
    return {
        "server": server,
        "kind": kind,
        "flush": flush,
        "rate": rate,
        "runs": len(runs),
        "images": len(losses),
        "acked": sum(run.acked for run in runs),
        "images with loss": sum(loss.messages > 0 for loss in losses),
        "most lost": max((loss.messages for loss in losses), default=0),
        "median ms": round(losses[len(losses) // 2].ms, 1) if losses else 0.0,
        "most ms": round(losses[-1].ms, 1) if losses else 0.0,
        "violations": sum(len(run.violations) for run in runs),
    }
