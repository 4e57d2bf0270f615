"""Which rows of the store's rules have a test: `rows.tsv` against the test functions beside it.

A row is covered by a function whose name begins with its id (`test_row_1_17_...`); a last column in
`rows.tsv` names what of the row this version does not have or does otherwise. This table is
`docs/store-coverage.md`: `python tests/rules/row_coverage.py --write`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
DOCUMENT = HERE.parent.parent / "docs" / "store-coverage.md"
SOURCES = {
    "0": "three files, mmap, IndexFile",
    "1": "message storage",
    "2": "ConsumeQueue and IndexFile",
    "3": "questions and answers",
}
_NAME = re.compile(r"test_row_(\d)_(\d\d)(?:_|$)")


@dataclass
class Row:
    """One statement; `tests` are (file, function)."""

    id: str
    mark: str
    statement: str
    lacks: str
    tests: list[tuple[str, str]] = field(default_factory=list)


def row_of(test: str) -> str | None:
    """The id in a test's name, or None."""
    found = _NAME.match(test)
    return f"{found[1]}.{found[2]}" if found else None


def read_rows() -> dict[str, Row]:
    """Every row with the tests that carry its id."""
    lines = (HERE / "rows.tsv").read_text().splitlines()[1:]
    rows = {row.id: row for row in (Row(*line.split("\t")) for line in lines)}
    for path in sorted(HERE.glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and (row := row_of(node.name)):
                rows[row].tests.append((path.name, node.name))
    return rows


def missing(rows: Iterable[Row]) -> list[str]:
    """Ids without a test."""
    return [row.id for row in rows if not row.tests]


def document(rows: Iterable[Row]) -> str:
    """The text of `docs/store-coverage.md`."""
    rows = list(rows)
    lines = [
        "# The rules of the store and their tests",
        "",
        "Made by `python tests/rules/row_coverage.py --write`. Each row is a statement of",
        "one of the four articles that the store follows. `=`: RocketMQ's code agrees; `DIFF`: it",
        "differs, and the statement says how both are met; `CLI`: it is the client's.",
        "",
        f"{len(rows) - len(missing(rows))} of {len(rows)} rows have tests.",
    ]
    for source, title in SOURCES.items():
        lines += ["", f"## Article {source}: {title}", ""]
        lines += ["| row | | statement | tests |", "|---|---|---|---|"]
        for row in rows:
            if row.id.startswith(source):
                tests = ", ".join(f"`{name}`" for _, name in row.tests) or "**none**"
                lacks = f" (but: {row.lacks})" if row.lacks else ""
                lines.append(f"| {row.id} | {row.mark} | {row.statement}{lacks} | {tests} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print what is missing; with --write also write the document."""
    rows = read_rows().values()
    if "--write" in sys.argv[1:]:
        DOCUMENT.parent.mkdir(exist_ok=True)
        DOCUMENT.write_text(document(rows))
    absent = missing(rows)
    print(f"{len(rows) - len(absent)} of {len(rows)} rows have tests")
    print(f"missing: {', '.join(absent) or 'none'}")


if __name__ == "__main__":
    main()
