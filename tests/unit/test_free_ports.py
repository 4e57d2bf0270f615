"""Ports that were chosen are not chosen again, though nobody listens on them yet."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile

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


@pytest.fixture(autouse=True)
def own_file(tmp_path, monkeypatch):
    """The tests of other workers keep ports in the usual one."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    free_ports._file.cache_clear()
    yield
    free_ports._file.cache_clear()


def in_another_process() -> int:
    """The choice of a process that starts and ends now, with the numbers of the other ones."""
    return int(subprocess.check_output([sys.executable, "-c", CHOOSE], input="\n", text=True))


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


def test_the_ports_of_a_cluster_are_left_out_until_its_file_is_gone(tmp_path) -> None:
    holder = tmp_path / "cluster.json"
    holder.touch()
    first = in_another_process()
    free_ports.keep(range(first, first + WIDTH), holder)
    assert in_another_process() != first
    free_ports.keep([first], holder)
    free_ports.keep([], tmp_path / "other.json")  # which is not there: nothing changes
    assert in_another_process() not in range(first - WIDTH + 1, first + 1)
    holder.unlink()
    assert in_another_process() == first


def test_a_line_that_was_not_written_whole_keeps_nothing(tmp_path) -> None:
    first = in_another_process()
    os.pwrite(free_ports._file(), f"{first}".encode(), 0)
    assert in_another_process() == first
    free_ports.keep([], tmp_path)
    assert free_ports._kept() == set()


def test_no_block_is_an_error_that_names_the_width(monkeypatch) -> None:
    monkeypatch.setattr(free_ports, "is_free", lambda host, port: False)
    with pytest.raises(NoFreePortsError, match=f"no {WIDTH} neighbouring free ports"):
        free_block(HOST, WIDTH)


def test_a_block_wider_than_all_ports_is_an_error_as_well() -> None:
    with pytest.raises(NoFreePortsError, match="no 60000 neighbouring free ports"):
        free_block(HOST, 60_000)
