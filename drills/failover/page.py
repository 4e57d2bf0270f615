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

WIDTH, HEIGHT, LEFT, TOP = 960, 130, 60, 8  # pixels of a plot
MARKS = 38  # pixels for what the marks are
LEAST = 0.1  # of a logarithmic axis
_STYLE = """
body { font: 14px/1.4 system-ui, sans-serif; margin: 2em auto; max-width: 1060px; color: #222 }
table { border-collapse: collapse; margin: 1em 0 }
td, th { border-bottom: 1px solid #ddd; padding: 2px 9px; text-align: right }
td:first-child, th:first-child, td.text { text-align: left }
svg { display: block; margin: 2px 0 }
.bad { color: #b00020; font-weight: 600 } .good { color: #1b6e3c }
pre { background: #f5f5f5; padding: 8px; overflow-x: auto }
"""
_COLOURS = ("#1f6fb4", "#c62828", "#2e7d32", "#8e5bb5")  # of the series of a plot
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
        parts.append("<h2>Skipped</h2>" + _rows(["drill", "mode", "reason"], skipped))
    parts += [_drill(drill) for drill in report.ran]
    return (
        "<!doctype html><html lang=en><head><meta charset=utf-8><title>SaturnMQ drills</title>"
        f"<style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def _drill(drill: DrillReport) -> str:
    title = f"{drill.name}, mode {drill.mode}, seed {drill.seed}"
    parts = [f"<h2>{escape(title)}</h2>"]
    if drill.verdict.violations:
        texts = "\n".join(map(escape, drill.verdict.violations))
        parts.append(f"<pre class=bad>{texts}</pre><pre>{escape(drill.again)}</pre>")
    counts = sorted((name, number) for name, number in drill.verdict.counts.items())
    parts.append(_rows(["", ""], counts))
    if drill.latency_ms:
        told = ", ".join(f"{name} {value} ms" for name, value in drill.latency_ms.items())
        parts.append(f"<p>latency of sends: {told}</p>")
    effects = [
        (e.at, e.what, e.send_s, e.stall_s, e.stall_max_s, e.send_group_s, e.read_s, e.consume_s)
        for e in drill.effects
    ]
    columns = ["at s", "fault", "send s", "stall s", "worst stall s", "group s", "read s"]
    parts.append(_rows([*columns, "no delivery s"], effects))
    parts.append(_plots(drill.timeline))
    return "".join(parts)


def _table(rows: Sequence[dict[str, Any]]) -> str:
    return _rows(list(rows[0]), [list(row.values()) for row in rows]) if rows else ""


def _rows(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _cell(value: Any) -> str:
    if value is None:
        return "<td>-</td>"
    if isinstance(value, int):
        return f"<td>{value:,}</td>"
    kind = " class=text" if isinstance(value, str) else ""
    return f"<td{kind}>{escape(str(value))}</td>"


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
        parts.append(_line(LEFT, y, LEFT + WIDTH, y, "#e8e8e8"))
        parts.append(_text(LEFT - 6, y + 4, f"{tick:,.4g}", "end"))
    for second in range(0, int(seconds) + 1, max(1, round(seconds / 12))):
        parts.append(_text(axes.x(second), axes.bottom + 13, f"{second} s", "middle"))
    for index, (at, kind, what) in enumerate(line.marks):
        x, colour = axes.x(at), _MARKS[kind]
        parts.append(_line(x, axes.top, x, axes.bottom, colour, dashed=True))
        if marked:
            behind = x > LEFT + WIDTH * 0.8
            anchor = "end" if behind else "start"
            parts.append(_text(x, TOP + 8 + index % 3 * 12, what, anchor, colour))
    for colour, (_, numbers) in zip(_COLOURS, series.items(), strict=False):
        parts += [
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.4"/>'
            for points in axes.runs(numbers)
        ]
    parts.append(_text(LEFT, axes.bottom + 28, title, "start"))
    for index, (colour, name) in enumerate(zip(_COLOURS, series, strict=False)):
        parts.append(_text(LEFT + 240 + index * 140, axes.bottom + 28, name, "start", colour))
    size = f'width="{LEFT + WIDTH + 20}" height="{axes.bottom + 34}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{"".join(parts)}</svg>'


def _text(x: float, y: float, text: str, anchor: str, colour: str = "#555555") -> str:
    style = f'font-family="sans-serif" font-size="11" text-anchor="{anchor}" fill="{colour}"'
    return f'<text x="{x}" y="{y}" {style}>{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, *, dashed: bool = False) -> str:
    dashes = ' stroke-dasharray="3 3"' if dashed else ""
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{colour}"{dashes}/>'
