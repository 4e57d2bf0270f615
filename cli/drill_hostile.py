"""`saturnmq drill run hostile-clients`."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import typer
from saturnmq.cli.output import emit, table


def hostile(minutes: float, as_json: bool) -> None:
    """Exit status 1 on a violation."""
    from saturnmq.drills.hostile import drill

    def say(text: str) -> None:
        print(f"  {text}", file=sys.stderr, flush=True)

    with TemporaryDirectory(prefix="saturnmq-hostile-") as root:
        report = drill.run(Path(root), 60 * minutes, say)
    if as_json:
        emit(report.to_json())
    else:
        rows = report.table()
        table("", list(rows[0]), [list(row.values()) for row in rows])
        for violation in report.violations:
            print(violation)
    if report.violations:
        raise typer.Exit(1)
