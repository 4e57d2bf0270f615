"""Groups with the default start on a real cluster: topics that appear and grow under load."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import pytest
from cluster_rig import make_topic, running, until
from saturnmq import Admin, Message, Producer, PushConsumer
from saturnmq.cli.launcher import READY_FILE, LauncherError, Settings
from saturnmq.cli.main import app
from typer.testing import CliRunner

# A node that follows its master two seconds later than it serves: `python -c LATE -m MODULE ...`.
LATE = """
import asyncio, runpy, sys
from saturnmq.broker.replication.ha_slave import HaSlave
run = HaSlave.run
async def late(self):
    await asyncio.sleep(2)
    await run(self)
HaSlave.run = late
sys.argv[:] = sys.argv[sys.argv.index("-m") + 1 :]
runpy.run_module("saturnmq.cli.main", run_name="__main__", alter_sys=True)
"""


def test_a_group_that_subscribed_before_its_topic_existed_misses_nothing(tmp_path: Path) -> None:
    with running(tmp_path / "cluster") as cluster:
        names, got = cluster.nameservers, set()
        consumer = PushConsumer(
            "early", names, listener_one=lambda message: got.add(bytes(message.body))
        )
        consumer.subscribe("made-by-sending")
        with consumer, Producer(nameservers=names) as producer:
            bodies = [b"%d" % number for number in range(1000)]
            for body in bodies:
                producer.send(Message("made-by-sending", body))
            until(lambda: len(got) >= 1000, f"{1000 - len(got)} of 1,000 are missing")
        assert got == set(bodies)


def test_a_group_misses_nothing_of_a_topic_that_grows_while_members_come_and_go(
    tmp_path: Path,
) -> None:
    with running(tmp_path / "cluster") as cluster:
        names = cluster.nameservers
        got: set[bytes] = set()
        sent: list[bytes] = []
        grown = threading.Event()

        def member() -> PushConsumer:
            made = PushConsumer(
                "growing",
                names,
                listener=lambda messages: got.update(bytes(each.body) for each in messages),
                commit_interval_s=0.2,
            )
            made.subscribe("grows")
            return made

        def send() -> None:
            with Producer(nameservers=names) as producer:
                while not grown.is_set():
                    body = b"%d" % len(sent)
                    producer.send(Message("grows", body))
                    sent.append(body)

        with Admin(names) as admin:
            admin.create_topic("grows", 1)
            members = [member().start()]
            sender = threading.Thread(target=send)
            sender.start()
            try:
                for queues in (2, 4, 8, 16):
                    goal = len(sent) + 300
                    until(lambda: len(sent) >= goal, "the sender stands still")  # noqa: B023
                    members.append(member().start())
                    admin.create_topic("grows", queues)
                    if queues > 4:
                        members.pop(0).close()
                goal = len(sent) + 300
                until(lambda: len(sent) >= goal, "the sender stands still")
            finally:
                grown.set()
                sender.join()
            until(lambda: got >= set(sent), f"{len(set(sent) - got)} of {len(sent)} are missing")
            for made in members:
                made.close()


def test_a_cluster_is_up_when_a_master_that_waits_for_its_slave_takes_writes(
    tmp_path: Path,
) -> None:
    settings = Settings(masters=1, slaves=1, replication="sync")
    settings.prefixes = {"slave-0": [sys.executable, "-c", LATE]}
    with running(tmp_path / "cluster", settings) as cluster:
        make_topic(cluster, "at-once", 4)


def test_a_node_goes_on_when_the_one_that_is_to_relieve_it_cannot_start(tmp_path: Path) -> None:
    with running(tmp_path / "cluster") as cluster, Producer(nameservers=cluster.nameservers) as to:
        make_topic(cluster, "goes-on", 4)
        before = cluster.node("master-0").pid
        options = cluster.settings.broker_options
        cluster.settings.broker_options = {**options, "brokerPermission": 9}
        with pytest.raises(LauncherError, match=r"(?s)master-0 runs as before.*brokerPermission"):
            cluster.restart("master-0")
        assert to.send(Message("goes-on", b"1")).ok
        cluster.settings.broker_options = options
        assert cluster.node("master-0").pid == before
        assert cluster.restart("master-0").pid != before
        assert to.send(Message("goes-on", b"2")).ok


def test_what_a_cluster_makes_is_its_owners_alone_and_a_store_that_others_can_read_is_told(
    tmp_path: Path,
) -> None:
    with running(tmp_path / "cluster") as cluster:
        made = [cluster.data, *cluster.data.rglob("*")]
        open_to_others = {p for p in made if p.stat().st_mode & 0o077}
        assert open_to_others == set()
        home = Path(cluster.node("master-0").data)
        assert {home / "log.txt", home / "store" / "lock"} <= set(made)
        assert "cleanFileForciblyEnable = false\n" in (home / "broker.toml").read_text()
        assert "every user of this machine" not in (home / "log.txt").read_text()
        (home / "store").chmod(0o755)
        cluster.restart("master-0")
        assert f"chmod -R o-rwx {home}/store" in (home / "log.txt").read_text()


def test_a_broker_that_starts_is_shown_so_and_waited_for(tmp_path: Path) -> None:
    with running(tmp_path / "cluster") as cluster:
        node = cluster.node("master-0")
        ready = Path(node.data) / READY_FILE
        aside = ready.rename(ready.with_suffix(".aside"))  # as before it serves

        def status() -> tuple[int, dict[str, str]]:
            asked = CliRunner().invoke(
                app, ["cluster", "status", "--json", "--data", str(cluster.data)]
            )
            rows = {row["name"]: row for row in json.loads(asked.stdout)["nodes"]}
            return asked.exit_code, rows[node.name]

        code, row = status()
        assert (code, row["role"], row["refuses"]) == (1, "unknown", "starting")
        with pytest.raises(LauncherError, match="after 0 s master-0 does not serve yet"):
            cluster.await_routes(0.1)
        late = threading.Timer(0.5, aside.rename, [ready])
        late.start()
        cluster.await_routes()
        late.join()
        code, row = status()
        assert (code, row["role"], row["refuses"]) == (0, "master", "")
