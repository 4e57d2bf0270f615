"""What operators look up and change while one of two broker groups has no master, only a slave."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from broker_rig import config, slave_config, started
from cluster_rig import until
from saturnmq import Admin, Message, MessageQueue, Producer, PullConsumer
from saturnmq.cli.main import app
from saturnmq.client.loop_thread import LoopThread
from saturnmq.nameserver.server import NameServer
from saturnmq.runtime.errors import RouteNotFound
from typer.testing import CliRunner

GROUPS = ("broker-a", "broker-b")


@pytest.fixture(scope="module")
def nameserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Topic `orders` has a message in its only queue on each broker, and group `billing` has
    consumed none; then the master of broker-b ends, and its slave has all of that."""
    with contextlib.ExitStack() as stack:
        thread = LoopThread("servers")
        stack.callback(thread.close)
        server = NameServer(thread.runtime, port=0)
        thread.run(server.start())
        stack.callback(lambda: thread.run(server.close()))
        root = tmp_path_factory.mktemp("brokers")

        def start(settings: Any) -> Any:
            broker = thread.run(started(thread.runtime, settings))
            stack.callback(lambda: thread.run(broker.close()))
            return broker

        known: dict[str, Any] = {"nameservers": (server.address,)}
        start(config(root / "a", broker_name="broker-a", **known))
        master = start(config(root / "b", broker_name="broker-b", **known))
        slave = start(slave_config(root / "b1", master, broker_name="broker-b", **known))
        with Admin(server.address) as admin:
            _fill(server.address, admin)
            until(lambda: _has_all(slave, master), "the slave has no copy")
            thread.run(master.close())
            until(lambda: len(admin.cluster()) == 2, "the master is still registered")
        yield server.address


def _fill(nameserver: str, admin: Admin) -> None:
    admin.create_topic("orders", queues=1, order=True)
    admin.create_group("billing")
    admin.create_group("audit")
    queues = [MessageQueue("orders", name, 0) for name in GROUPS]
    with Producer(nameservers=nameserver) as producer:
        for queue in queues:
            producer.send(Message("orders", b"one"), queue=queue)
    with PullConsumer("billing", nameserver) as consumer:
        consumer.assign(queues)
        consumer.commit(dict.fromkeys(queues, 0))


def _has_all(slave: Any, master: Any) -> bool:
    return (
        slave.store.watermarks.dispatched == master.store.watermarks.appended
        and slave.context.offsets.query("billing", "orders", 0) == 0
        and slave.context.groups.get("audit") is not None
    )


@pytest.fixture
def admin(nameserver: str) -> Iterator[Admin]:
    with Admin(nameserver) as made:
        yield made


