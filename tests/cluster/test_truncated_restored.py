"""Real processes, a fail-over that loses what was acknowledged, and an operator who brings it back:
what the old master cut off its log is sent again, and each message is consumed once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from cluster_rig import make_topic, running, until
from saturnmq import Admin, Message, Producer, PullConsumer
from saturnmq.cli.launcher import LocalCluster, Settings

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]
TOPIC = "orders"


def restore(cluster: LocalCluster, *arguments: str) -> dict[str, Any]:
    store = str(Path(cluster.node("master-0").data) / "store")
    command = ["store", "restore-truncated", store, *arguments, "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "saturnmq", *command],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "SATURNMQ_NAMESERVER": ",".join(cluster.nameservers)},
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def lose(cluster: LocalCluster, producer: Producer) -> None:
    """The master dies with what its slave never got, the slave is promoted, and the old master
    comes back and cuts that off."""
    cluster.kill("slave-0")
    for number in range(20):
        shard = f"s{number % 3}" if number % 2 else None
        body, keys = b"lost-%d" % number, [f"k{number}"]
        producer.send(Message(TOPIC, body, keys=keys, sharding_key=shard))
    producer.send(Message(TOPIC, b"late", delay_level=3))
    again = Message(TOPIC, b"sent again", properties={"UNIQ_KEY": "again"})
    producer.send(again)
    cluster.kill("master-0")
    cluster.restart("slave-0")
    with Admin(cluster.nameservers) as admin:
        admin.promote("broker-0", cluster.node("slave-0").address, force=True)
        cluster.restart("master-0")
        until(
            lambda: any(replica.truncated for replica in admin.replicas("broker-0")),
            "the old master has cut off what only it had",
        )
    producer.send(again)


def test_what_a_forced_fail_over_lost_is_restored_and_consumed_once(tmp_path: Path) -> None:
    with running(tmp_path / "cluster", Settings(masters=1, slaves=1)) as cluster:
        make_topic(cluster, TOPIC, 4)
        with Producer(nameservers=cluster.nameservers) as producer:
            kept = [b"kept-%d" % number for number in range(10)]
            for body in kept:
                producer.send(Message(TOPIC, body))
            with Admin(cluster.nameservers) as admin:
                until(
                    lambda: len({r.end for r in admin.replicas("broker-0")}) == 1,
                    "the slave has all of that",
                )
            lose(cluster, producer)
        lost = [b"lost-%d" % number for number in range(20)]
        expected = {*kept, *lost, b"late", b"sent again"}
        got: list[bytes] = []
        names: list[str | None] = []
        consumer = PullConsumer("readers", cluster.nameservers, from_beginning=True)
        consumer.subscribe(TOPIC)

        def consumed() -> bool:
            for message in consumer.poll(timeout_s=0.2):
                got.append(bytes(message.body))
                names.append(message.properties.get("RESTORED_FROM"))
            return set(got) >= expected

        with consumer:
            preview = restore(cluster)
            wanted = preview["wanted"]
            assert wanted == 21, preview
            assert preview["present"] == 1
            sent = restore(cluster, "--send")
            assert (sent["wanted"], sent["sent"]) == (wanted, wanted)
            until(consumed, "everything is consumed", 60.0)
            again = restore(cluster, "--send")
            assert (again["wanted"], again["sent"], again["present"]) == (0, 0, wanted + 1)
            consumed()
        assert Counter(got) == Counter(expected), "each message once"
        marked = {body for body, name in zip(got, names, strict=True) if name}
        assert marked == {*lost, b"late"}
        with Admin(cluster.nameservers) as admin:
            [found] = admin.find_by_key(TOPIC, "k7")
            assert (bytes(found.body), found.sharding_key) == (b"lost-7", "s1")
