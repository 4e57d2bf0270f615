"""The targets of `saturnmq drill fuzz` in this process: some turns of each."""

from __future__ import annotations

import json
import random

import pytest
from saturnmq.cli.drill_fuzz import IN_PROCESS
from saturnmq.cli.main import app
from saturnmq.drills.fuzz import inprocess
from typer.testing import CliRunner

TURNS = {"store": 60, "client": 60, "blocking": 15}  # of targets whose turns take long
TURNS_OF_OTHERS = 120


@pytest.mark.parametrize("target", IN_PROCESS)
def test_all_inputs_end_as_they_should(target: str, monkeypatch) -> None:
    turns = TURNS.get(target, TURNS_OF_OTHERS)
    monkeypatch.setattr(inprocess, "ROUND", turns)
    monkeypatch.setattr(inprocess, "BUSY_S_MAX", 30.0)  # how long one took says nothing here
    result = CliRunner().invoke(app, ["drill", "fuzz", target, "--seed", "1", "--json"])
    assert result.exit_code == 0, result.output
    (report,) = json.loads(result.stdout)
    assert turns <= report["executions"] == sum(report["outcomes"].values())
    assert len(report["outcomes"]) > 1


class Brittle:
    def __init__(self, seed: int) -> None:
        self.seed = seed

    def turn(self, rng: random.Random) -> list[str]:
        if self.seed == 2 and rng.random() < 0.1:
            raise KeyError("what nobody foresaw")
        return ["well"]

    def close(self) -> None:
        if self.seed == 4:
            raise inprocess.Violation("something is left")


def test_a_violation_ends_the_run_and_its_seed_repeats_it(monkeypatch) -> None:
    monkeypatch.setattr(inprocess, "ROUND", 100)
    report = inprocess.run("brittle", Brittle, range(1, 9), lambda _: True)
    (violation,) = report.violations
    assert "KeyError: 'what nobody foresaw' at test_fuzz_targets.py:" in violation
    assert violation.endswith("again: saturnmq drill fuzz brittle --seed 2")
    assert report.rounds == 2
    assert inprocess.run("brittle", Brittle, range(2, 3), lambda _: True).violations == [violation]
    (left,) = inprocess.run("brittle", Brittle, range(4, 5), lambda _: True).violations
    assert left.startswith("turn 100: something is left")


def test_a_turn_that_takes_long_is_a_violation(monkeypatch) -> None:
    monkeypatch.setattr(inprocess, "BUSY_S_MAX", -1.0)
    (violation,) = inprocess.run("brittle", Brittle, range(1, 9), lambda _: True).violations
    assert "ms of processor time" in violation
