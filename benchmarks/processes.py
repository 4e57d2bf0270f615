"""One broker process beside several, with two producers and two consumers on this machine.

    python benchmarks/processes.py [--brokers 1,2] [--seconds S] [--size B] [--rounds N] [--json]

Producers send as fast as they can to one topic while consumers read it, each a process of its own,
for so many seconds. For each number of brokers: messages sent and consumed a second, the processor
time that brokers and clients took of all there is, and how busy the event loop of a broker was,
which is one thread. Rounds go through the numbers in turns; the figures are medians.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from saturnmq.cli import workloads
from saturnmq.cli.launcher import LocalCluster, Settings

CLIENTS = 2  # of each kind
QUEUES = 4  # of the topic, at each broker
WARM_S = 1.0
CHUNK = 1000

Figures = dict[str, float]


# -- the clients: processes that print their count when their input ends ---------------------------


def produce(nameservers: Sequence[str], topic: str, size: int) -> None:
    from saturnmq import Message, Producer

    body, sent = os.urandom(size), 0
    with Producer("bench", nameservers) as producer:
        while not _over():
            for _ in range(CHUNK):
                producer.send_async(Message(topic, body))
            sent += CHUNK
        producer.flush()
    print(sent)


def consume(nameservers: Sequence[str], topic: str) -> None:
    from saturnmq import PullConsumer

    taken = 0
    consumer = PullConsumer("bench-readers", nameservers, consume_from="first")
    consumer.subscribe(topic)
    with consumer:
        while not _over():
            taken += len(consumer.poll(0.1, CHUNK))
    print(taken)


def _over() -> bool:
    """Whether the parent has said that the time is over."""
    return Path(sys.argv[-1]).exists()


CLIENT_KINDS = ("produce", "consume")


# -- the measurement -------------------------------------------------------------------------------


def measure(brokers: int, seconds: float, size: int) -> Figures:
    home = Path(tempfile.mkdtemp(prefix="saturnmq-processes-"))
    cluster = LocalCluster.up(home / "cluster", Settings(masters=brokers))
    try:
        topic = workloads.new_topic(cluster.nameservers, QUEUES)
        pids = [node.pid for node in cluster.nodes if node.kind == "master" and node.pid]
        over = home / "over"
        command = [sys.executable, __file__, "--client"]
        arguments = [",".join(cluster.nameservers), topic, str(size), str(over)]
        clients = [
            subprocess.Popen([*command, kind, *arguments], stdout=subprocess.PIPE, text=True)
            for kind in CLIENT_KINDS
            for _ in range(CLIENTS)
        ]
        time.sleep(WARM_S)
        client_pids = [client.pid for client in clients]
        before = [workloads.processor_s(each) for each in (pids, client_pids)]
        loops = [_loop_s(pid) for pid in pids]
        time.sleep(seconds)
        used = [
            workloads.processor_s(each) - first
            for each, first in zip((pids, client_pids), before, strict=True)
        ]
        busy = [_loop_s(pid) - first for pid, first in zip(pids, loops, strict=True)]
        over.touch()
        counts = [int(client.communicate()[0]) for client in clients]
        took = seconds + WARM_S
        machine = seconds * (os.cpu_count() or 1)
        return {
            "sent_per_s": sum(counts[:CLIENTS]) / took,
            "consumed_per_s": sum(counts[CLIENTS:]) / took,
            "brokers_of_machine": used[0] / machine,
            "clients_of_machine": used[1] / machine,
            "busiest_loop": max(busy) / seconds,
        }
    finally:
        cluster.down()
        shutil.rmtree(home)


def _loop_s(pid: int) -> float:
    """The processor time of a broker's first thread, which runs its loop."""
    fields = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / workloads.TICKS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--brokers", default="1,2", help="numbers of broker processes")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    numbers = [int(number) for number in options.brokers.split(",")]
    rounds: dict[int, list[Figures]] = {number: [] for number in numbers}
    for _ in range(options.rounds):
        for number in numbers:
            rounds[number].append(measure(number, options.seconds, options.size))
            print(f"{number} brokers: {rounds[number][-1]}", file=sys.stderr)
    medians = {
        number: {name: statistics.median(each[name] for each in found) for name in found[0]}
        for number, found in rounds.items()
    }
    if options.json:
        print(json.dumps({"size": options.size, "brokers": medians, "rounds": rounds}))
        return
    for number, figures in medians.items():
        print(
            f"{number} brokers: {figures['sent_per_s']:,.0f} sent/s, "
            f"{figures['consumed_per_s']:,.0f} consumed/s; of the machine brokers "
            f"{figures['brokers_of_machine']:.0%}, clients {figures['clients_of_machine']:.0%}; "
            f"the busiest loop {figures['busiest_loop']:.0%} of a processor"
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--client"]:
        kind, servers, name, body_bytes, _ = sys.argv[2:]
        if kind == "produce":
            produce(servers.split(","), name, int(body_bytes))
        else:
            consume(servers.split(","), name)
    else:
        main()
