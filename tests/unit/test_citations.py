"""What code, tests and documents cite exists: documents, their sections, invariants, tests.

A section is cited as `docs/internals/format.md 2.1`, a rule of docs/guarantees.md by its
identifier: I1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import chain, pairwise
from pathlib import Path

import pytest
from saturnmq.drills.mutants import MUTANTS as STORE_MUTANTS
from saturnmq.drills.sim.mutants import MUTANTS

ROOT = Path(__file__).parents[2]
FOLDERS = (
    *("benchmarks", "broker", "cli", "client", "compose", "docs", "drills", "examples"),
    *("gateway", "nameserver", "pipeline", "protocol", "runtime", "store", "tests", "tools"),
)
SUFFIXES = {".md", ".py", ".pyi", ".pyx", ".java", ".toml", ".tsv", ".txt", ".yml"}
NUMBERED = ("docs/internals/format.md", "docs/internals/protocol.md", "docs/guarantees.md")
GUARANTEES = ROOT / "docs" / "guarantees.md"
WITHOUT_TEST = {"N12"}  # nothing is promised, and there is nothing to show

IDENTIFIER = re.compile(r"(?<![\w#&])([IGSFRN][1-9]\d?)(?!\w)")
_NUMBER = r"\d+(?:\.\d+)*"
SECTION = re.compile(rf"\b(\w+)\.md\]? ((?:{_NUMBER})(?:(?:, | and |-| to ){_NUMBER})*)(?![\w.]\w)")
HEADING = re.compile(rf"^#+ (?:({_NUMBER})\.? )?(.+)$", re.MULTILINE)


@cache
def sources() -> dict[Path, str]:
    """All texts of ours; a line that is broken within a comment is one."""
    within = chain.from_iterable((ROOT / folder).rglob("*") for folder in FOLDERS)
    paths = [path for path in within if path.suffix in SUFFIXES and "data" not in path.parts]
    return {path: path.read_text() for path in sorted([*ROOT.glob("*.md"), *paths])}


def flat(text: str) -> str:
    return re.sub(r"\s*\n\s*(?:# )?", " ", text)


def headings(document: Path) -> list[tuple[str, str]]:
    """(number, title) of each; the number is empty where there is none."""
    text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    return HEADING.findall(text)


def slug(number: str, title: str, dot: str = "") -> str:
    heading = f"{number}{dot} {title}".strip().lower()
    return re.sub(r"[^\w\- ]", "", heading).replace(" ", "-")


def test_sections_are_numbered_once_and_rise() -> None:
    for document in NUMBERED:
        numbers = [number for number, _ in headings(ROOT / document) if number]
        parts = [[int(part) for part in number.split(".")] for number in numbers]
        assert len(parts) > 8
        assert all(before < after for before, after in pairwise(parts)), document


def test_every_section_that_is_cited_exists() -> None:
    known = {Path(name).stem: {n for n, _ in headings(ROOT / name)} for name in NUMBERED}
    missing, count = [], 0
    for path, text in sources().items():
        for stem, numbers in SECTION.findall(flat(text)):
            cited = set(re.findall(_NUMBER, numbers)) if stem in known else set()
            count += len(cited)
            missing += [f"{path.name}: {stem}.md {n}" for n in cited - known.get(stem, set())]
    assert not missing
    assert count > 10


def test_every_document_that_is_named_is_in_the_tree() -> None:
    names = {path.name for path in sources() if path.suffix == ".md"}
    name = re.compile(r"""(?<![\w./"'-])[\w./-]*\w\.md\b""")  # not a text that is a name
    missing = []
    for path, text in sources().items():
        for named in set(name.findall(text)):
            there = (ROOT / named).exists() or (path.parent / named).exists()
            if not there and ("/" in named or named not in names):
                missing.append(f"{path.relative_to(ROOT)}: {named}")
    assert not missing


def test_no_other_document_or_issue_is_cited() -> None:
    """Words that once led to documents outside of the tree."""
    words = r"fault[ -]model|store-format|(?:remoting|design) §?\d|issue \d+"
    elsewhere = re.compile(rf"\b({words})", re.IGNORECASE)
    found = [
        f"{path.relative_to(ROOT)}: {match[1]}"
        for path, text in sources().items()
        for match in elsewhere.finditer(flat(text))
        if path != Path(__file__)
    ]
    assert not found


def test_every_link_to_a_heading_leads_there() -> None:
    missing, count = [], 0
    for path, text in sources().items():
        if path.suffix != ".md":
            continue
        for target, anchor in re.findall(r"\]\(([\w./-]*)#([\w-]+)\)", text):
            document = (path.parent / target) if target else path
            found = {slug(number, title) for number, title in headings(document)}
            count += 1
            if anchor not in found:
                missing.append(f"{path.name}: {target}#{anchor}")
    assert not missing
    assert count > 20


def rows() -> dict[str, str]:
    """The rows of docs/guarantees.md that define something, by its identifier."""
    found = re.findall(r"^\| ([A-Z]\d+) \| (.+) \|$", GUARANTEES.read_text(), re.MULTILINE)
    assert len(found) == len(dict(found)), "an identifier is defined twice"
    return dict(found)


def test_every_identifier_that_is_cited_is_defined() -> None:
    defined = set(rows())
    missing = {
        f"{path.relative_to(ROOT)}: {name}"
        for path, text in sources().items()
        for name in IDENTIFIER.findall(text)
        if name not in defined
    }
    assert not missing


def test_identifiers_have_no_gaps() -> None:
    counts = {"I": 19, "G": 3, "S": 10, "F": 21, "R": 5, "N": 14}
    wanted = {f"{letter}{n + 1}" for letter, count in counts.items() for n in range(count)}
    assert set(rows()) == wanted
    said = re.findall(r"^\| ([A-Z])1 to [A-Z](\d+) \|", GUARANTEES.read_text(), re.MULTILINE)
    assert {letter: int(last) for letter, last in said} == counts


def named_tests() -> Iterator[tuple[str, str]]:
    for path, text in sources().items():
        if path.suffix == ".md":
            yield from re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text)


def test_the_documents_name_tests_that_exist() -> None:
    named: dict[str, set[str]] = {}
    for path, name in named_tests():
        named.setdefault(path, set()).add(name)
    assert len(named["tests/unit/test_slices.py"]) >= 4
    for path, names in named.items():
        text = (ROOT / path).read_text()
        defined = {*re.findall(r"^(?:async )?def (test_\w+)\(", text, re.MULTILINE), ""}
        assert names <= defined, path


@pytest.mark.parametrize("identifier", sorted(set("IGSN")))
def test_each_rule_names_a_test_that_shows_it(identifier: str) -> None:
    for name, row in rows().items():
        if name.startswith(identifier):
            assert ("::test_" in row) == (name not in WITHOUT_TEST), name


def test_the_mutants_that_show_a_rule_exist() -> None:
    named = re.findall(r"\(mutant `([\w-]+)`\)", GUARANTEES.read_text())
    assert len(named) > 4
    assert {*named} <= {*STORE_MUTANTS, *MUTANTS}
