"""The script that measured docs/measurements/many-topics.md checks its own work."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "many_queues.py"


def test_the_figures_of_many_topics_can_be_measured_again(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--quick", "--json", "--directory", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)["figures"]
    aims = ("made, sent and consumed, s", "disk, MB", "memory of the broker at most, MB")
    assert all(figures[name] > 0 for name in aims)
    assert figures["open files of the broker"] < 100
    assert figures["produce over 20 topics, % of one"] > 0
    assert figures["produce beside 50 idle connections, % of none"] > 0
    assert not list(tmp_path.iterdir()), "what it made is gone"
