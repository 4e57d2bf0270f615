"""`saturnmq drill run hostile-clients` against real processes."""

from __future__ import annotations

import json

import pytest
from saturnmq.cli.main import app
from saturnmq.drills.hostile import attacks, drill
from typer.testing import CliRunner


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    known = attacks.ATTACKS
    monkeypatch.setattr(drill, "ATTACKS", {name: known[name] for name in ("flood", "names")})


def test_attacks_are_survived_and_told() -> None:
    result = CliRunner().invoke(
        app, ["drill", "run", "hostile-clients", "--minutes", "0.1", "--json"]
    )
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["violations"] == []
    rows = {(row["target"], row["attack"]): row for row in told["attacks"]}
    assert rows.keys() == {
        ("nameserver", "none"),
        ("nameserver", "flood"),
        ("broker", "none"),
        ("broker", "flood"),
        ("broker", "names"),
    }
    assert all(row["answered"] and not row["failed"] for row in rows.values())
    assert all(row["done"]["requests"] for row in rows.values() if row["attack"] != "none")


def test_a_violation_is_an_exit_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drill, "STOP_MS_MAX", -1)
    monkeypatch.setattr(drill, "ATTACKS", {"flood": attacks.ATTACKS["flood"]})
    result = CliRunner().invoke(app, ["drill", "run", "hostile-clients", "--minutes", "0.1"])
    assert result.exit_code == 1
    assert "nameserver, flood: its loop stood still" in " ".join(result.stdout.split())
