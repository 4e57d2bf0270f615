"""What a process does that tests one mutant. It is forked from one that has imported the libraries.

Those take longer to import than most tests take to run.
"""

from __future__ import annotations

import os
import sys

import hypothesis  # noqa: F401
import numpy  # noqa: F401
import pytest
import xdist  # noqa: F401


def run_pytest(folder: str, tests: list[str]) -> None:
    """Ends the process, with pytest's exit status; `folder` holds the packages to test."""
    os.setpgrp()  # whatever the tests start can be ended with them
    silence = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(silence, number)
    os.environ["PYTHONPATH"] = folder
    sys.path.insert(0, folder)
    os._exit(pytest.main(["-q", "-x", "-n", "0", "-p", "no:cacheprovider", *tests]))
