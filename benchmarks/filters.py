"""Consumers that want a part of a topic: messages that the broker looks at per second.

    python benchmarks/filters.py [--messages 2000000] [--runs 5] [--json]

One nameserver and one master (async flush, no slave) on this machine; client and broker share its
cores. A topic of four queues is filled with messages of 100 B, each with a tag of a hundred and
three other properties. A PullConsumer of a new group gets those of one tag, and those that a
condition holds for, by up to 1,000 in a poll. It counts from its first messages to its last, and
checks that all that it wants came. The figures are medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import uuid
from collections import deque
from pathlib import Path

from saturnmq import Admin, Message, Producer, PullConsumer, Sql
from saturnmq.cli.bench import machine
from saturnmq.cli.launcher import LocalCluster, Settings

TOPIC, QUEUES = "filtered", 4
AHEAD = 20_000
REGIONS = "eu", "us", "asia", "africa"
BODY = bytes(100)
WANTED: dict[str, tuple[str | Sql, int]] = {  # and how many of a thousand messages pass
    "a tag of 1 %": ("t7", 10),
    "price > 989": (Sql("price > 989"), 10),
    "a range and a list": (Sql("price BETWEEN 10 AND 29 AND region IN ('eu', 'us')"), 10),
    "texts": (Sql("note STARTSWITH 'see 7' AND NOT (region = 'eu')"), 75),
}


def message(number: int) -> Message:
    properties = {
        "price": str(number * 7 % 1000),
        "region": REGIONS[number % 4],
        "note": f"see {number // 4 % 10}",
    }
    return Message(TOPIC, BODY, tag=f"t{number % 100}", properties=properties)


def fill(nameserver: str, count: int) -> None:
    with Admin(nameserver) as admin, Producer("filling", nameservers=nameserver) as producer:
        admin.create_topic(TOPIC, QUEUES)
        handles = deque()
        for number in range(count):
            handles.append(producer.send_async(message(number)))
            if len(handles) > AHEAD:
                handles.popleft().result()
        for handle in handles:
            handle.result()


def looked_at(nameserver: str, expression: str | Sql, count: int, wanted: int) -> float:
    """Messages a second that are between the first and the last one that was wanted."""
    consumer = PullConsumer(f"group-{uuid.uuid4().hex[:8]}", nameserver, from_beginning=True)
    consumer.subscribe(TOPIC, expression)
    with consumer:
        seen = first = len(consumer.poll(10.0, 1000))
        start = time.perf_counter()
        while seen < wanted:
            found = len(consumer.poll(10.0, 1000))
            if not found:
                raise SystemExit(f"{expression}: {seen} of {wanted} messages came")
            seen += found
        took = time.perf_counter() - start
    if seen > wanted:
        raise SystemExit(f"{expression}: {seen} messages came, {wanted} were wanted")
    return count * (wanted - first) / wanted / took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=2_000_000, help="a multiple of 1,000")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print JSON for machines")
    options = parser.parse_args()
    count: int = options.messages
    with tempfile.TemporaryDirectory() as folder:
        cluster = LocalCluster.up(Path(folder) / "cluster", Settings())
        try:
            nameserver = cluster.nameservers[0]
            fill(nameserver, count)
            rows = {
                name: sorted(
                    looked_at(nameserver, expression, count, count * share // 1000)
                    for _ in range(options.runs)
                )
                for name, (expression, share) in WANTED.items()
            }
        finally:
            cluster.down()
    if options.json:
        print(json.dumps({"machine": machine(), "messages": count, "runs": rows}))
        return
    print(f"{count:,} messages, messages looked at per second: median (least to most)")
    for name, figures in rows.items():
        spread = f"({figures[0]:,.0f} to {figures[-1]:,.0f})"
        print(f"{name:20} {statistics.median(figures):14,.0f} {spread}")


if __name__ == "__main__":
    main()