CHANGES: dict[str, Callable[[Admin], object]] = {
    "delete topic": lambda admin: admin.delete_topic("orders"),
    "delete group": lambda admin: admin.delete_group("billing"),
    "alter group": lambda admin: admin.alter_group("billing", max_retries=3),
    "alter topic": lambda admin: admin.alter_topic("orders", perm=4),
    "reset offsets": lambda admin: admin.reset_offsets("billing", "orders"),
    "clone offsets": lambda admin: admin.clone_offsets("billing", "audit"),
    "order": lambda admin: admin.create_topic("orders", queues=1, order=True),
    "pop": lambda admin: admin.set_request_mode("billing", "orders", "POP"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_that_a_broker_would_miss_is_refused_and_nothing_changes(
    admin: Admin, change: Callable[[Admin], object]
) -> None:
    before = _all_of(admin)
    with pytest.raises(RouteNotFound, match="'broker-b' has no master now: nothing was changed"):
        change(admin)
    assert _all_of(admin) == before


def _all_of(admin: Admin) -> list[Any]:
    return [
        admin.group_lag("billing"),
        admin.group_lag("audit"),
        admin.describe_group("billing"),
        admin.describe_group("audit"),
        admin.topic_settings("orders"),
        admin.describe_topic("orders"),
        admin.kv_config("ORDER_TOPIC_CONFIG"),
    ]


def test_a_slave_is_asked_where_there_is_no_master(admin: Admin) -> None:
    assert {row.queue.broker_name: row.lag for row in admin.group_lag("billing")} == {
        "broker-a": 1,
        "broker-b": 1,
    }
    assert [each.broker_name for each in admin.describe_group("billing")] == [*GROUPS]
    assert list(admin.topic_settings("orders")) == [*GROUPS]
    assert sorted(admin.export()["topics"]) == [*GROUPS]
    assert [row.queue.broker_name for row in admin.undrained("orders", 0)] == [*GROUPS]


@pytest.mark.parametrize("kind", ["topic", "group"])
def test_who_makes_something_on_every_master_is_told_who_missed_it(
    nameserver: str, kind: str
) -> None:
    where = ["--nameserver", nameserver]
    done = CliRunner().invoke(app, [kind, "create", "half", "--json", *where])
    assert (done.exit_code, json.loads(done.stdout)["missed"]) == (0, ["broker-b"])
    assert "broker-b: no master now, so nothing was made there; repeat this" in done.stderr
    assert CliRunner().invoke(app, [kind, "delete", "half", "--yes", *where]).exit_code == 0


def test_what_no_broker_would_miss_is_changed(admin: Admin) -> None:
    admin.create_topic("here", queues=1)
    admin.delete_topic("here")
    admin.create_group("here")
    admin.alter_group("here", max_retries=3)
    admin.delete_group("here")
    assert "here" not in admin.list_topics()
    assert "here" not in admin.list_groups()


def test_a_refusal_names_no_other_topic(nameserver: str) -> None:
    command = ["topic", "delete", "orders", "--yes", "--nameserver", nameserver]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 1
    assert done.stderr.endswith("bring it back, or promote a slave\n")


def test_a_probe_tells_which_broker_takes_nothing(nameserver: str) -> None:
    command = ["admin", "probe", "-n", "1", "--json", "--nameserver", nameserver]
    done = CliRunner().invoke(app, command)
    rows = json.loads(done.stdout)
    assert (done.exit_code, [(row["broker"], row["ok"]) for row in rows]) == (
        1,
        [("broker-a", True), ("broker-b", False)],
    )
    assert rows[1]["status"].startswith("no master is called 'broker-b'")


def test_the_status_names_the_group_that_takes_nothing(nameserver: str) -> None:
    def status(*more: str) -> Any:
        return CliRunner().invoke(app, ["admin", "status", "--nameserver", nameserver, *more])

    done = status("--json")
    rows = json.loads(done.stdout)
    assert [(row["broker"], row["id"], row["refusesWrites"]) for row in rows] == [
        ("broker-a", 0, ""),
        ("broker-b", 0, "no master now: bring it back, or promote a slave"),
        ("broker-b", 1, ""),
    ]
    assert done.exit_code == 1
    shown = status("--broker", "broker-b")
    assert shown.exit_code == 1
    assert "taken" not in shown.stdout, "a slave takes no sends"
    assert status("--broker", "broker-a").exit_code == 0


def test_without_any_broker_nothing_is_said_to_be_done(tmp_path: Path) -> None:
    thread = LoopThread("nameserver")
    server = NameServer(thread.runtime, port=0)
    try:
        thread.run(server.start())
        with Admin(server.address) as admin:
            for change in (
                lambda: admin.create_group("billing"),
                lambda: admin.delete_group("billing"),
                lambda: admin.delete_topic("orders"),
            ):
                with pytest.raises(RouteNotFound, match="no master is registered"):
                    change()
        done = CliRunner().invoke(app, ["admin", "status", "--nameserver", server.address])
        assert done.stderr == "saturnmq: no broker is registered: start one\n"
        thread.run(server.close())
    finally:
        thread.close()
