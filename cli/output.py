"""What the commands share: options that exist everywhere, tables, JSON, progress bars and the way
errors end.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, NoReturn

import typer

NAMESERVER_VARIABLE = "SATURNMQ_NAMESERVER"
DEFAULT_NAMESERVER = "127.0.0.1:9876"
FILE_WIDTH = 1_000

Nameserver = Annotated[
    str,
    typer.Option(
        "--nameserver",
        envvar=NAMESERVER_VARIABLE,
        metavar="HOST:PORT[,...]",
        help="Nameservers to ask for routes.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


def addresses(text: str) -> list[str]:
    """`a:1,b:2` or RocketMQ's `a:1;b:2` as a list."""
    found = [part.strip() for part in text.replace(";", ",").split(",") if part.strip()]
    for part in found:
        host, _, port = part.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            fail(f"--nameserver wants HOST:PORT[,...], not {part!r}")
    if not found:
        fail(f"no nameserver: pass --nameserver HOST:PORT or set {NAMESERVER_VARIABLE}")
    return found


def fail(text: str) -> NoReturn:
    """End with exit status 1 and one line that says why."""
    print(f"saturnmq: {text}", file=sys.stderr)
    raise typer.Exit(1)


def emit(value: Any) -> None:
    """One JSON document on standard output."""
    print(json.dumps(value, default=str))


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table on standard output; numbers are set to the right, nothing is cut off."""
    from rich.console import Console
    from rich.table import Table

    listed = [list(row) for row in rows]
    if title:
        print(title)
    result = Table()
    for index, column in enumerate(columns):
        cells = [row[index] for row in listed if row[index] not in (None, "")]
        numeric = bool(cells) and all(isinstance(cell, int | float) for cell in cells)
        result.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in listed:
        result.add_row(*(_cell(value) for value in row))
    console = Console()
    if not console.is_terminal:
        console.width = FILE_WIDTH  # rich takes a file or a pipe for 80 columns
    console.print(result)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    from rich.markup import escape

    return escape(str(value))


def progress_bar() -> Any:
    """A bar with count and speed on standard error, silent when that is not a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
