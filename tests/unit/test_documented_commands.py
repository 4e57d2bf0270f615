"""The commands that documents show exist with their options, and their Python compiles.

The README, the tutorial and the how-to pages are also run (tests/cluster/test_pages.py).
"""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import saturnmq
from pages_rig import ROOT
from saturnmq.cli.main import app
from typer.testing import CliRunner

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "benchmarks/README.md"])
_FENCED = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```", re.M | re.S)
_ENDS = re.compile(r"[|;&<>()]+")


def fenced(page: Path, *kinds: str) -> Iterator[str]:
    for kind, text in _FENCED.findall(page.read_text()):
        if kind in kinds:
            yield text


def commands(text: str) -> Iterator[list[str]]:
    """The arguments of each `saturnmq` in some lines of shell."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        try:
            words = list(lexer)
        except ValueError:  # an apostrophe in a line of output
            continue
        while words:
            end = next((i for i, word in enumerate(words) if _ENDS.fullmatch(word)), len(words))
            if words[:1] and words[0] in ("saturnmq", ".venv/bin/saturnmq"):
                yield words[1:end]
            words = words[end + 1 :]


DOCUMENTED = {
    " ".join(arguments): (page, arguments)
    for page in PAGES
    for text in fenced(page, "", "sh")
    for arguments in commands(text)
}


def refusal(arguments: list[str]) -> str:
    """Why `saturnmq` does not understand these, empty if it does. Nothing is run."""
    done = CliRunner().invoke(app, [*arguments, "--help"])
    return "" if done.exit_code == 0 else done.output or repr(done.exception)


@pytest.mark.parametrize("command", sorted(DOCUMENTED))
def test_a_documented_command_exists_with_its_options(command: str) -> None:
    page, arguments = DOCUMENTED[command]
    assert refusal(arguments) == "", page


def test_a_command_that_does_not_exist_is_noticed() -> None:
    assert refusal(["admin", "prommote", "broker-0"])
    assert refusal(["admin", "promote", "broker-0", "--farce"])
    assert list(commands("echo a | saturnmq produce orders --acks > b; saturnmq version # c")) == [
        ["produce", "orders", "--acks"],
        ["version"],
    ]
    assert len(DOCUMENTED) > 80


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_documented_python_compiles_and_imports_what_there_is(page: Path) -> None:
    for text in fenced(page, "python"):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("saturnmq"):
                module = importlib.import_module(str(node.module))
                assert [a.name for a in node.names if not hasattr(module, a.name)] == []


def test_the_api_reference_has_every_public_class() -> None:
    listed = re.findall(r"^::: saturnmq\.([A-Z]\w+)$", (ROOT / "docs/api.md").read_text(), re.M)
    assert sorted(listed) == sorted(name for name in saturnmq.__all__ if name[0].isupper())
