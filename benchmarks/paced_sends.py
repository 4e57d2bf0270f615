"""A lone synchronous sender that pauses between its sends: what a message costs when the memory of
both processes was used by nobody for a while.

    python benchmarks/paced_sends.py --pauses 0,1,3,10 --rounds 3

For each pause (milliseconds): the p50 of a send, the broker's and the client's processor time for
each, and, without any message, how long this machine takes for `FUNCTIONS` different functions of
Python that are called one after the other, and for one that is called as often. One nameserver, one
master (async flush), 1 KiB. Medians of the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable

from saturnmq import Producer
from saturnmq.cli.launcher import LocalCluster, Settings
from saturnmq.cli.workloads import Work, new_topic, processor_s

FUNCTIONS = 300  # about as many as broker and client call for a message
SENDS = 1500
SECONDS_MAX = 6.0  # of one figure: a long pause has fewer sends
SOURCE = """
def f(state):
    a, b = state.get({number}), len(state)
    if a is None and b > {number}:
        raise KeyError({number})
    return a, b, {number}
"""
State = dict[int, int]


def functions() -> list[Callable[[State], object]]:
    """Functions that do the same, each with code of its own."""
    found = []
    for number in range(FUNCTIONS):
        names: dict[str, Callable[[State], object]] = {}
        exec(SOURCE.format(number=number), names)
        found.append(names["f"])
    return found


def sends_for(pause_s: float) -> int:
    return min(SENDS, int(SECONDS_MAX / pause_s)) if pause_s else SENDS


def called(work: list[Callable[[State], object]], pause_s: float) -> float:
    """The p50 of a walk through all of them, in microseconds."""
    state: State = {}
    times = []
    for _ in range(sends_for(pause_s)):
        time.sleep(pause_s)
        begin = time.perf_counter()
        for each in work:
            each(state)
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1e6


def sent(work: Work, producer: Producer, broker: int, pause_s: float) -> tuple[float, float, float]:
    """The p50 of a send, and the processor time of broker and client for each; microseconds."""
    count = sends_for(pause_s)
    times = []
    before, mine = processor_s([broker]), time.process_time()
    for _ in range(count):
        time.sleep(pause_s)
        begin = time.perf_counter()
        if not producer.send(work.message()).ok:
            raise SystemExit("a send was not acknowledged")
        times.append(time.perf_counter() - begin)
    mine = time.process_time() - mine
    spent = (processor_s([broker]) - before) / count
    return statistics.median(times) * 1e6, spent * 1e6, mine / count * 1e6


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("--pauses", default="0,1,3,10", help="milliseconds, with commas between")
    options.add_argument("--rounds", type=int, default=3)
    chosen = options.parse_args()
    pauses = [float(each) / 1000 for each in chosen.pauses.split(",")]
    many, one = functions(), functions()[:1] * FUNCTIONS
    with tempfile.TemporaryDirectory(prefix="paced-") as home:
        cluster = LocalCluster.up(home, Settings())
        try:
            master = next(node for node in cluster.nodes if node.kind == "master")
            work = Work(cluster.nameservers, 1024, SENDS)
            work.topic = new_topic(cluster.nameservers, 4)
            with Producer("paced", cluster.nameservers) as producer:
                for _ in range(SENDS):
                    producer.send(work.message())
                for pause_s in pauses:
                    rounds = []
                    for _ in range(chosen.rounds):
                        figures = sent(work, producer, master.pid or 0, pause_s)
                        rounds.append((*figures, called(many, pause_s), called(one, pause_s)))
                    p50, broker, client, cold, warm = map(
                        statistics.median, zip(*rounds, strict=True)
                    )
                    print(
                        f"pause {pause_s * 1e3:4g} ms: p50 {p50:5.0f} us; processor time of the "
                        f"broker {broker:4.0f}, of the client {client:4.0f} us; {FUNCTIONS} "
                        f"functions {cold:4.0f} us, one as often {warm:4.0f} us",
                        flush=True,
                    )
        finally:
            cluster.down()


if __name__ == "__main__":
    main()
