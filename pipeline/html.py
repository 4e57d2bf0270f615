"""Pages of HTML that need nothing else: tables, and plots as inline SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

WIDTH, LEFT, TOP = 960, 60, 8  # pixels of a plot
COLOURS = ("#1f6fb4", "#c62828", "#2e7d32", "#8e5bb5", "#b26a00")  # of the series of a plot
GRID, GREY = "#e8e8e8", "#555555"
_STYLE = """
body { font: 14px/1.4 system-ui, sans-serif; margin: 2em auto; max-width: 1060px; color: #222 }
table { border-collapse: collapse; margin: 1em 0 }
td, th { border-bottom: 1px solid #ddd; padding: 2px 9px; text-align: right }
td:first-child, th:first-child, td.text { text-align: left }
svg { display: block; margin: 2px 0 }
.bad { color: #b00020; font-weight: 600 } .good { color: #1b6e3c }
pre { background: #f5f5f5; padding: 8px; overflow-x: auto }
"""


def document(title: str, body: str) -> str:
    """The whole page."""
    return (
        f"<!doctype html><html lang=en><head><meta charset=utf-8><title>{escape(title)}</title>"
        f"<style>{_STYLE}</style></head><body>{body}</body></html>\n"
    )


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table."""
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


def svg(height: float, parts: Sequence[str]) -> str:
    """A plot of these parts."""
    size = f'width="{LEFT + WIDTH + 20}" height="{height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{"".join(parts)}</svg>'


def label(x: float, y: float, text: str, anchor: str, colour: str = GREY) -> str:
    style = f'font-family="sans-serif" font-size="11" text-anchor="{anchor}" fill="{colour}"'
    return f'<text x="{x}" y="{y}" {style}>{escape(text)}</text>'


def stroke(x1: float, y1: float, x2: float, y2: float, colour: str, *, dashed: bool = False) -> str:
    dashes = ' stroke-dasharray="3 3"' if dashed else ""
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{colour}"{dashes}/>'


def grid(top: float, bottom: float, most: float) -> list[str]:
    """Lines at nothing, half and all of `most`, and their numbers."""
    parts = []
    for share in (0.0, 0.5, 1.0):
        y = round(bottom - (bottom - top) * share, 1)
        parts.append(stroke(LEFT, y, LEFT + WIDTH, y, GRID))
        parts.append(label(LEFT - 6, y + 4, f"{most * share:,.4g}", "end"))
    return parts


def bars(title: str, names: Sequence[str], values: Sequence[float], height: int = 130) -> str:
    """A bar for each value; as many names below as there is room for."""
    most = max(values, default=0) or 1.0
    bottom = TOP + height
    step = WIDTH / max(len(values), 1)
    parts = grid(TOP, bottom, most)
    for number, value in enumerate(values):
        size = round(height * value / most, 1)
        x, wide = round(LEFT + number * step + step * 0.1, 1), round(step * 0.8, 2)
        place = f'x="{x}" y="{round(bottom - size, 1)}" width="{wide}" height="{size}"'
        hint = f"<title>{escape(f'{names[number]}: {value:,.6g}')}</title>"
        parts.append(f'<rect {place} fill="{COLOURS[0]}">{hint}</rect>')
    every = max(1, -(-len(names) * 90 // WIDTH))
    for number in range(0, len(names), every):
        parts.append(label(LEFT + (number + 0.5) * step, bottom + 13, names[number], "middle"))
    parts.append(label(LEFT, bottom + 28, title, "start"))
    return svg(bottom + 34, parts)


def lines(
    title: str, names: Sequence[str], series: Mapping[str, Sequence[float]], height: int = 130
) -> str:
    """A line for each of the series over the same names."""
    most = max((value for values in series.values() for value in values), default=0) or 1.0
    bottom = TOP + height
    step = WIDTH / max(len(names), 1)
    parts = grid(TOP, bottom, most)
    for colour, values in zip(COLOURS, series.values(), strict=False):
        points = " ".join(
            f"{round(LEFT + (n + 0.5) * step, 1)},{round(bottom - height * value / most, 1)}"
            for n, value in enumerate(values)
        )
        style = f'fill="none" stroke="{colour}" stroke-width="1.4"'
        parts.append(f'<polyline points="{points}" {style}/>')
        if len(values) == 1:
            x, y = points.split(",")
            parts.append(f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>')
    every = max(1, -(-len(names) * 90 // WIDTH))
    for number in range(0, len(names), every):
        parts.append(label(LEFT + (number + 0.5) * step, bottom + 13, names[number], "middle"))
    parts.append(label(LEFT, bottom + 28, title, "start"))
    for index, (colour, name) in enumerate(zip(COLOURS, series, strict=False)):
        parts.append(label(LEFT + 240 + index * 140, bottom + 28, name, "start", colour))
    return svg(bottom + 34, parts)
