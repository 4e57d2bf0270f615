"""What it costs to wake a Python thread for each message, beside threads that send and wait.

    python benchmarks/thread_wakes.py [--senders N] [--rounds N] [--json]

A thread that waits for an acknowledgement sleeps until another thread wakes it. Here as many
threads as there are senders do only that: each leaves a lock where one more thread finds it, and
sleeps until that thread releases the lock. No message, no request and no broker is part of it, so
synchronous senders of one process cannot be faster. Rounds measure the wake-ups and the senders in
turns; the figures are medians.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import tempfile
import threading
import time
from pathlib import Path

from saturnmq.cli.launcher import LocalCluster, Settings
from saturnmq.cli.workloads import Work, one_by_one

BODY = 1024
COUNT = 60_000

Figures = dict[str, float]


def wakes(senders: int) -> Figures:
    """Wake-ups a second, and the processor time of each in us: the program's and the kernel's."""
    left: list[threading.Lock] = []
    turn, bell = threading.Lock(), threading.Semaphore(0)
    share = COUNT // senders

    def sleeper() -> None:
        for _ in range(share):
            lock = threading.Lock()
            lock.acquire()
            with turn:
                left.append(lock)
                is_first = len(left) == 1
            if is_first:
                bell.release()
            lock.acquire()

    def waker() -> None:
        woken = 0
        while woken < share * senders:
            bell.acquire()
            with turn:
                found = left.copy()
                left.clear()
            woken += len(found)
            for lock in found:
                lock.release()

    threads = [threading.Thread(target=sleeper) for _ in range(senders)]
    threads.append(threading.Thread(target=waker))
    before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_SELF)
    done = share * senders
    return {
        "wakes": done / seconds,
        "user": (after.ru_utime - before.ru_utime) / done * 1e6,
        "kernel": (after.ru_stime - before.ru_stime) / done * 1e6,
    }


def sends(work: Work, senders: int) -> Figures:
    """Sends a second, and the processor time of each in this process in us."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    _, seconds = one_by_one(work, senders)
    after = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "sends": work.count / seconds,
        "send, user": (after.ru_utime - before.ru_utime) / work.count * 1e6,
        "send, kernel": (after.ru_stime - before.ru_stime) / work.count * 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--senders", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print JSON for machines")
    args = parser.parse_args()
    found: list[Figures] = []
    with tempfile.TemporaryDirectory() as name:
        cluster = LocalCluster.up(Path(name), Settings())
        try:
            work = Work(cluster.nameservers, BODY, COUNT)
            for _ in range(args.rounds):
                found.append(wakes(args.senders) | sends(work, args.senders))
        finally:
            cluster.down()
    figures = {key: statistics.median(each[key] for each in found) for key in found[0]}
    if args.json:
        print(json.dumps(figures, indent=1))
        return
    for rate, user, kernel in (
        ("wakes", "user", "kernel"),
        ("sends", "send, user", "send, kernel"),
    ):
        print(
            f"{rate} {figures[rate] / 1e3:.1f} k/s, processor time of each "
            f"{figures[user]:.1f} us in the program, {figures[kernel]:.1f} us in the kernel"
        )


if __name__ == "__main__":
    main()
