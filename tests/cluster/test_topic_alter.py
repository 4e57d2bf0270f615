"""Topics that get fewer queues on a real cluster, by RocketMQ's procedure and against it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from cluster_rig import running, until
from saturnmq import Admin, Message, MessageQueue, Producer, PullConsumer
from saturnmq.cli.launcher import LocalCluster
from saturnmq.runtime.errors import InvalidParameter, TopicNotExist

MESSAGES = 80


def saturnmq(cluster: LocalCluster, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "saturnmq", *words, "--nameserver", cluster.nameservers[0]]
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


class Orders:
    """A topic of 8 queues."""

    def __init__(self, cluster: LocalCluster, admin: Admin, producer: Producer, name: str) -> None:
        self.cluster, self.admin, self.producer, self.name = cluster, admin, producer, name
        self.group = f"readers-of-{name}"
        admin.create_topic(name, 8)
        self.broker = admin.describe_topic(name)[0].queue.broker_name

    def fill(self) -> None:
        """Ten messages in each queue; all that was sent can be read then."""
        for n in range(MESSAGES):
            queue = MessageQueue(self.name, self.broker, n % 8)
            last = self.producer.send(Message(self.name, b"x"), queue=queue)
        until(lambda: self.ends()[last.queue.queue_id] > last.queue_offset, "it cannot be read yet")

    def ends(self) -> dict[int, int]:
        return {row.queue.queue_id: row.max_offset for row in self.admin.describe_topic(self.name)}

    def drain(self) -> int:
        """The group consumes all it can; how much that was."""
        consumer = PullConsumer(self.group, self.cluster.nameservers, from_beginning=True)
        consumer.subscribe(self.name)
        got = 0
        with consumer:
            while messages := consumer.poll(3.0):
                got += len(messages)
            consumer.commit()
        return got

    def lag(self) -> int:
        return sum(row.lag for row in self.admin.group_lag(self.group, self.name))

    def alter(self, *words: str) -> subprocess.CompletedProcess[str]:
        return saturnmq(self.cluster, "topic", "alter", self.name, *words)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with running(tmp_path_factory.mktemp("alter") / "cluster") as cluster:
        yield cluster


@pytest.fixture
def orders(cluster, request):
    with Admin(cluster.nameservers) as admin, Producer(nameservers=cluster.nameservers) as producer:
        orders = Orders(cluster, admin, producer, request.node.name[:60])
        orders.fill()
        yield orders


def test_fewer_to_write_drain_fewer_to_read_loses_nothing_and_fails_no_send(orders) -> None:
    def send_keyed() -> set[int]:
        sends = [
            orders.producer.send(Message(orders.name, b"x"), sharding_key=f"key {n}")
            for n in range(8)
        ]
        return {sent.queue.queue_id for sent in sends}

    assert len(send_keyed()) > 2
    done = orders.alter("--write-queues", "2", "--json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["brokers"]
    assert (row["write_queues"], row["read_queues"], row["perm"]) == (2, 8, 6)
    assert send_keyed() <= {0, 1}
    done = orders.alter("--read-queues", "2")
    assert done.returncode == 1
    assert "messages that no group has consumed" in done.stderr
    assert "--yes" in done.stderr
    assert orders.drain() == MESSAGES + 16
    assert orders.lag() == 0
    done = orders.alter("--read-queues", "2")
    assert (done.returncode, done.stderr) == (0, "")
    assert orders.ends().keys() == {0, 1}
    assert send_keyed() <= {0, 1}
    assert orders.drain() == 8


def test_lag_counts_what_is_left_in_queues_that_were_taken_away(orders) -> None:
    orders.drain()
    orders.fill()
    orders.admin.alter_topic(orders.name, write_queues=2)
    done = orders.alter("--read-queues", "2")
    assert done.returncode == 1
    assert f"60 messages that group {orders.group} has not consumed" in done.stderr
    done = orders.alter("--read-queues", "2", "--yes")
    assert done.returncode == 0, done.stderr
    assert orders.lag() == MESSAGES
    assert orders.drain() == 20
    assert orders.lag() == 60
    orders.admin.alter_topic(orders.name, read_queues=8)
    assert orders.drain() == 60
    assert orders.lag() == 0


def test_a_topic_is_made_with_other_numbers_and_keeps_what_is_not_altered(cluster) -> None:
    with Admin(cluster.nameservers) as admin:
        admin.create_topic("apart", write_queues=2, read_queues=6, message_type="FIFO")
        (data,) = admin.route("apart").queues
        assert (data.write_queues, data.read_queues, data.perm) == (2, 6, 6)
        admin.alter_topic("apart", perm=4)
        (data,) = admin.route("apart").queues
        assert (data.write_queues, data.read_queues, data.perm) == (2, 6, 4)
        admin.alter_topic("apart", write_queues=3, perm=6)
        (data,) = admin.route("apart").queues
        assert (data.write_queues, data.read_queues, data.perm) == (3, 6, 6)
        with pytest.raises(InvalidParameter, match="0 read queues"):
            admin.alter_topic("apart", read_queues=0)
        with pytest.raises(InvalidParameter, match="perm 1"):
            admin.alter_topic("apart", perm=1)
        with pytest.raises(TopicNotExist):
            admin.alter_topic("nowhere", read_queues=2)


def test_a_broker_takes_messages_for_any_queue_that_it_has_and_for_no_other(cluster) -> None:
    with Admin(cluster.nameservers) as admin, Producer(nameservers=cluster.nameservers) as producer:
        admin.create_topic("edges", write_queues=2, read_queues=4)
        name = admin.describe_topic("edges")[0].queue.broker_name
        for queue_id in range(4):
            queue = MessageQueue("edges", name, queue_id)
            assert producer.send(Message("edges", b"x"), queue=queue).queue == queue
        with pytest.raises(InvalidParameter, match="out of range"):
            producer.send(Message("edges", b"x"), queue=MessageQueue("edges", name, 4))
