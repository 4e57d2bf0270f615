"""`admin handover` and `admin drain` over a real group of two brokers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from broker_rig import until
from failover_rig import Group
from saturnmq import Message, Producer, SaturnError
from saturnmq.cli.main import app
from saturnmq.client.loop_thread import LoopThread
from saturnmq.client.producer.results import SendStatus
from typer.testing import CliRunner

runner = CliRunner()
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    thread = LoopThread("servers")
    try:
        group = thread.call(Group, thread.runtime, tmp_path, broker_name="broker-0")
        thread.run(group.__aenter__())
        thread.run(until(lambda: group.slave.replication.registrar.registered))
        group.stop = lambda broker: thread.run(broker.close())
        try:
            yield group
        finally:
            thread.run(group.__aexit__())
    finally:
        thread.close()


@pytest.fixture
def run(group: Group) -> Run:
    """A command; its exit status, what it prints and what it says of errors."""

    def run_one(*arguments: str) -> tuple[int, str, str]:
        environment = {"SATURNMQ_NAMESERVER": group.nameserver.address, "COLUMNS": "200"}
        done = runner.invoke(app, list(arguments), env=environment)
        if isinstance(done.exception, SaturnError):  # which the program's main tells
            return 1, done.stdout, str(done.exception)
        return done.exit_code, done.stdout, done.stderr

    return run_one


def test_the_lead_is_handed_over_and_back_and_senders_do_not_notice(run: Run, group: Group) -> None:
    first, second = group.master.address, group.slave.address
    assert run("admin", "handover", "broker-0", "--dry-run")[:2] == (
        0,
        f"{second} would take broker-0 over\n",
    )
    assert group.master.replica_state()["role"] == "master"
    with Producer(nameservers=group.nameserver.address) as producer:

        def send() -> SendStatus:
            return producer.send(Message("orders", b"1")).status

        assert send() is SendStatus.OK
        status, told, _ = run("admin", "handover", "broker-0", second, "--json")
        result = json.loads(told)
        assert (status, result["master"], result["old_master"]) == (0, second, first)
        assert result["handed_over"]
        assert group.slave.replica_state()["role"] == "master"
        assert send() is SendStatus.OK
        status, told, _ = run("admin", "drain", second, "--json")
        assert (status, json.loads(told)[0]["master"]) == (0, first)
        assert group.master.replica_state()["role"] == "master"
        assert send() is SendStatus.OK


def test_a_drained_node_is_safe_to_stop_and_one_that_nobody_relieves_is_refused(
    run: Run, group: Group
) -> None:
    first, second = group.master.address, group.slave.address
    status, told, _ = run("admin", "drain", first, "--dry-run")
    assert status == 0
    assert f"{first} would hand broker-0 over to {second}" in told
    assert f"{first} would lead nothing, but broker-0 acknowledges with 2 copies" in told
    status, told, _ = run("admin", "drain", first)
    assert status == 0
    assert f"{first} handed broker-0 over to {second}" in told
    assert f"{first} leads nothing" in told
    group.stop(group.master)
    status, _, refusal = run("admin", "drain", second)
    assert status == 1
    assert "no node can take broker-0 over" in refusal
    assert f"{first} does not answer" in refusal
    status, _, refusal = run("admin", "handover", "broker-0", first)
    assert status == 1
    assert "does not answer" in refusal
    assert group.slave.replica_state()["role"] == "master"
