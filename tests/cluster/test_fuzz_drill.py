"""`saturnmq drill fuzz` against real processes."""

from __future__ import annotations

import json

import pytest
from saturnmq.cli.main import app
from saturnmq.drills.fuzz import corpus, run
from typer.testing import CliRunner


@pytest.mark.parametrize("target", ["broker", "nameserver"])
def test_a_round_is_survived_and_told(target: str, monkeypatch) -> None:
    monkeypatch.setattr(run, "STOP_MS_MAX", 10_000)  # how long it took says nothing here
    result = CliRunner().invoke(app, ["drill", "fuzz", target, "--seed", "1", "--json"])
    assert result.exit_code == 0, result.output
    (report,) = json.loads(result.stdout)
    kept = corpus.OF_BROKERS if target == "broker" else corpus.OF_NAMESERVERS
    assert report["requests"] == run.ROUND + len(kept)
    assert sum(report["answers"].values()) + report["held"] <= report["requests"]
    assert {"0", "29"} <= report["answers"].keys()
    assert 0 < report["memory_mb"] < 512


def test_a_violation_is_an_exit_status_with_the_command_that_shows_it(monkeypatch) -> None:
    monkeypatch.setattr(run, "STOP_MS_MAX", -1)
    result = CliRunner().invoke(app, ["drill", "fuzz", "broker", "--seed", "3"])
    assert result.exit_code == 1
    assert "again: saturnmq drill fuzz broker --seed 3" in " ".join(result.stdout.split())


def test_an_unknown_target_is_refused_by_name() -> None:
    result = CliRunner().invoke(app, ["drill", "fuzz", "moon"])
    assert result.exit_code == 1
    assert "no target 'moon'" in result.output
