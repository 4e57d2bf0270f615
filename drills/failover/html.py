"""The report of drills as one HTML page that needs nothing else: tables, and a plot for each drill
of rates and latencies over time with the faults marked, as inline SVG.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import log10
from typing import Any

from saturnmq.drills.failover.measure import BIN_S, Timeline
from saturnmq.drills.failover.report import DrillReport, DrillsReport
from saturnmq.pipeline.html import (
    COLOURS,
    GRID,
    LEFT,
    TOP,
    WIDTH,
    document,
    label,
    stroke,
    svg,
    table,
)

HEIGHT = 130  # pixels of a plot
MARKS = 38  # pixels for what the marks are
LEAST = 0.1  # of a logarithmic axis
_MARKS = {"fault": "#c62828", "heal": "#2e7d32", "calm": "#888"}


def page(report: DrillsReport) -> str:
    """The whole document."""
    result = "no drill ran"
    if report.ran:
        count = len(report.violations)
        result = f"{count} violations" if count else f"{len(report.ran)} drills, no violation"
    quality = "good" if report.ran and not report.violations else "bad"
    parts = [f"<h1>Drills</h1><p class={quality}>{result}</p>", _table(report.summary())]
    skipped = [(d.name, d.mode, d.skipped) for d in report.drills if d.skipped]
    if skipped:
        parts.append("<h2>Skipped</h2>" + table(["drill", "mode", "reason"], skipped))
    parts += [_drill(drill) for drill in report.ran]
    return document("SaturnMQ drills", "".join(parts))


def _drill(drill: DrillReport) -> str:
    title = f"{drill.name}, mode {drill.mode}, seed {drill.seed}"
    parts = [f"<h2>{escape(title)}</h2>"]
    if drill.verdict.violations:
        texts = "\n".join(map(escape, drill.verdict.violations))
        parts.append(f"<pre class=bad>{texts}</pre><pre>{escape(drill.again)}</pre>")
    counts = sorted((name, number) for name, number in drill.verdict.counts.items())
    parts.append(table(["", ""], counts))
    if drill.latency_ms:
        told = ", ".join(f"{name} {value} ms" for name, value in drill.latency_ms.items())
        parts.append(f"<p>latency of sends: {told}</p>")
    effects = [
        (e.at, e.what, e.send_s, e.stall_s, e.stall_max_s, e.send_group_s, e.read_s, e.consume_s)
        for e in drill.effects
    ]
    columns = ["at s", "fault", "send s", "stall s", "worst stall s", "group s", "read s"]
    parts.append(table([*columns, "no delivery s"], effects))
    parts.append(_plots(drill.timeline))
    return "".join(parts)


def _table(rows: Sequence[dict[str, Any]]) -> str:
    return table(list(rows[0]), [list(row.values()) for row in rows]) if rows else ""


# -- plots ----------------------------------------------------------------------------------------


def _plots(line: Timeline) -> str:
    if not line.acked:
        return ""

    def rates(counts: Sequence[int]) -> list[float | None]:
        return [count / BIN_S for count in counts]

    sends = {"acked": rates(line.acked), "refused or unknown": rates(line.failed)}
    deliveries = {group: rates(counts) for group, counts in line.delivered.items()}
    latencies = {"median": line.latency_ms, "max": line.latency_max_ms}
    return (
        _plot("sends a second", sends, line, marked=True)
        + _plot("deliveries a second", deliveries, line)
        + _plot("latency of sends, ms (logarithmic)", latencies, line, logarithmic=True)
    )


class _Axes:
    """Seconds and values to pixels."""

    def __init__(self, seconds: float, most: float, top: int, *, logarithmic: bool) -> None:
        self.top, self.bottom = top, top + HEIGHT
        self._seconds, self._most = seconds, max(most, 10.0)
        self._logarithmic = logarithmic
        self.ticks = [self._most, self._most / 2]
        if logarithmic:
            powers = (10.0**power for power in range(-1, 6))
            self.ticks = [tick for tick in powers if tick <= self._most]

    def x(self, at: float) -> float:
        return round(LEFT + at / self._seconds * WIDTH, 1)

    def y(self, value: float) -> float:
        share = value / self._most
        if self._logarithmic:
            share = log10(max(value, LEAST) / LEAST) / log10(self._most / LEAST)
        return round(self.bottom - HEIGHT * share, 1)

    def runs(self, numbers: Sequence[float | None]) -> list[str]:
        """The points of each run without holes, as a polyline has them."""
        runs: list[list[str]] = [[]]
        for index, value in enumerate(numbers):
            if value is None:
                runs.append([])
            else:
                runs[-1].append(f"{self.x((index + 0.5) * BIN_S)},{self.y(value)}")
        return [" ".join(run) for run in runs if run]


def _plot(
    title: str,
    series: Mapping[str, Sequence[float | None]],
    line: Timeline,
    *,
    marked: bool = False,
    logarithmic: bool = False,
) -> str:
    seconds = len(line.acked) * BIN_S
    most = max((value or 0.0 for each in series.values() for value in each), default=0.0)
    axes = _Axes(seconds, most, TOP + (MARKS if marked else 0), logarithmic=logarithmic)
    parts = []
    for tick in axes.ticks:
        y = axes.y(tick)
        parts.append(stroke(LEFT, y, LEFT + WIDTH, y, GRID))
        parts.append(label(LEFT - 6, y + 4, f"{tick:,.4g}", "end"))
    for second in range(0, int(seconds) + 1, max(1, round(seconds / 12))):
        parts.append(label(axes.x(second), axes.bottom + 13, f"{second} s", "middle"))
    for index, (at, kind, what) in enumerate(line.marks):
        x, colour = axes.x(at), _MARKS[kind]
        parts.append(stroke(x, axes.top, x, axes.bottom, colour, dashed=True))
        if marked:
            behind = x > LEFT + WIDTH * 0.8
            anchor = "end" if behind else "start"
            parts.append(label(x, TOP + 8 + index % 3 * 12, what, anchor, colour))
    for colour, (_, numbers) in zip(COLOURS, series.items(), strict=False):
        parts += [
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.4"/>'
            for points in axes.runs(numbers)
        ]
    parts.append(label(LEFT, axes.bottom + 28, title, "start"))
    for index, (colour, name) in enumerate(zip(COLOURS, series, strict=False)):
        parts.append(label(LEFT + 240 + index * 140, axes.bottom + 28, name, "start", colour))
    return svg(axes.bottom + 34, parts)
