"""The table of mqadmin's commands in docs/interop.md has the answers that the interop test wants of
RocketMQ's mqadmin; that test writes the table from those that it gets."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from mqadmin_commands import (
    CASES,
    LOCAL,
    REFUSED,
    WORKS,
    Case,
    filled,
    local,
    page_table,
    row,
    rows,
    table,
    works,
)
from saturnmq.cli.main import app
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.refusals import REASONS, refusal
from typer.main import get_command

PAGE = Path(__file__).parents[2] / "docs" / "interop.md"
REFUSAL = f"CODE: 3  DESC: {refusal(RequestCode.SWITCH_TIMER_ENGINE)} BROKER: 127.0.0.1:1"
WANTED = (REFUSED, REASONS[RequestCode.SWITCH_TIMER_ENGINE])


def test_the_page_has_the_table_of_the_commands_that_are_run() -> None:
    assert page_table(PAGE.read_text()) == table(rows()), (
        "SATURNMQ_INTEROP=1 REWRITE_PAGES=1 pytest tests/interop/test_interop_mqadmin.py writes it"
    )


@pytest.mark.parametrize(
    ("case", "output", "told"),
    [
        (works("a -b", "x", verb="admin set"), "fine", (WORKS, "`saturnmq admin set`")),
        (local("a", "x", "it reads files"), "fine", (LOCAL, "it reads files")),
        (works("a", "x"), f"Exception\n{REFUSAL}\nFor more", WANTED),
        (Case("a", ("x",), REFUSED, "why"), "CODE: 3  DESC: another text", (REFUSED, "why")),
    ],
)
def test_a_row_says_what_the_command_printed(
    case: Case, output: str, told: tuple[str, str]
) -> None:
    assert row(case, output) == told


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
