"""Requests with replies at a broker of ours: RocketMQ's client asks ours, and ours asks
RocketMQ's."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from cluster_rig import make_topic, running
from interop_clients import java_program
from saturnmq import Message, Producer, PushConsumer, ReceivedMessage

REQUESTS = 20

pytestmark = pytest.mark.quick


@pytest.mark.timeout(180)
def test_either_client_replies_to_the_other(
    jars: Path, tmp_path: Path, figures: Counter[str]
) -> None:
    with running(tmp_path / "cluster") as cluster:
        nameserver = cluster.nameservers[0]
        to_java, to_us = (make_topic(cluster, name, 4) for name in ("to-java", "to-us"))
        with (
            java_program(jars, "Replies.java", nameserver, log=tmp_path / "java.log") as java,
            Producer("both", nameserver) as producer,
        ):

            def work(message: ReceivedMessage) -> None:
                producer.reply(message, message.body[::-1])

            consumer = PushConsumer("ours", nameserver, listener_one=work, from_beginning=True)
            consumer.subscribe(to_us)
            with consumer:
                for number in range(REQUESTS):
                    assert java.tell(f"ask {to_us} number-{number}") == f"number-{number}"[::-1]
            assert java.tell(f"serve {to_java}") == "serving"
            for number in range(REQUESTS):
                reply = producer.request(Message(to_java, b"number-%d" % number), timeout=20.0)
                assert reply.body == b"NUMBER-%d" % number
                assert reply.properties["MSG_TYPE"] == "reply"
    figures["requests replied to, to and from a Java client"] += 2 * REQUESTS
