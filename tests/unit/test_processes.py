"""Several broker processes behind one configuration: what each of them has of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from saturnmq.broker.config import BrokerConfig
from saturnmq.cli.processes import log_file_of, settings_of
from saturnmq.runtime.errors import ConfigError


def test_each_process_has_a_name_ports_and_a_directory_of_its_own() -> None:
    given = BrokerConfig(broker_name="b", root="/var/s/", port=10911, role="SYNC_MASTER")
    first, second, third = (settings_of(given, number) for number in range(3))
    assert first == given, "a store that there is stays in use"
    assert (second.broker_name, second.root) == ("b-1", "/var/s-1")
    assert (third.broker_name, third.root) == ("b-2", "/var/s-2")
    assert (third.port, third.ha_port, third.grpc_port) == (10931, 10932, 8101)
    assert third.role == "SYNC_MASTER"
    assert third.store_config().root == "/var/s-2"


def test_any_port_and_none_stay_so() -> None:
    second = settings_of(BrokerConfig(port=0, ha_port=0, grpc_port=-1), 1)
    assert (second.port, second.ha_port, second.grpc_port) == (0, 0, -1)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"ha_master_address": "10.0.0.1:10912"}, "haMasterAddress"),
        ({"port": 65_520}, "listenPort of process 2 would be 65540"),
    ],
)
def test_a_setting_for_one_broker_only_is_refused(settings: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        settings_of(BrokerConfig(**settings), 2)  # type: ignore[arg-type]  # of two kinds


HEARD = """
import os, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under `nohup`
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


@pytest.mark.parametrize("count", [1, 2])
def test_a_terminal_that_goes_away_ends_brokers_in_order(tmp_path: Path, count: int) -> None:
    """The kernel says SIGHUP to all, the shell once more, and so may a parent that has ended."""
    settings = {"PORT": "0", "HA_PORT": "0", "GRPC_PORT": "-1", "ROOT": str(tmp_path / "store")}
    node = subprocess.Popen(
        [sys.executable, "-c", HEARD, "-m", "saturnmq", "broker", f"--processes={count}"],
        env=os.environ | {f"SATURNMQ_{name}": value for name, value in settings.items()},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert node.stdout is not None
        served = [node.stdout.readline() for _ in range(count)]
        assert [line[:16] for line in served] == ["broker serves on"] * count
        for _ in range(2):
            os.killpg(node.pid, signal.SIGHUP)
        _, told = node.communicate(timeout=30)
    finally:
        node.kill()
    assert (node.returncode, "Traceback" in told) == (0, False)
    assert len(list(tmp_path.glob("store*/checkpoint"))) == count
    assert not list(tmp_path.glob("store*/abort")), "each was closed in order"


def test_log_files_of_processes() -> None:
    path = Path("/var/log/broker.log")
    assert log_file_of(path, 0) == path
    assert log_file_of(path, 2) == Path("/var/log/broker-2.log")
    assert log_file_of(None, 1) is None
