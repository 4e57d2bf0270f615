"""Real processes, real kills and topics that are deleted: what is gone stays gone, and who consumed
it gets all of a new topic of the same name."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from cluster_rig import make_topic, running, until
from saturnmq import Admin, Message, Producer, PushConsumer
from saturnmq.cli.launcher import LocalCluster, Settings
from saturnmq.runtime.errors import RouteNotFound, SystemBusy, TopicNotExist

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]
TOPIC = "deleted"


def fill(cluster: LocalCluster, count: int, tag: str) -> set[bytes]:
    bodies = {f"{tag}-{number}".encode() for number in range(count)}
    with Producer(nameservers=cluster.nameservers) as producer:
        for body in sorted(bodies):
            producer.send(Message(TOPIC, body))
    return bodies


def ends(admin: Admin) -> list[tuple[int, int]]:
    return [(row.min_offset, row.max_offset) for row in admin.describe_topic(TOPIC)]


def created(admin: Admin) -> bool:
    with contextlib.suppress(SystemBusy):
        admin.create_topic(TOPIC, 4)
        return True
    return False


@pytest.mark.parametrize("victims", [("master-0",), ("slave-0",), ("master-0", "slave-0")])
def test_a_deleted_topic_stays_away_whoever_is_killed_right_after(
    tmp_path: Path, victims: tuple[str, ...]
) -> None:
    settings = Settings(nameservers=2, masters=1, slaves=1, replication="sync")
    with running(tmp_path / "cluster", settings) as cluster:
        make_topic(cluster, TOPIC, 4)
        fill(cluster, 40, "old")
        with Admin(cluster.nameservers[0]) as admin:
            before = ends(admin)
            admin.delete_topic(TOPIC)
        for victim in victims:
            cluster.kill(victim)
        for victim in victims:
            cluster.restart(victim)
        with Admin(cluster.nameservers[0]) as admin:
            assert TOPIC not in admin.list_topics()
            with pytest.raises((RouteNotFound, TopicNotExist)):
                admin.route(TOPIC)
            for name in ("master-0", "slave-0"):
                data = Path(cluster.node(name).data)
                # A slave that was killed before it heard of the deletion hears of it now.
                until(
                    lambda data=data: not list(data.rglob(f"consumequeue/{TOPIC}")),
                    f"{name} has no queue of it",
                )
            until(lambda: created(admin), "the master is sure of its log and takes topics")
            assert ends(admin) == [(end, end) for _, end in before], "empty, behind the old one"


def test_a_running_consumer_gets_all_of_a_topic_that_is_deleted_and_made_again(
    tmp_path: Path,
) -> None:
    with running(tmp_path / "cluster", Settings(masters=1)) as cluster:
        make_topic(cluster, TOPIC, 4)
        names, got = cluster.nameservers, []
        consumer = PushConsumer(
            "runs", names, listener_one=lambda message: got.append(bytes(message.body))
        )
        consumer.subscribe(TOPIC)
        with consumer:
            for life in range(3):
                sent = fill(cluster, 60, f"life-{life}")
                if life < 2:  # it may be anywhere in the topic when that goes
                    until(lambda sent=sent: bool(sent & set(got)), "some of it is consumed")
                    with Admin(names) as admin:
                        admin.delete_topic(TOPIC)
                        admin.create_topic(TOPIC, 4)
            until(lambda: sent <= set(got), "all of the last topic is consumed")
        assert len(got) == len(set(got)), "nothing comes twice"
