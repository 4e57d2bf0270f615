"""The processes of a local cluster stay known to its directory, whatever happens beside a command:
none runs on that nobody can stop."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import threading
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from saturnmq import Admin
from saturnmq.cli import free_ports, local_etcd
from saturnmq.cli.free_ports import NoFreePortsError, free_block
from saturnmq.cli.grpc_gateway import OFF, NodeGateway, TlsSettings
from saturnmq.cli.launcher import STATE_FILE, LauncherError, LocalCluster, Node, Settings
from saturnmq.cli.main import app
from saturnmq.gateway.certificates import self_signed
from saturnmq.protocol.connections import Connections
from saturnmq.protocol.limits import Limits
from saturnmq.runtime.errors import ConfigError
from saturnmq.runtime.native import NativeRuntime
from tls_rig import spoken
from typer.testing import CliRunner

HOST = "127.0.0.1"
ETCD = """#!/bin/sh
for option in "$@"; do
  case $option in --listen-client-urls=*) port=${option##*:};; esac
done
mkdir -p healthy && echo '{"health":"true"}' > healthy/health
exec python3 -m http.server --directory healthy --bind 127.0.0.1 "$port"
"""


def made(data: Path, name: str = "nameserver-0", kind: str = "nameserver") -> LocalCluster:
    """A cluster of one node that does not run yet."""
    node = Node(name, kind, HOST, free_block(HOST, 2), str(data / name))
    data.mkdir(exist_ok=True)
    state: dict[str, Any] = {"settings": {}, "nodes": [vars(node)]}
    (data / STATE_FILE).write_text(json.dumps(state))
    return LocalCluster.load(data)


def test_a_command_that_waited_for_another_knows_what_that_one_started(tmp_path: Path) -> None:
    first, second = made(tmp_path), LocalCluster.load(tmp_path)
    started = first.start("nameserver-0")
    second.down()
    assert not started.alive()


def test_no_other_command_gets_the_ports_of_nodes_that_were_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = LocalCluster.up(tmp_path)
    for node in dead.nodes:
        dead.kill(node.name)
    ports = {port for node in dead.nodes for port in node.ports}
    first = min(ports)
    monkeypatch.setattr(free_ports, "_chosen", set())  # as in another process
    monkeypatch.setattr(random, "randrange", lambda *_bounds: first)
    with pytest.raises(NoFreePortsError):
        free_block(dead.nodes[0].host, 1 + max(ports) - first)
    shutil.rmtree(tmp_path)
    assert free_block(dead.nodes[0].host, 1 + max(ports) - first) == first


def test_of_two_restarts_at_once_the_second_relieves_what_the_first_started(tmp_path: Path) -> None:
    clusters = [made(tmp_path), LocalCluster.load(tmp_path)]
    threads = [
        threading.Thread(target=cluster.restart, args=["nameserver-0"]) for cluster in clusters
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    try:
        assert sum(cluster.node("nameserver-0").alive() for cluster in clusters) == 1
        assert LocalCluster.load(tmp_path).node("nameserver-0").alive()
    finally:
        clusters[0].down()
    assert not any(cluster.node("nameserver-0").alive() for cluster in clusters)


def test_a_directory_that_was_moved_is_used_where_it_is(tmp_path: Path) -> None:
    here, there, link = (tmp_path / name for name in ("here", "there", "link"))
    made(here).start("nameserver-0")
    here.rename(there)
    link.symlink_to(there)
    cluster = LocalCluster.load(link)
    node = cluster.node("nameserver-0")
    assert (node.alive(), node.data) == (True, str(link / node.name))
    cluster.down()
    assert not node.alive()
    LocalCluster.load(there).start("nameserver-0")
    LocalCluster.load(link).down()
    assert not here.exists()


def test_a_copy_of_a_directory_is_a_cluster_of_its_own(tmp_path: Path) -> None:
    original = made(tmp_path / "original")
    node = original.start("nameserver-0")
    shutil.copytree(original.data, tmp_path / "copy")
    copy = LocalCluster.load(tmp_path / "copy")
    assert copy.node("nameserver-0").data == str(copy.data / "nameserver-0")
    copy.down()
    try:
        assert node.alive()
        assert not copy.node("nameserver-0").alive()
    finally:
        original.down()


def test_a_directory_and_options_may_have_any_name(tmp_path: Path) -> None:
    options = {"rocketmqHome": '\U0001f600 "\\\n', "flush_disk_type": "SYNC_FLUSH"}
    settings = Settings(broker_options=options)
    cluster = LocalCluster.up(tmp_path / '\U0001f600 "ä', settings)
    cluster.down()
    (file,) = cluster.data.rglob("broker.toml")
    written = tomllib.loads(file.read_text(encoding="utf-8"))
    assert {name: written[name] for name in options} == options
    assert "flushDiskType" not in written, "it would be another value for the same setting"
    assert written["storePathRootDir"] == str(cluster.data / "master-0" / "store")
    assert (file.parent / "store" / "lock").is_file()


def test_a_module_in_the_directory_of_the_caller_takes_no_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    for name in ("grp", "random", "queue", "typer", "saturnmq"):
        (here / f"{name}.py").write_text(f"raise SystemExit('{name} of the caller')")
    monkeypatch.chdir(here)
    LocalCluster.up(tmp_path / "data").down()


def test_a_shell_that_has_the_settings_of_another_broker_does_not_change_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    another = {"ROOT": str(tmp_path / "other"), "PORT": "1", "ROLE": "SLAVE", "BROKER_NAME": "b"}
    another |= {"FLUSH_DISK_TYPE": "ASYNC_FLUSH", "NAMESERVERS": "127.0.0.1:1", "PROCESSES": "2"}
    another |= {"TRANSACTION_CHECK_MAX": "7", "TIMER_MAX_DELAY_S": "9", "TLS": "off"}
    for name, value in another.items():
        monkeypatch.setenv(f"SATURNMQ_{name}", value)
    settings = Settings(flush="sync", broker_options={"transactionCheckMax": 5})
    cluster = LocalCluster.up(tmp_path / "cluster", settings)
    try:
        node = cluster.node("master-0")
        assert node.registers_as() == node.address
        with Admin(cluster.nameservers) as admin:
            told = admin.broker_settings(node.address)
        assert [spoken(each) for each in (node.address, cluster.nameservers[0])] == ["h2", "h2"]
    finally:
        cluster.down()
    assert (told["flushDiskType"], told["transactionCheckMax"]) == ("SYNC_FLUSH", "5")
    assert told["timerMaxDelaySec"] == "9", "the cluster leaves it to the environment"
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("given", [[], ["--tls=auto"]], ids=["alone", "with --tls"])
def test_a_cluster_has_the_tls_of_the_environment_unless_it_is_told(
    given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Settings] = []

    def up(root: Path, settings: Settings, **_: Any) -> None:
        asked.append(settings)
        raise LauncherError("enough")

    monkeypatch.setattr(LocalCluster, "up", up)
    arguments = ["cluster", "up", f"--data={tmp_path}", *given]
    CliRunner().invoke(app, arguments, env={"SATURNMQ_TLS": "off"})
    assert [each.tls for each in asked] == ["auto" if given else "off"]


def test_a_node_of_ipv6_has_an_address_that_says_where_its_port_begins(tmp_path: Path) -> None:
    facts = Node("master-0", "master", "::1", 7, str(tmp_path), broker_name="b").describe()
    assert (facts["address"], facts["ha_address"]) == ("[::1]:7", "[::1]:8")


def test_an_etcd_that_runs_is_stopped_before_it_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / local_etcd.PROGRAM
    program.parent.mkdir()
    program.write_text(ETCD)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    monkeypatch.chdir(tmp_path)
    cluster = made(tmp_path, "etcd-0", "etcd")
    cluster.start("etcd-0")
    before = Node(**vars(cluster.node("etcd-0")))
    after = cluster.restart("etcd-0")
    try:
        assert not before.alive()
        assert after.alive()
    finally:
        cluster.down()


def test_a_node_of_which_nothing_can_be_noted_down_does_not_run_on(tmp_path: Path) -> None:
    cluster = made(tmp_path)
    blocker = (tmp_path / STATE_FILE).with_suffix(".tmp")
    blocker.mkdir()  # as a full disk does
    with pytest.raises(OSError, match="directory"):
        cluster.start("nameserver-0")
    assert not cluster.node("nameserver-0").alive()
    blocker.rmdir()
    cluster.start("nameserver-0")
    running = cluster.node("nameserver-0").pid
    blocker.mkdir()
    with pytest.raises(OSError, match="directory"):
        cluster.restart("nameserver-0")
    blocker.rmdir()
    node = LocalCluster.load(tmp_path).node("nameserver-0")
    assert (node.pid, node.alive()) == (running, True)
    cluster.down()
    assert not node.alive()


def test_a_node_goes_on_when_its_successor_could_not_read_the_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = self_signed(tmp_path / "tls", [HOST])
    monkeypatch.setenv("SATURNMQ_TLS_CERTIFICATE", str(certificate))
    monkeypatch.setenv("SATURNMQ_TLS_KEY", str(certificate))
    cluster = made(tmp_path)
    before = cluster.start("nameserver-0").pid
    try:
        aside = certificate.rename(tmp_path / "aside")
        with pytest.raises(LauncherError, match=r"(?s)runs as before.*tlsCertPath"):
            cluster.restart("nameserver-0")
        node = cluster.node("nameserver-0")
        assert (node.pid, node.alive()) == (before, True)
        aside.rename(certificate)
        assert cluster.restart("nameserver-0").pid != before
    finally:
        cluster.down()


@pytest.mark.parametrize("can_start", [True, False])
def test_a_restart_that_is_interrupted_ends_with_one_process_that_is_known(
    can_start: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = made(tmp_path)
    before = replace(cluster.start("nameserver-0"))
    await_ready = cluster._await_ready

    def interrupted(node: Node) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await_ready(node)

    monkeypatch.setattr(cluster, "_await_ready", interrupted)
    if not can_start:
        monkeypatch.setenv("SATURNMQ_TLS_CERTIFICATE", "none.pem")
        monkeypatch.setenv("SATURNMQ_TLS_KEY", "none.pem")
    # A run in the background of a shell ignores it, and so would this one.
    handled = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt if can_start else LauncherError):
            cluster.restart("nameserver-0")
        node = LocalCluster.load(tmp_path).node("nameserver-0")
        assert (node.alive(), before.alive()) == (True, not can_start)
        assert (node.pid == before.pid) == (not can_start)
    finally:
        signal.signal(signal.SIGINT, handled)
        LocalCluster.load(tmp_path).down()


def test_a_cluster_that_failed_to_start_keeps_the_options_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = LocalCluster.up(tmp_path)
    cluster.down()
    monkeypatch.setattr(LocalCluster, "await_routes", _fails)
    with pytest.raises(LauncherError, match="as told"):
        LocalCluster.up(tmp_path, Settings(tls="off", broker_options={"transactionCheckMax": 5}))
    kept = LocalCluster.load(tmp_path)
    assert kept.settings == Settings()
    assert [node.address for node in kept.nodes] == [node.address for node in cluster.nodes]
    assert not any(node.alive() for node in kept.nodes)


def _fails(_: LocalCluster) -> None:
    raise LauncherError("as told")


def test_a_certificate_is_read_before_the_start_also_without_a_port_of_grpc(tmp_path: Path) -> None:
    """The ports of Remoting have it, too."""
    none = str(tmp_path / "none.pem")
    nobody: Any = None
    settings = TlsSettings(none, none, is_self_signed=False, directory=None)
    with pytest.raises(ConfigError, match="tlsCertPath"):
        NodeGateway(nobody, nobody, nobody, HOST, OFF, settings).read_certificate()


def test_a_certificate_is_read_once_at_a_start(tmp_path: Path) -> None:
    """Its files may change while the node before is relieved."""
    file = self_signed(tmp_path / "tls", [HOST])
    settings = TlsSettings(str(file), str(file), is_self_signed=False, directory=None)

    async def start() -> None:
        runtime, nobody = NativeRuntime(), cast(Any, None)
        connections = Connections(runtime, Limits(), nobody, nobody)
        gateway = NodeGateway(runtime, nobody, connections, HOST, OFF, settings)
        gateway.read_certificate()
        file.unlink()
        await gateway.start()
        assert connections.certificates is not None
        assert connections.certificates() is not None
        runtime.close()

    asyncio.run(start())


def test_a_process_that_ended_before_its_start_time_was_read_is_not_alive(tmp_path: Path) -> None:
    node = Node("master-0", "master", HOST, 1, str(tmp_path), pid=2**22 + 1, started=None)
    assert not node.alive()


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("replicationSecret", "SATURNMQ_REPLICATION_SECRET"),
        ("replication_secret", "SATURNMQ_REPLICATION_SECRET"),
        ("etcdPassword", "SATURNMQ_ETCD_PASSWORD"),
        ("initAuthenticationUser", "SATURNMQ_INIT_USER"),
        ("innerclientauthenticationcredentials", "SATURNMQ_INNER_CREDENTIALS"),
    ],
)
def test_an_argument_that_would_show_a_secret_is_refused(
    tmp_path: Path, name: str, variable: str
) -> None:
    ended = CliRunner().invoke(
        app, ["cluster", "up", "--data", str(tmp_path / "c"), "--set", f"{name}=a secret word"]
    )
    assert ended.exit_code == 1
    assert f"set {variable} instead" in ended.output
    assert "secret word" not in ended.output
    assert not (tmp_path / "c").exists()
