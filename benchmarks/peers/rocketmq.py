"""RocketMQ's side of `saturnmq bench --against rocketmq`: nameserver, broker and, if asked for, a
slave (`rocketmq_node.py`), and its Java client (`RocketLoad.java`), which stays alive.

The client sends pipelined messages in batches of 100, 32 of them under way: single asynchronous
sends are slower. It looks at every answer in each of its ways to send.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
import uuid
from pathlib import Path
from typing import Any

from peers.rocketmq_node import VERSION, RocketMQNode, rocketmq_jars
from peers.side import Figures, Meter, arguments, end_in_order, serve
from saturnmq import Admin, SaturnError
from saturnmq.cli.workloads import BATCH, QUEUES, SHARES

READY_S = 60.0
SENT_TOGETHER, UNDER_WAY = 100, 32
SENDS = {  # messages in a batch, batches under way, with key and tag
    "flush": (SENT_TOGETHER, UNDER_WAY, 0),
    "results": (SENT_TOGETHER, UNDER_WAY, 0),
    "callbacks": (SENT_TOGETHER, UNDER_WAY, 0),
    "keyed": (SENT_TOGETHER, UNDER_WAY, 1),
    "batch": (BATCH, 1, 0),
    "batches": (BATCH, 16, 0),
}
CONSUMES = {
    "many": ("consume", BATCH, 0),
    "one": ("consume", 1, 0),
    "touch": ("consume", 1, 1),
    "poll1": ("poll", 1),
    "poll1000": ("poll", BATCH),
}


class RocketMQ:
    """The brokers, the client and their works."""

    def __init__(self, node: RocketMQNode) -> None:
        self._node = node
        self._client = subprocess.Popen(
            [
                *("java", "-Xmx2g", "-cp", f"{rocketmq_jars()}/*"),
                *(str(Path(__file__).with_name("RocketLoad.java")), node.nameserver),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._backlogs: dict[tuple[int, int, int], str] = {}

    def __enter__(self) -> RocketMQ:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.kill()
        self._client.wait()

    def topic(self, queues: int = QUEUES) -> str:
        name = f"bench-{uuid.uuid4().hex[:12]}"
        deadline = time.monotonic() + READY_S
        while True:
            try:
                with Admin(self._node.nameserver) as admin:
                    admin.create_topic(name, queues)
                    return name
            except SaturnError:  # the broker may take 10 s to register
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)

    def ask(self, *words: object) -> list[float]:
        """The seconds of a line of work, and the quantiles of its times."""
        assert self._client.stdin is not None, "it is a pipe"
        assert self._client.stdout is not None, "it is a pipe"
        print(*words, file=self._client.stdin, flush=True)
        while True:
            answer = self._client.stdout.readline()
            if answer.startswith("ok "):
                return [float(word) for word in answer.split()[1:]]
            if answer.startswith("failed ") or not answer:
                raise SystemExit(answer.strip() or "the Java client has ended")

    def send(self, request: dict[str, Any]) -> Figures:
        topic, count = self.topic(), request["count"]
        meter = Meter([self._node.broker_pid])
        [seconds] = self.ask("send", topic, count, request["size"], *SENDS[request["call"]])
        return meter.rate(count, seconds)

    def single(self, request: dict[str, Any]) -> Figures:
        topic, count = self.topic(), request["count"]
        meter = Meter([self._node.broker_pid])
        seconds, p50, p99, _ = self.ask("single", topic, count, request["size"], request["senders"])
        return {**meter.rate(count, seconds), "p50_us": p50, "p99_us": p99}

    def paced(self, request: dict[str, Any]) -> Figures:
        topic, rate, count = self.topic(request["queues"]), request["rate"], request["count"]
        meter = Meter([self._node.broker_pid])
        _, *times = self.ask("paced", topic, count, request["size"], rate, request["warm"])
        return {**meter.rate(count, count / rate), **dict(zip(SHARES, times, strict=True))}

    def consume(self, request: dict[str, Any]) -> Figures:
        size, count = request["size"], request["count"]
        work, *words = CONSUMES[request["call"]]
        keyed = int(request["call"] == "touch")
        known = (size, count, keyed)
        if known not in self._backlogs:
            topic = self.topic()
            self.ask("send", topic, count, size, SENT_TOGETHER, UNDER_WAY, keyed)
            self._backlogs[known] = topic
        meter = Meter([self._node.broker_pid])
        [seconds] = self.ask(work, self._backlogs[known], count, *words)
        return meter.rate(count, seconds)


def main() -> None:
    options = arguments()
    end_in_order()
    with contextlib.ExitStack() as stack:
        node = RocketMQNode(
            options.home / "rocketmq",
            sync_flush=options.sync_flush,
            sync_slave=options.sync_slave,
        )
        stack.push(node)
        node.__enter__()
        peer = stack.enter_context(RocketMQ(node))
        works = {
            "send": peer.send,
            "single": peer.single,
            "consume": peer.consume,
            "paced": peer.paced,
        }
        serve(f"RocketMQ {VERSION} with its Java client", works)


if __name__ == "__main__":
    main()
