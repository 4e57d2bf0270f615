"""Lets the tests of this folder share its modules, and prints which rows a run has covered."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from row_coverage import missing, read_rows, row_of  # noqa: E402

_outcomes: dict[str, set[str]] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        row = row_of(report.nodeid.partition("::")[2])
        if row is not None:
            _outcomes.setdefault(row, set()).add(report.outcome)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The table of rows, when more than a few of them ran."""
    if len(_outcomes) < 20:
        return
    rows = read_rows()
    terminalreporter.section("rules of the store")
    for source in "0123":
        ids = [row for row in rows if row.startswith(source)]
        marks = [f"{row}{_mark(_outcomes.get(row, set()))}" for row in ids]
        for at in range(0, len(marks), 14):
            terminalreporter.write_line(" ".join(f"{mark:6}" for mark in marks[at : at + 14]))
    passed = sum(outcomes == {"passed"} for outcomes in _outcomes.values())
    terminalreporter.write_line(
        f"{passed} of {len(rows)} rows passed (! failed, ~ skipped, - did not run); "
        f"without a test: {', '.join(missing(rows.values())) or 'none'}"
    )


def _mark(outcomes: set[str]) -> str:
    if not outcomes:
        return "-"
    if "failed" in outcomes:
        return "!"
    return "~" if "skipped" in outcomes else ""
