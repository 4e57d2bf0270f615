"""A member of a consumer group that is killed: the others get what it had not done, and little of
what it had."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from cluster_rig import make_topic, running, until
from saturnmq import Message, Producer, PushConsumer

COUNT, QUEUES = 100, 4
MEMBER = """
import os, sys
from saturnmq import PushConsumer

def listener(message):
    os.write(1, message.body + b"\\n")  # at once, also where two threads do so

consumer = PushConsumer("readers", sys.argv[1:], listener_one=listener, consume_from="first")
consumer.subscribe("T")
with consumer:
    sys.stdin.read()
"""


def test_kill_9_of_a_member_repeats_what_its_last_pulls_brought(tmp_path: Path) -> None:
    """Its commits of its own come every five seconds, which is longer than it lives here."""
    first: list[int] = []
    second: list[int] = []
    with running(tmp_path / "cluster") as cluster, Producer("P", cluster.nameservers) as producer:
        make_topic(cluster, "T", QUEUES)
        member = subprocess.Popen(
            [sys.executable, "-c", MEMBER, *cluster.nameservers],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert member.stdout is not None
        reader = threading.Thread(target=lambda: first.extend(map(int, member.stdout)))
        reader.start()
        try:
            for number in range(COUNT):
                producer.send(Message("T", b"%d" % number))
                until(lambda: len(first) > number, "the member gets each")  # noqa: B023
        finally:
            member.kill()
            member.wait()
            reader.join()
        for number in range(COUNT, 2 * COUNT):
            producer.send(Message("T", b"%d" % number))
        consumer = PushConsumer(
            "readers",
            cluster.nameservers,
            listener_one=lambda message: second.append(int(message.body)),
            consume_from="first",
        )
        consumer.subscribe("T")
        new = set(range(COUNT, 2 * COUNT))
        with consumer:
            until(lambda: new <= set(second), "the other one gets the rest")
    assert sorted(first) == list(range(COUNT))
    repeated = set(second) - new
    assert len(repeated) <= 4 * QUEUES, repeated
