"""A process that takes the place of another one ends that one, and no stranger."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from saturnmq.cli import successor
from saturnmq.cli.successor import relieve, start_time

SLEEPS = "import time; print(flush=True); time.sleep(60)"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEPS


@pytest.fixture
def process() -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    made = []

    def run(text: str) -> subprocess.Popen[bytes]:
        made.append(subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE))
        assert made[-1].stdout
        assert made[-1].stdout.readline()
        return made[-1]

    yield run
    for each in made:
        each.kill()
        each.communicate()


@pytest.mark.parametrize(("text", "status"), [(SLEEPS, -15), (DEAF, -9)], ids=["listens", "deaf"])
def test_a_process_is_ended_by_sigterm_and_by_sigkill_if_it_does_not_listen(
    process: Callable[[str], subprocess.Popen[bytes]],
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    status: int,
) -> None:
    old = process(text)
    if text is DEAF:
        monkeypatch.setattr(successor, "STOP_TIMEOUT_S", 0.05)
    started = start_time(old.pid)
    assert started is not None
    relieve(old.pid, started)
    assert old.wait(timeout=30) == status
    relieve(old.pid, started)  # it is gone


def test_a_process_that_has_got_the_number_of_another_one_is_left_alone(
    process: Callable[[str], subprocess.Popen[bytes]],
) -> None:
    stranger = process(SLEEPS)
    started = start_time(stranger.pid)
    assert started is not None
    relieve(stranger.pid, started - 1)
    assert stranger.poll() is None
