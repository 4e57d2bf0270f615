"""Ports that were chosen are not chosen again, though nobody listens on them yet."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest
from saturnmq.cli import free_ports
from saturnmq.cli.free_ports import NoFreePortsError, free_block

HOST = "127.0.0.1"
WIDTH = 4
CHOOSE = f"""
import random
from saturnmq.cli.free_ports import free_block
random.seed(7)
print(free_block({HOST!r}, {WIDTH}), flush=True)
input()
"""


@pytest.fixture
def other():
    """Another process, which has chosen its ports and listens on none."""
    process = subprocess.Popen(
        [sys.executable, "-c", CHOOSE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    yield process
    if process.poll() is None:
        process.communicate("\n")


def chosen_alike() -> int:
    """The choice of this process where it draws the numbers that the other one drew."""
    state = random.getstate()
    random.seed(7)
    try:
        return free_block(HOST, WIDTH)
    finally:
        random.setstate(state)


def test_two_processes_choose_different_ports_until_one_ends(other) -> None:
    first = int(other.stdout.readline())
    mine = chosen_alike()
    assert not set(range(mine, mine + WIDTH)) & set(range(first, first + WIDTH))
    other.communicate("\n")
    assert chosen_alike() == first


def test_one_process_does_not_choose_a_port_twice() -> None:
    blocks = [chosen_alike() for _ in range(3)]
    ports = [port for first in blocks for port in range(first, first + WIDTH)]
    assert len(set(ports)) == 3 * WIDTH


def test_no_block_is_an_error_that_names_the_width(monkeypatch) -> None:
    monkeypatch.setattr(free_ports, "is_free", lambda host, port: False)
    with pytest.raises(NoFreePortsError, match=f"no {WIDTH} neighbouring free ports"):
        free_block(HOST, WIDTH)


def test_a_block_wider_than_all_ports_is_an_error_as_well() -> None:
    with pytest.raises(NoFreePortsError, match="no 60000 neighbouring free ports"):
        free_block(HOST, 60_000)
