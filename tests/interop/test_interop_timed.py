"""Timed messages in one directory that brokers of both makes open in turn.

RocketMQ keeps the messages that wait in `timerwheel` and `timerlog`, ours in `<root>/timer`; both
keep the messages themselves in the queue of rmq_sys_wheel_timer. Nothing may be lost or come early.
Ours delivers once what RocketMQ had not delivered, and never what was recalled. RocketMQ goes on
where its own `timercheck` says, or, without one, reads the queue from its beginning: it delivers
again what ours had delivered, and what was recalled at ours if its moment is over when RocketMQ
starts.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from interop_nodes import ROCKETMQ, SATURNMQ, Nodes
from saturnmq import Admin, Message, Producer, PullConsumer, deliver_after
from saturnmq.cli.free_ports import free_block

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]
TOPIC = "timed"
SETTINGS: dict[str, object] = {
    "timerWheelEnable": "true",
    "recallMessageEnable": "true",
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 20_000,
    "mappedFileSizeTimerLog": 1 << 20,
}
PATIENCE_S = 60.0
EARLY_S = 0.25  # of RocketMQ, which rounds moments
SOON_S, LATER_S = 1.0, 25.0


@dataclass
class Timed:
    """What waits, and what has come; by body."""

    due: dict[str, float] = field(default_factory=dict)
    recalled: dict[str, float] = field(default_factory=dict)
    came: Counter[str] = field(default_factory=Counter)
    opened: float = 0.0

    def send(self, producer: Producer, name: str, seconds: float, *, recall: bool = False) -> None:
        begun = time.time()
        sent = producer.send(deliver_after(Message(TOPIC, name.encode()), seconds))
        if recall:
            producer.recall(sent)
        (self.recalled if recall else self.due)[name] = begun + seconds

    def read(self, nameserver: str, until: set[str]) -> None:
        """Read the topic from its beginning until it has these, and for a second more."""
        consumer = PullConsumer(f"reader-{time.time_ns()}", nameserver, from_beginning=True)
        consumer.subscribe(TOPIC)
        self.came.clear()
        deadline = time.monotonic() + PATIENCE_S
        with consumer:
            while not until <= self.came.keys():
                assert time.monotonic() < deadline, until - self.came.keys()
                self._take(consumer)
            self._take(consumer)

    def _take(self, consumer: PullConsumer) -> None:
        for message in consumer.poll(1.0):
            name, stored = message.body.decode(), message.store_timestamp / 1000
            if name in self.recalled:
                assert self.recalled[name] < self.opened, f"{name} was recalled"
            else:
                assert stored >= self.due[name] - EARLY_S, f"{name} is early"
                self.came[name] += 1


@pytest.mark.parametrize(
    "makes",
    [(ROCKETMQ, SATURNMQ, ROCKETMQ), (SATURNMQ, ROCKETMQ, SATURNMQ)],
    ids=["rocketmq-first", "saturnmq-first"],
)
def test_timed_messages_wait_on_in_a_directory_that_goes_from_hand_to_hand(
    nodes: Nodes, tmp_path: Path, makes: tuple[str, ...], figures: Counter[str]
) -> None:
    port = free_block("127.0.0.1", 4) + 2
    timed = Timed()
    for turn, make in enumerate(makes):
        broker = nodes.broker(make, tmp_path / "store", port, SETTINGS)
        timed.opened = 0.0 if make == SATURNMQ else time.time()
        nameserver = nodes.nameserver(make)
        with Admin(nameserver) as admin, Producer("timers", nameserver) as producer:
            admin.create_topic(TOPIC, 1)
            carried, had_come = set(timed.due), Counter(timed.came)
            for number in range(5):
                timed.send(producer, f"soon-{turn}-{number}", SOON_S)
                timed.send(producer, f"later-{turn}-{number}", LATER_S)
                timed.send(producer, f"recalled-{turn}-{number}", LATER_S, recall=True)
            soon = {name for name in timed.due if name.startswith("soon")}
            timed.read(nameserver, carried | soon)
        if make == SATURNMQ:
            for name, count in timed.came.items():
                assert count == max(1, had_come[name]), f"{name} came {count} times"
        broker.stop()
        figures["timed messages carried over"] += len(carried)
