"""The table of mqadmin's commands in docs/interop.md is the one that the interop test runs."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

from mqadmin_commands import CASES, LOCAL, REFUSED, WORKS, filled, table
from saturnmq.cli.main import app
from typer.main import get_command

PAGE = Path(__file__).parents[2] / "docs" / "interop.md"
TABLE = re.compile(r"^\| command \| answer \|.*\n(?:\|.*\n)+", re.MULTILINE)


def test_the_page_has_the_table_of_the_commands_that_are_run() -> None:
    text = PAGE.read_text()
    [written] = TABLE.findall(text)
    if os.environ.get("REWRITE_PAGES"):
        PAGE.write_text(text.replace(written, table()))
    else:
        assert written == table()


def test_each_command_is_told_once_with_its_answer() -> None:
    told = Counter(case.command for case in CASES if case.note)
    assert told == Counter({case.command for case in CASES})
    assert {case.answer for case in CASES} == {WORKS, REFUSED, LOCAL}
    assert all(case.patterns for case in CASES)


def test_the_verbs_of_the_table_exist() -> None:
    verbs = [re.findall(r"`saturnmq ([^`]*)`", case.note) for case in CASES]
    named = {verb for found in verbs for verb in found}
    assert len(named) > 10
    for verb in named:
        command = get_command(app)
        for word in verb.split(" "):
            if word.startswith("--"):
                assert any(word in each.opts for each in command.params), verb
            else:
                command = command.commands[word]  # type: ignore[attr-defined] # it is a group


def test_values_are_filled_in_as_they_are_and_in_patterns_as_text() -> None:
    values = {"master": "10.0.0.1:1"}
    assert filled("-b <master> <none>", values) == "-b 10.0.0.1:1 <none>"
    assert filled("^<master>$", values, pattern=True) == r"^10\.0\.0\.1:1$"
