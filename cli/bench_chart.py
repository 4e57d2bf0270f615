"""The chart of `saturnmq bench --against`: a file of SVG, without a library.

Each figure of each line is a bar as long as our advantage over the peer, on a logarithmic scale: to
the right of the middle ours is better, to the left the peer is.
"""

from __future__ import annotations

import math
from html import escape
from typing import Any

ROW, LABELS, SIDE, TEXT = 20, 380, 220, 190
MOST = 32.0  # a longer bar is cut off
GRID = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
OURS, THEIRS = "#2f7d4f", "#b5563c"


def chart(document: dict[str, Any], short: Any) -> str:
    """The SVG of a document of `versus.compare`."""
    bars = [
        (f"{name} ({row['unit']})", row)
        for name, metrics in document["lines"].items()
        for row in metrics.values()
        if row["ratio"] is not None
    ]
    width, height = LABELS + 2 * SIDE + TEXT, ROW * (len(bars) + 3)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        _text(8, 15, f"SaturnMQ beside {document['versions']}: times as good"),
    ]
    for times in GRID:
        x = _at(times)
        out.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{2 * ROW}" y2="{height - ROW}" '
            f'stroke="{"#444" if times == 1 else "#ddd"}"/>'
        )
        out.append(_text(x, 2 * ROW - 6, f"{times:g}", "middle"))
    for number, (label, row) in enumerate(bars):
        top, ratio = ROW * (number + 2) + 3, row["ratio"]
        ends = sorted((_at(1.0), _at(ratio)))
        color = OURS if ratio >= 1 else THEIRS
        out.append(_text(LABELS - 8, top + 11, label, "end"))
        out.append(
            f'<rect x="{ends[0]:.1f}" y="{top}" width="{ends[1] - ends[0]:.1f}" '
            f'height="{ROW - 6}" fill="{color}"/>'
        )
        told = f"{ratio:.2f}: {short(row['ours'])} / {short(row['theirs'])}"
        out.append(_text(LABELS + 2 * SIDE + 8, top + 11, told))
    return "\n".join([*out, "</svg>", ""])


def _at(ratio: float) -> float:
    part = math.log(min(max(ratio, 1 / MOST), MOST)) / math.log(MOST)
    return LABELS + SIDE + SIDE * part


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'
