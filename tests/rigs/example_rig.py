"""The examples, as a user runs them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
PATIENCE_S = 90


def printed_by(example: str, *arguments: str) -> list[str]:
    """The lines that the example prints; it has to succeed."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{example}.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
