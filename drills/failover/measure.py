"""The measurements of a drill, from its history: rates, latencies, and how long faults were felt.
Pure.

For each fault, until the next one:

| figure | what it is |
|---|---|
| `send_s` | until the cluster acknowledged a send that began after the fault |
| `stall_s` | the longest wait of a sender that may use any broker for an acknowledgement, \
the median of these senders |
| `stall_max_s` | of the worst of them |
| `send_group_s` | until the group that was hurt acknowledged a send again |
| `read_s` | until old messages of the group that was hurt could be read again |
| `consume_s` | the longest time without any delivery to a group of consumers |

None: it did not happen before the next fault, or nothing tells.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from saturnmq.drills.failover.history import Event, History

ANYWHERE = ("free-",)  # senders that may use any broker and repeat what failed
BIN_S = 0.25


@dataclass
class Effect:
    """The effect of one fault on clients; seconds."""

    at: float
    what: str
    group: str
    send_s: float | None = None
    stall_s: float | None = None
    stall_max_s: float | None = None
    send_group_s: float | None = None
    read_s: float | None = None
    consume_s: float | None = None


@dataclass
class Timeline:
    """Sums of each `BIN_S` of the drill."""

    acked: list[int] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)  # refused or unknown
    delivered: dict[str, list[int]] = field(default_factory=dict)  # by group
    latency_ms: list[float | None] = field(default_factory=list)  # median
    latency_max_ms: list[float | None] = field(default_factory=list)
    marks: list[tuple[float, str, str]] = field(default_factory=list)  # when, kind, what


def timeline(history: History) -> Timeline:
    """The data of the plot."""
    bins = int(max((event.at for event in history.events), default=0.0) / BIN_S) + 1
    line = Timeline([0] * bins, [0] * bins)
    latencies: list[list[float]] = [[] for _ in range(bins)]
    begun: dict[str, float] = {}
    for event in history.events:
        index = int(event.at / BIN_S)
        if event.kind == "invoke":
            begun[event.value] = event.at
        elif event.kind == "ok":
            line.acked[index] += 1
            latencies[index].append((event.at - begun[event.value]) * 1000)
        elif event.kind in ("fail", "unknown"):
            line.failed[index] += 1
        elif event.kind == "deliver":
            line.delivered.setdefault(event.who, [0] * bins)[index] += 1
        elif event.kind in ("fault", "heal", "calm"):
            line.marks.append((event.at, event.kind, event.who or "calm"))
    line.latency_ms = [round(median(each), 2) if each else None for each in latencies]
    line.latency_max_ms = [round(max(each), 2) if each else None for each in latencies]
    return line


def latency_ms(history: History) -> dict[str, float]:
    """Median, 99th percentile and most of all acknowledged sends."""
    begun = {event.value: event.at for event in history.of("invoke")}
    taken = sorted((event.at - begun[event.value]) * 1000 for event in history.of("ok"))
    if not taken:
        return {}
    at = {"median": len(taken) // 2, "p99": len(taken) * 99 // 100, "max": len(taken) - 1}
    return {name: round(taken[index], 2) for name, index in at.items()}


def effects(history: History) -> list[Effect]:
    """The effect of each fault, in their order."""
    faults = list(history.of("fault"))
    if not faults:  # the drill broke before
        return []
    last = max((event.at for event in history.events), default=0.0)
    ends = [fault.at for fault in faults[1:]] + [last]
    begun = {event.value: event.at for event in history.of("invoke")}
    acks = list(history.of("ok"))
    reads = list(history.of("read"))
    deliveries = list(history.of("deliver"))
    found = []
    for fault, end in zip(faults, ends, strict=True):
        done = history.struck_at(fault)
        effect = Effect(round(fault.at, 3), fault.who, fault.broker)
        later = [ack for ack in acks if done <= begun[ack.value] and ack.at <= end]
        effect.send_s = _first(fault.at, later)
        stalls = _stalls(acks, fault.at, end)
        if stalls:
            effect.stall_s, effect.stall_max_s = round(median(stalls), 3), round(max(stalls), 3)
        if fault.broker:
            effect.send_group_s = _first(
                fault.at, [ack for ack in later if ack.broker == fault.broker]
            )
            effect.read_s = _first(
                fault.at,
                [
                    read
                    for read in reads
                    if read.broker == fault.broker and float(read.note) >= done and read.at <= end
                ],
            )
        by_group: dict[str, list[float]] = defaultdict(list)
        for event in deliveries:
            if event.at <= end:
                by_group[event.who].append(event.at)
        gaps = [_longest_gap(times, fault.at) for times in by_group.values()]
        effect.consume_s = max((gap for gap in gaps if gap is not None), default=None)
        found.append(effect)
    return found


def _first(since: float, events: Sequence[Event]) -> float | None:
    return round(min(event.at for event in events) - since, 3) if events else None


def _stalls(acks: Iterable[Event], since: float, until: float) -> list[float]:
    times: dict[str, list[float]] = defaultdict(list)
    for ack in acks:
        if ack.who.startswith(ANYWHERE) and ack.at <= until:
            times[ack.who].append(ack.at)
    gaps = [_longest_gap(each, since) for each in times.values()]
    return [gap for gap in gaps if gap is not None]


def _longest_gap(times: Sequence[float], since: float) -> float | None:
    """The longest gap between neighbouring times that ends after `since`; the part before `since`
    does not count."""
    longest: float | None = None
    before = since
    for at in times:
        if at <= since:
            continue
        longest = max(longest or 0.0, at - before)
        before = at
    return None if longest is None else round(longest, 3)


def medians(all_effects: Iterable[Effect]) -> dict[str, Any]:
    """Each figure's median over faults that have it, and how many those are."""
    rows = [asdict(effect) for effect in all_effects]
    found: dict[str, Any] = {}
    for name in ("send_s", "stall_s", "stall_max_s", "send_group_s", "read_s", "consume_s"):
        values = [row[name] for row in rows if row[name] is not None]
        found[name] = round(median(values), 3) if values else None
    return {"faults": len(rows), **found}
