"""Timed messages on one broker process: sends per second, and how late messages come.

    python benchmarks/timed.py                       # 100,000 messages, due within a minute
    python benchmarks/timed.py --messages 100000 --within 5     # as fast as the broker delivers

A cluster of one master with asynchronous flush is started in a temporary directory. The messages
name moments that are spread evenly over the time `--within`, which begins when all are sent. A
thread of this process receives them; the broker's TIMER_DEQUEUE_MS says when it delivered each.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from saturnmq import Admin, Message, Producer, PullConsumer, deliver_at
from saturnmq.cli.launcher import LocalCluster, Settings

BODY = bytes(100)
TOPIC = "bench"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--within", type=float, default=60.0, help="seconds")
    parser.add_argument("--lead", type=float, default=60.0, help="seconds that the sends may take")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cluster = LocalCluster.up(Path(folder) / "cluster", Settings())
        try:
            measure(cluster.nameservers[0], options.messages, options.within, options.lead)
        finally:
            cluster.down()


def measure(nameserver: str, count: int, within: float, lead: float) -> None:
    begun = time.time()
    first = begun + lead
    with Admin(nameserver) as admin, Producer(nameservers=nameserver) as producer:
        admin.create_topic(TOPIC, 1)
        handles = [
            producer.send_async(deliver_at(Message(TOPIC, BODY), first + within * n / count))
            for n in range(count)
        ]
        for handle in handles:
            handle.result()
    took = time.time() - begun
    print(f"{count / took:,.0f} messages/s sent, for later")
    if took > lead:
        print(f"the sends took {took:.0f} s: the first messages were due before (--lead)")
    consumer = PullConsumer("readers", nameserver, from_beginning=True)
    consumer.subscribe(TOPIC)
    late: list[int] = []
    delivered: list[int] = []
    with consumer:
        while len(late) < count:
            for message in consumer.poll(1.0):
                at, due = (
                    int(message.properties[name])
                    for name in ("TIMER_DEQUEUE_MS", "TIMER_DELIVER_MS")
                )
                late.append(at - due)
                delivered.append(at)
    late.sort()
    rate = count / max((max(delivered) - min(delivered)) / 1000, 0.001)
    print(f"{rate:,.0f} messages/s delivered")
    print(
        f"late by {late[count // 2]} ms (median), {late[count * 99 // 100]} ms (99 %), "
        f"{late[-1]} ms (most); early: {sum(each < 0 for each in late)}"
    )


if __name__ == "__main__":
    main()
