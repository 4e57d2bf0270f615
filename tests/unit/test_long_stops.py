"""Test clusters and drills find in the logs of nodes which loop stood still."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster_rig import check_loops
from saturnmq.cli.launcher import long_stops

LINE = "WARNING saturnmq the event loop stood still for 900 ms, %d of them processor time; the last"


def test_a_stop_of_much_processor_time_in_any_log_of_a_node_fails_its_cluster(
    tmp_path: Path,
) -> None:
    for name, busy in (("master-0/log.txt", 99), ("master-1/log.txt.2", 130)):
        path = tmp_path / name
        path.parent.mkdir()
        path.write_text(f"begin\n{LINE % busy}\n")
    assert long_stops(tmp_path) == ["master-1 for 130 ms of processor time"]
    with pytest.raises(AssertionError):
        check_loops(tmp_path)
