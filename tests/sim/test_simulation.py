"""Whole clusters on virtual time: 200 seeds, and the same seed twice.

`saturnmq drill simulate --seed N` repeats a seed and shows its last steps.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from saturnmq.cli.main import app
from saturnmq.drills.sim.report import SimReport
from saturnmq.drills.sim.run import repro, run_seed, simulate
from typer.testing import CliRunner

SEEDS = 200
# Seeds that found what was mended since, with the scenes that they had.
FOUND = {
    657: "timing+transacting",
    722: "shrinking+timing+transacting",
    849: "popping",
    1048: "shrinking",
    1346: "taking-long",
    1462: "",
    1660: "growing",
    2631: "taking-long",
    3136: "delaying+timing",
    4047: "misbehaving+popping",
    4071: "misbehaving+popping",
    4872: "delaying+recreating",
    6653: "timing",
    7108: "delaying+popping+recreating",
    10161: "growing+polling+spreading+taking-long+timing+transacting",
    10458: "misbehaving+transacting",
    10500: "growing+polling+retrying",
    10705: "checking-types+polling+replying+resending+spreading",
    10706: "checking-types+popping+shrinking+transacting",
    10740: "checking-types+taking-long+transacting",
    10743: "delaying+misbehaving+replying+timing",
    10773: "clocks+replying+resetting+timing",
    10810: "misbehaving+popping+replying+resending+resetting",
    11013: "transacting",
    12170: "checking-types+taking-long",
    12594: "popping+replying",
    12703: "checking-types+resetting",
    13955: "delaying+resending+transacting",
    21281: "checking-types+clocks+resetting+transacting",
    21453: "polling+popping+recreating",
    21814: "shrinking",
    24743: "checking-types+resending+timing",
    26871: "transacting",
    27259: "spreading",
    28820: "clocks+polling+popping+recreating+shrinking",
    29283: "delaying",
}
PER_TEST = 10


@pytest.mark.parametrize("first", range(1, SEEDS, PER_TEST))
def test_no_seed_breaks_a_promise(first: int) -> None:
    total = SimReport()
    for seed in range(first, first + PER_TEST):
        total.add(run_seed(seed))
    assert not total.violations, "\n".join(total.violations)
    # A green run without faults would prove nothing.
    assert total.ok
    assert total.faults.total() >= 3 * PER_TEST
    assert total.acked >= 10 * PER_TEST
    assert total.delivered >= 2 * (total.acked - total.lost)


@pytest.mark.parametrize(("seed", "scenes"), FOUND.items())
def test_a_seed_that_found_a_fault_finds_none_now(seed: int, scenes: str) -> None:
    report = simulate(seed, scenes=scenes.split("+") if scenes else [])
    assert not report.violations, "\n".join(report.violations)


def test_a_seed_repeats_itself_to_the_last_step() -> None:
    first, second = simulate(7), simulate(7)
    assert first.trace_hash == second.trace_hash
    assert first.to_json() == second.to_json()
    assert simulate(8).trace_hash != first.trace_hash


def test_a_seed_does_not_depend_on_the_hash_order_of_the_process() -> None:
    hashes = set()
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-m", "saturnmq.drills.sim.run", "7"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=False,
        )
        hashes.add(done.stdout.partition("\ntrace ")[2].split()[0] if done.stdout else done.stderr)
    assert len(hashes) == 1, hashes


def test_the_command_runs_seeds_and_tells_what_they_did() -> None:
    done = CliRunner().invoke(app, ["drill", "simulate", "--seeds", "3-5", "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["seeds"] == 3
    assert told["violations"] == []
    assert sum(told["faults"].values()) > 3
    assert told["acked"] > 0


def test_the_command_shows_a_mutant_and_fails() -> None:
    done = CliRunner().invoke(app, ["drill", "simulate", "--seed", "8", "--mutant", "cut-unsaved"])
    assert done.exit_code == 1
    assert "again: saturnmq drill simulate --seed 8 --mutant cut-unsaved" in done.stdout


@pytest.mark.parametrize("seeds", ["0x", "5-3", "-", ""])
def test_seeds_that_are_none_are_refused(seeds: str) -> None:
    done = CliRunner().invoke(app, ["drill", "simulate", "--seeds", seeds])
    assert done.exit_code != 0
    assert "A-B" in done.output


def test_the_line_of_a_violation_runs_it_again() -> None:
    assert repro(7, "a-mutant") == "saturnmq drill simulate --seed 7 --mutant a-mutant"
