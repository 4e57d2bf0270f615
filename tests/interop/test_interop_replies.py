"""Requests with replies at a broker of ours: RocketMQ's client asks ours, and ours asks
RocketMQ's."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cluster_rig import make_topic, running
from saturnmq import Message, Producer, PushConsumer, ReceivedMessage

REQUESTS = 20


@contextmanager
def java_side(jars: Path, nameserver: str, log: Path) -> Iterator[Callable[[str], str]]:
    """Replies.java, told by lines; each is answered by one."""
    if shutil.which("javac") is None:
        pytest.skip("no `javac` on the path to run RocketMQ's client with")
    program = str(Path(__file__).with_name("Replies.java"))
    command = ["java", "-Xmx512m", "-XX:+UseSerialGC", f"-Duser.home={log.parent}"]
    command += ["-cp", f"{jars}/*", program, nameserver]
    with (
        open(log, "w") as errors,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        lines, answers = process.stdin, process.stdout

        def tell(line: str) -> str:
            print(line, file=lines, flush=True)
            said = next(each for each in answers if each.startswith("> "))
            return said.removeprefix("> ").strip()

        yield tell
        lines.close()


@pytest.mark.timeout(180)
def test_either_client_replies_to_the_other(
    jars: Path, tmp_path: Path, figures: Counter[str]
) -> None:
    with running(tmp_path / "cluster") as cluster:
        nameserver = cluster.nameservers[0]
        to_java, to_us = (make_topic(cluster, name, 4) for name in ("to-java", "to-us"))
        with (
            java_side(jars, nameserver, tmp_path / "java.log") as tell,
            Producer("both", nameserver) as producer,
        ):

            def work(message: ReceivedMessage) -> None:
                producer.reply(message, message.body[::-1])

            consumer = PushConsumer("ours", nameserver, listener_one=work, from_beginning=True)
            consumer.subscribe(to_us)
            with consumer:
                for number in range(REQUESTS):
                    assert tell(f"ask {to_us} number-{number}") == f"number-{number}"[::-1]
            assert tell(f"serve {to_java}") == "serving"
            for number in range(REQUESTS):
                reply = producer.request(Message(to_java, b"number-%d" % number), timeout=20.0)
                assert reply.body == b"NUMBER-%d" % number
                assert reply.properties["MSG_TYPE"] == "reply"
    figures["requests replied to, to and from a Java client"] += 2 * REQUESTS
