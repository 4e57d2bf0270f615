"""The script that measures consumers of a part of a topic checks its own work."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "filters.py"


def test_the_figures_of_filters_can_be_measured_again() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--messages", "20000", "--runs", "1", "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    runs = json.loads(done.stdout)["runs"]
    assert len(runs) == 4
    assert all(figure > 0 for figures in runs.values() for figure in figures)
